"""The values that scheduler and cache exchange, and what one request holds."""

from dataclasses import dataclass, field
from typing import NamedTuple

from transom.values import PageCopy, RequestId


class Namespace(NamedTuple):
    """Which root a prefix hangs from; two namespaces never meet.

    epoch   of the weights and flushes; holdings publish under the one they began with
    salt    of the tenant
    private the request itself without a prefix cache, else None
    """

    epoch: int
    salt: str
    private: RequestId | None


@dataclass(frozen=True, slots=True)
class Begin:
    """To begin: compute from `start`, full pages reach `full_until`, windows are exact from `exact_from`.

    An island hit or a cold start has all three equal.
    """

    start: int
    full_until: int
    exact_from: int

    def __post_init__(self) -> None:
        assert 0 <= self.start <= self.full_until and self.start <= self.exact_from, self


@dataclass(frozen=True, slots=True)
class Offer:
    """What `admit` would do now. It names positions, never nodes, so it cannot dangle.

    takes per component: pages admit itself takes (the copy of a partial page: 0 or 1)
    pins  per component: pages of the tree, now unreferenced, that admit would reference
    """

    begin: Begin
    takes: tuple[int, ...]
    pins: tuple[int, ...]

    def __post_init__(self) -> None:
        assert len(self.takes) == len(self.pins) and min(*self.takes, *self.pins) >= 0, self


@dataclass(slots=True, eq=False)
class Holding:
    """One request's rows. Mutable, owned by the cache; others read it.

        0        kept            published      computed      allocated
        |  0 0 0 |  of the tree  |  private                   |
                                 (pages)        (tokens)      (tokens)

    kept      per component: first page not slid (entries before it are 0)
    published whole pages given to the tree; the row references those it still names
    prompt    tokens at admission: their end is a boundary that somebody may hit again
    priority  of the request, for orders that ask
    inexact   components whose partial page at `start` is not valid from its first token: never published
    """

    request: RequestId
    row: int
    namespace: Namespace
    start: int
    computed: int
    allocated: int
    published: int
    kept: tuple[int, ...]
    prompt: int = 0
    priority: int = 0
    inexact: frozenset[int] = field(default=frozenset())


@dataclass(frozen=True, slots=True, eq=False)
class Pending:
    """A copy that has not run yet.

    holding     whose it is: the reader of a hit, or the giver of a snapshot
    pin         the page of the tree that is referenced once for it, source or target; 0 if none is the tree's
    snapshot_of tokens of the path that the target's snapshot is of, None if the copy is not of that kind
    reads       another holding whose own pages it reads, if any
    """

    holding: Holding
    copy: PageCopy
    pin: int
    snapshot_of: bytes | None = None
    reads: Holding | None = None

    def concerns(self, holding: Holding) -> bool:
        """Whether `holding` may not compute before it has run."""
        return self.holding is holding or self.reads is holding

"""The values that scheduler and cache exchange: namespaces, offers, and the holding of a running request."""

from dataclasses import dataclass
from operator import lt
from typing import NamedTuple

from transom.steps import PageCopy
from transom.values import RequestId


class Namespace(NamedTuple):
    """The root under which a prefix is cached. Requests in different namespaces never share a page.

    epoch   number of flushes and weight updates; a holding publishes under the one it was admitted in
    salt    the tenant's
    private the request itself when prefix caching is off, otherwise None
    """

    epoch: int
    salt: str
    private: RequestId | None


class StartPoint(NamedTuple):
    """A position to start computing at, and the extent of the cache there: a hit, a repair, or 0 (cold).

    start      first token to compute
    full_until components that keep everything are cached up to here; a token before it does not write to them
    exact_from window pages are exact from here on; pages that begin before it are never published
    clip       first position that a window may read

    A hit or a cold start is exact from `start` on and clips nothing. A repair clips at `start`, where no
    window is cached. The first tokens of a repair are therefore computed with too short windows; `start` lies
    so far back that this has no effect from `exact_from` on.
    """

    start: int
    full_until: int
    exact_from: int
    clip: int = 0

    @property
    def is_repair(self) -> bool:
        return self.clip > 0

    @property
    def allocated(self) -> int:
        """The tokens that have pages after `admit`, as in Holding."""
        return self.start


class Offer(NamedTuple):
    """The effect that `admit` would have now. Names positions, not nodes, so it outlives changes of the tree.

    takes per component: pages that `admit` allocates: 1 if `start` lies inside a page, or for a state; else 0
    pins  per component: pages of the tree, unreferenced now, that `admit` would reference
    """

    begin: StartPoint
    takes: tuple[int, ...]
    pins: tuple[int, ...]


@dataclass(slots=True, eq=False)
class Holding:
    """The pages of one running request, one row per component. Mutable; only the cache changes it.

        0        kept            published      computed      allocated
        |  0 0 0 |  in the tree  |  private                   |
                                 (pages)        (tokens)      (tokens)

    kept      per component: first page that has not slid out of the window; entries before it are 0
    published whole pages published to the tree; the row references the ones that it still names
    prompt    tokens at admission; their end is a boundary, where another request may hit
    priority  the request's, for the eviction policy `priority`
    exact     per component: first page that may be published. Pages before it are inexact because of a
              repair, or were begun in their middle and lack their first tokens
    full_until, clip
              as in StartPoint. Components that keep everything name the tree's pages up to `full_until`,
              however little is computed
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
    exact: tuple[int, ...] = ()
    full_until: int = 0
    clip: int = 0

    def reads_inexact(self, keep: tuple[int, ...]) -> bool:
        """Whether the pages needed from `keep` on include pages that may not be published."""
        assert len(self.exact) == len(keep), (self, keep)
        # `map` and `lt` are faster than a generator, and every publication asks this.
        return any(map(lt, keep, self.exact))


@dataclass(frozen=True, slots=True, eq=False)
class Pending:
    """A page copy that has not run yet.

    holding     the holding that the copy is for: it reads the target, or the copy snapshots its state
    pin         the page of the tree, source or target, that is referenced until the copy has run, or 0
    snapshot_of for a snapshot: the tokens that lead to the state
    reads       for a fork: the parent's holding, which has the source
    """

    holding: Holding
    copy: PageCopy
    pin: int
    snapshot_of: bytes | None = None
    reads: Holding | None = None

    def concerns(self, holding: Holding) -> bool:
        """Whether `holding` must not compute before the copy has run."""
        return self.holding is holding or self.reads is holding

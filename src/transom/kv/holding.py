"""The values that scheduler and cache exchange, and what one request holds."""

from dataclasses import dataclass
from operator import lt
from typing import NamedTuple

from transom.kv.page_rules import PageRule
from transom.steps import PageCopy
from transom.values import RequestId


class Namespace(NamedTuple):
    """Which root a prefix hangs from; two namespaces never meet.

    epoch   of the weights and flushes; holdings publish under the one they began with
    salt    of the tenant
    private the request itself without a prefix cache, else None
    """

    epoch: int
    salt: str
    private: RequestId | None


class StartPoint(NamedTuple):
    """A way to begin, of which the price is the tokens it leaves to compute.

    start      first token to compute
    full_until components that keep everything are there up to here; tokens before it store none of theirs
    exact_from windows are exact from here on, shorter ones from where they need to be; what lies before, or
               does not begin here, is never published
    clip       first position that a window may read

    An island hit, or a start at 0, is exact from `start` and clips nothing. A repair clips at `start`, as no
    window is there: its first tokens are computed wrongly, and from `exact_from` on that does not show.
    """

    start: int
    full_until: int
    exact_from: int
    clip: int = 0

    @property
    def is_repair(self) -> bool:
        return self.clip > 0

    def covered(self, rule: PageRule) -> int:
        """The first page of a component that is neither found nor, being begun, taken by `admit`."""
        return rule.entries(self.full_until if rule.keeps_all else self.start)


class Offer(NamedTuple):
    """What `admit` would do now. It names positions, never nodes, so it cannot dangle.

    takes per component: pages admit itself takes (the page that `start` lies in: 0 or 1)
    pins  per component: pages of the tree, now unreferenced, that admit would reference
    """

    begin: StartPoint
    takes: tuple[int, ...]
    pins: tuple[int, ...]


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
    exact     per component: first page that may be published. Before it lie pages that are not valid from
              their first token, and the inexact ones of a repair
    full_until, clip as in Begin. Components that keep everything have the tree's pages up to `full_until`,
              whatever is computed
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

    def keeps(self, rules: tuple[PageRule, ...]) -> tuple[int, ...]:
        """Per component: the first page that it needs to come back to the last boundary it has computed."""
        computed = self.computed
        return tuple([rule.keep(computed) for rule in rules])

    def reads_inexact(self, keep: tuple[int, ...]) -> bool:
        """Whether what it needs, from `keep` on, begins before what may be published."""
        assert len(self.exact) == len(keep), (self, keep)
        return any(map(lt, keep, self.exact))

    def covered(self, rule: PageRule) -> int:
        """The first entry of a component that the row does not have."""
        allocated = self.allocated
        return rule.entries(max(allocated, self.full_until) if rule.keeps_all else allocated)

    def shared(self, rule: PageRule) -> int:
        """The first entry of a component that is not the tree's."""
        found = self.published
        if rule.keeps_all and self.full_until:
            found = max(found, rule.floor(self.full_until))
        return rule.shared(found)


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

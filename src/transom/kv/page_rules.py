"""Page rules: the kinds of KV memory, and in each kind all that depends on it.

FullPages      keeps everything: all pages from the first on. Full attention, windows as long as the context
SlidingPages   keeps a window that slides; elsewhere the tree may have holes
SnapshotPages  keeps a state: a row has one page, and the tree has snapshots, copied from and to that page

`needed(end)` of a component decides its kind (`page_rule`) and all positions. Other modules never ask for the
kind: they ask the rule for its share of a hit, of a row, of the price of an eviction or of a forecast.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import gt
from typing import ClassVar, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from transom.errors import ConfigError
from transom.kv.component_specs import ComponentSpec, From
from transom.kv.eviction_policy import RANK_NEEDED, RANK_UNNEEDED, Price
from transom.kv.holding import Holding, StartPoint
from transom.kv.node import NO_PAGES, TOKEN_BYTES, Node, Path
from transom.kv.page_table import PageTable
from transom.kv.pool import Pages

Counts = NDArray[np.int64]
Count = TypeVar("Count", int, Counts)
"""A number of tokens or pages, or an array of such numbers."""


class Share(NamedTuple):
    """The pages that a request gets in one component when it starts at a hit.

    kept   the first entry of the row that has a page
    pages  pages of the tree from that entry on. Holes only before the first page that `start` reads
    takes  pages to allocate at admission: one for the page that `start` lies in, or for a state
    source the page of the tree to copy into it: a partial page, or a snapshot; or 0
    exact  the first page that may be published, among the pages that the request computes
    """

    kept: int
    pages: Pages
    takes: int
    source: int
    exact: int


class PageRule(Protocol):
    """The rule of one component, on pages of `page_size` tokens.

    A method with a body says what holds for most kinds. A kind redefines it where it differs.
    """

    __slots__ = ()

    component: ComponentSpec
    page_size: int
    reads_before: bool
    """Whether every position reads the one before it, so that no hit ends in a hole."""
    clips: ClassVar[bool] = True
    """Whether the tokens of a repair read nothing before its start. Elsewhere they read cached pages, and
    store nothing where pages are cached."""

    # ------------------------------------------------------------ hits

    def needed(self, end: int) -> int:
        """The first page that a hit at `end` reads. It may lie past the page of `end`: then it reads none.

            needed(end)            end
        --------|===================|----
        """
        ...

    def ends_within(self, end: int, is_resident: bool) -> bool:
        """Whether a hit may end at `end`, inside a page that is resident or not."""
        return is_resident

    def last_hit(self, reach: int) -> int:
        """The last end up to `reach` at which a prefix hit is possible, 0 if there is none."""
        return reach

    def share(self, component: int, path: Path, begin: StartPoint, partial: tuple[Node, int] | None) -> Share:
        """The share of this component in the hit with these fields, see `match.Hit`."""
        ...

    def exact_start(self, until: int, start: int) -> int:
        """Where to start computing so that a layer is exact from `start` on, and its pages of `keep(until)`.

        The component is cached up to `until`, a page boundary, if it keeps everything. Otherwise nothing is.
        """
        ...

    def whole(self, pages: int) -> int:
        """Tokens that `pages` pages hold for good; 0 in a kind that lets go of pages."""
        return 0

    # ------------------------------------------------------------ rows

    def keep(self, end: int) -> int:
        """The first page needed to resume at the last page boundary up to `end`.

        This is the window of the last page boundary, not of the last token. The window of the token would let
        go of a page that the boundary needs as soon as it moves past a page, and a retracted request, which
        resumes at the boundary, would find a hole there.
        """
        ...

    def entries(self, tokens: Count) -> Count:
        """Entries of a row that `tokens` tokens touch."""
        return -(-tokens // self.page_size)

    def covered(self, held: Holding | StartPoint) -> int:
        """The first entry of a row without a page; the first that `extend` allocates."""
        return self.entries(held.allocated)

    def shared(self, holding: Holding) -> int:
        """The first entry with a private page; entries before it name pages of the tree."""
        return holding.published

    def first_entry(self, end: int) -> int:
        """The first entry kept once `end` tokens are computed."""
        return self.keep(end)

    def pages(self, table: PageTable, row: int, start: int, end: int) -> Pages:
        """The row's pages for positions [start, end) of the tree, in pages; 0 where it has none."""
        return table.read(row, start, end)

    def slots(self, entry: int, computed: int) -> int:
        """Slots of the page at `entry` that the first `computed` tokens fill."""
        assert entry * self.page_size < computed, (entry, computed)
        return min(self.page_size, computed - entry * self.page_size)

    def cut(self, start: int, end: int) -> int:
        """The furthest end, up to `end`, of a span from `start`: spans stop where a snapshot is kept."""
        return end

    def keeps(self, end: int) -> bool:
        """Whether a snapshot is kept after `end` tokens."""
        return False

    # ------------------------------------------------------------ forecasts

    def taken(self, start: Count, end: Count) -> Count:
        """Pages that a request takes from token `start` to token `end`, whatever it lets go meanwhile."""
        return self.entries(end) - self.entries(start)

    def held(self, end: Count) -> Count:
        """The most pages that a request holds at any moment on its way to `end`, a token at a time.

        A request that crosses into a new page still holds the pages that the boundary before that page needs,
        so the peak is at a page boundary and not at `end`.
        """
        return self.entries(end)

    def held_by_page(self, tokens: int, chunk: int) -> Counts:
        """For each page: the most pages held while `computed` lies in it, on the way to `tokens` in chunks.

        Before a step a request holds the pages from `keep(computed)` to min(computed + chunk, tokens).
        """
        ...

    # ------------------------------------------------------------ eviction

    def price(self, component: int, node: Node, costs: Sequence[int], whole: bool) -> Price:
        """The price of evicting `node`. `costs`: bytes of a page, by component; `whole`: as in Price.

        Hits end at boundaries: the ends of nodes, where a prompt or a turn ended or requests branched. First
        the pages go that no boundary needs, then the island at the end. Without the island no hit ends here,
        so it counts whole.
        """
        resident = node.resident[component]
        island = self.island(node.start, resident)
        rank = RANK_UNNEEDED if resident.find(1, 0, island) >= 0 else RANK_NEEDED
        size = costs[component] * resident.count(1) or 1
        return Price(rank, len(node.key) // TOKEN_BYTES, size, island, node.branched, whole)

    def island(self, start: int, resident: bytes) -> int:
        """In a run of pages from page `start` on: the index of the first page that a hit at its end reads."""
        return 0


@dataclass(frozen=True, slots=True)
class FullPages(PageRule):
    """Keeps everything. The tree has no holes, and a leaf loses its last pages in all components together.

    Pages of a hit may reach further than the tokens computed: up to `full_until`.
    """

    component: ComponentSpec
    page_size: int
    reads_before: bool = True
    clips: ClassVar[bool] = False

    def needed(self, end: int) -> int:
        return 0

    def share(self, component: int, path: Path, begin: StartPoint, partial: tuple[Node, int] | None) -> Share:
        pages = path.read(component, 0, begin.full_until // self.page_size)
        # If full pages reach past `start`, the page of `start` is one of them and is not written to.
        takes = int(begin.start % self.page_size != 0 and begin.full_until == begin.start)
        source = _source(component, partial) if takes else 0
        assert takes == (source != 0), (begin, source)
        return Share(0, pages, takes, source, 0)

    def exact_start(self, until: int, start: int) -> int:
        return start  # a full layer reads cached keys and moves nothing

    def whole(self, pages: int) -> int:
        assert pages >= 0, pages
        return pages * self.page_size

    def keep(self, end: int) -> int:
        return 0

    def covered(self, held: Holding | StartPoint) -> int:
        return self.entries(max(held.allocated, held.full_until))

    def shared(self, holding: Holding) -> int:
        full = holding.full_until // self.page_size
        return full if full > holding.published else holding.published  # `max` takes twice as long

    def held_by_page(self, tokens: int, chunk: int) -> Counts:
        return _ends(tokens, chunk, self.page_size)

    def price(self, component: int, node: Node, costs: Sequence[int], whole: bool) -> Price:
        """A leaf loses the stretch back to the boundary before. All pages at its positions go together."""
        size = 0
        # A loop and not `sum`: prices are computed for every node that reaches the front of a queue.
        for cost, resident in zip(costs, node.resident, strict=True):
            size += cost * resident.count(1)
        return Price(RANK_NEEDED, len(node.key) // TOKEN_BYTES, size or 1, 0, node.branched, whole)


@dataclass(frozen=True, slots=True)
class SlidingPages(PageRule):
    """Keeps what `needed` names and lets go of the rest, in rows and in the tree."""

    component: ComponentSpec
    page_size: int
    reads_before: bool
    starts: Sequence[int] = field(repr=False, compare=False)
    """`needed(end).start` by end. A table, because the scheduler and the cache need it for every span."""
    peaks: Counts = field(repr=False, compare=False)
    """`held` by number of pages."""

    def needed(self, end: int) -> int:
        assert end >= 0, end
        start = self.starts[end]
        # A token that reads nothing before it needs no page, not even the one that `end` lies in.
        return -(-end // self.page_size) if start == end else start // self.page_size

    def ends_within(self, end: int, is_resident: bool) -> bool:
        # If it is not resident, the request's page lacks its first tokens. That is allowed only if no token
        # reads them: neither the one at `end`, nor a request that resumes at the end of the page.
        page = end // self.page_size
        return is_resident or (self.needed(end) > page and self.keep((page + 1) * self.page_size) > page)

    def share(self, component: int, path: Path, begin: StartPoint, partial: tuple[Node, int] | None) -> Share:
        shared, within = divmod(begin.start, self.page_size)
        takes = int(within != 0)
        if begin.is_repair:
            # No window at its start, so the row begins with the page of `start`. See `match.repair_start`.
            return Share(shared, NO_PAGES, takes, 0, self.keep(begin.full_until))
        kept, source = self.keep(begin.start), _source(component, partial) if within else 0
        # A page begun in its middle without a source lacks its first tokens: it must not be published.
        exact = shared + 1 if within and not source else kept
        return Share(kept, path.read(component, kept, shared), takes, source, exact)

    def exact_start(self, until: int, start: int) -> int:
        assert 0 <= start <= until and until % self.page_size == 0, (start, until)
        # The output is exact at t if the keys from needed(t) on are.
        return min(self.keep(until) * self.page_size, self.starts[start])

    def keep(self, end: int) -> int:
        assert end >= 0, end
        return self.starts[end - end % self.page_size] // self.page_size

    first_entry = keep

    def held(self, end: Count) -> Count:
        held = self.peaks[self.entries(end)]
        return held if isinstance(end, np.ndarray) else int(held)

    def held_by_page(self, tokens: int, chunk: int) -> Counts:
        kept = np.array(self.starts[: tokens : self.page_size], np.int64) // self.page_size
        return _ends(tokens, chunk, self.page_size) - kept

    def island(self, start: int, resident: bytes) -> int:
        # One earlier page is kept as slack. A request with the same prompt must compute its last token again,
        # so its hit ends one token before the boundary and may read one page more.
        end = start + len(resident)
        need = self.starts[end * self.page_size] // self.page_size  # `end` itself if it needs nothing
        return need - 1 - start if need > start else 0


@dataclass(frozen=True, slots=True)
class SnapshotPages(PageRule):
    """Keeps a state, which changes with every token, and snapshots of it at cuts that are page boundaries.

    A row has one entry: the request's own state. The tree has the state after page i at index i, or a hole.
    """

    component: ComponentSpec
    page_size: int
    reads_before: bool = True

    def needed(self, end: int) -> int:
        """The index of the state after `end`; inside a page no state is kept, so an index past the path."""
        return max(0, end // self.page_size - 1) if end % self.page_size == 0 else end // self.page_size

    def ends_within(self, end: int, is_resident: bool) -> bool:
        return False  # snapshots exist at page boundaries only

    def last_hit(self, reach: int) -> int:
        cuts = reversed(self.component.cuts(0, reach))
        return next((cut for cut in cuts if cut % self.page_size == 0), 0)

    def share(self, component: int, path: Path, begin: StartPoint, partial: tuple[Node, int] | None) -> Share:
        page, within = divmod(begin.start, self.page_size)
        assert not within, begin
        source = int(path.read(component, page - 1, page)[0]) if page else 0
        return Share(0, NO_PAGES, 1, source, 0)

    def exact_start(self, until: int, start: int) -> int:
        return 0  # a state depends on all tokens before it

    def keep(self, end: int) -> int:
        assert end >= 0, end
        return max(0, end // self.page_size - 1)

    def entries(self, tokens: Count) -> Count:
        return tokens * 0 + 1

    def shared(self, holding: Holding) -> int:
        return 0

    def first_entry(self, end: int) -> int:
        return 0

    def pages(self, table: PageTable, row: int, start: int, end: int) -> Pages:
        return np.zeros(end - start, np.int64)  # the row's own state is none of them

    def slots(self, entry: int, computed: int) -> int:
        return 1

    def cut(self, start: int, end: int) -> int:
        assert start <= end, (start, end)
        boundaries = (cut for cut in self.component.cuts(start, end) if cut % self.page_size == 0)
        return next(boundaries, end)

    def keeps(self, end: int) -> bool:
        return end > 0 and self.last_hit(end) == end

    def held_by_page(self, tokens: int, chunk: int) -> Counts:
        return np.ones(-(-tokens // self.page_size), np.int64)

    def island(self, start: int, resident: bytes) -> int:
        return max(0, resident.rfind(1))  # the last snapshot: a hit at the end reads no other


def _source(component: int, partial: tuple[Node, int] | None) -> int:
    """The page of the tree that a hit ends inside; 0 if there is none, or if it is a hole."""
    return partial[0].page(component, partial[1]) if partial else 0


def _ends(tokens: int, chunk: int, page_size: int) -> Counts:
    """Pages that a chunk reaches at most, if it begins in a page, for each page of `tokens` tokens.

    Among the positions in one page, the last needs most: its chunk reaches furthest, and the first kept page
    is the same for all.
    """
    assert tokens >= 1 and chunk >= 1, (tokens, chunk)
    # The last position of each page, but never past the last token.
    last = np.minimum(np.arange(page_size - 1, tokens + page_size - 1, page_size), tokens - 1)
    ends: Counts = -(-np.minimum(last + chunk, tokens) // page_size)
    return ends


# ---------------------------------------------------------------- the kind of a component


def first_needed(component: ComponentSpec, end: int) -> int:
    """The first position that the token at `end` reads; `end` itself if it reads no position before it."""
    need = component.needed(end)
    if not isinstance(need, From):
        raise ConfigError(f"{component.name}: kept as snapshots, it has no range of positions")
    assert 0 <= need.start <= end, (component, end, need)
    return need.start


def slots_held(component: ComponentSpec, page_size: int, end: int, chunk: int) -> int:
    """Slots that a request holds while it computes `chunk` tokens, and the next one, after `end` tokens."""
    need = component.needed(end)
    return end + chunk + 1 - need.start if isinstance(need, From) else page_size


def page_rule(component: ComponentSpec, page_size: int, context: int) -> PageRule:
    """The rule of `component` for requests of up to `context` tokens."""
    assert page_size >= 1 and context >= 0, (page_size, context)
    if not isinstance(component.needed(0), From):
        return SnapshotPages(component, page_size)
    if first_needed(component, context) == 0:
        return FullPages(component, page_size)
    starts, peaks, reads_before = _tables(component, page_size, context)
    return SlidingPages(component, page_size, reads_before, starts, peaks)


def sparse_of(rules: Sequence[PageRule]) -> tuple[int, ...]:
    """The components in which the tree may have holes."""
    return tuple([component for component, rule in enumerate(rules) if not isinstance(rule, FullPages)])


def last_hit(rules: Sequence[PageRule], reach: int) -> int:
    """The last end up to `reach` at which a prefix hit is possible in all components, 0 if there is none."""
    end = min([rule.last_hit(reach) for rule in rules])
    assert 0 <= end <= reach, (end, reach)
    return end if end == reach else last_hit(rules, end)


# Shared by all rules of a component: the fuzzer and the tests build thousands of caches.
@lru_cache(maxsize=32)
def _tables(component: ComponentSpec, page_size: int, context: int) -> tuple[Sequence[int], Counts, bool]:
    """`starts`, `peaks` and `reads_before` of SlidingPages."""
    # One page more, because the last page may reach past the context.
    starts = array("q", [first_needed(component, end) for end in range(context + page_size + 1)])
    kept = np.array(starts[: context + 1 : page_size], np.int64) // page_size
    # A request allocates the next page before it slides, so both count.
    peaks = np.maximum.accumulate(np.append(0, np.arange(1, len(kept) + 1) - kept))
    # From the table of all positions: `needed` may be any function, so nothing shorter decides it.
    return starts, peaks, all(map(gt, range(1, context + 1), starts[1:]))

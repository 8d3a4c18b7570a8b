"""The memory core: admit, extend, advance, publish, slide, truncate, drop.

A request's life:  admit  ->  (extend -> [runner] -> copies_done -> advance -> publish -> slide)*  ->  drop
"""

from dataclasses import dataclass

import numpy as np

from transom.errors import NoSpace
from transom.kv import layout as sizes
from transom.kv.check import check
from transom.kv.holding import Begin, Holding, Namespace, Offer
from transom.kv.journal import Journal, Savepoint, Transaction
from transom.kv.layout import CacheLayout, PrefixCaching
from transom.kv.match import Hit, best_hit, found_again, repaired
from transom.kv.pool import PagePool, owner_of
from transom.kv.publish import Publisher
from transom.kv.reclaim import purge, reclaim
from transom.kv.rows import RowTable
from transom.kv.stats import CacheStats, ComponentStats, Counters
from transom.kv.tree import PrefixTree
from transom.values import PageCopy, RequestId, Tokens

__all__ = [
    "Begin",
    "CacheLayout",
    "CacheStats",
    "Holding",
    "HybridCache",
    "Namespace",
    "Offer",
    "PrefixCaching",
    "RowTable",
    "Savepoint",
    "Transaction",
]


@dataclass(frozen=True, slots=True)
class Pending:
    """A copy that has not run, and the admission it belongs to. Its source is referenced once for it."""

    holding: Holding
    copy: PageCopy


class HybridCache:
    """Owns pools, rows and tree. Queries change nothing; each transition is all or nothing, mutably.

    `rows[c].table` is what kernels read: int32 [rows, pages per row] of component c.
    """

    def __init__(self, layout: CacheLayout) -> None:
        """Raises ConfigError, naming the minimum, if one request with the smallest chunk cannot run."""
        sizes.require_workable(layout)
        journal = Journal()
        self.layout = layout
        self.grids = layout.grids()
        self.pools = tuple(
            PagePool(component.name, pages, journal)
            for component, pages in zip(layout.components, layout.pages, strict=True)
        )
        width = -(-layout.context // layout.page_size)
        self.rows = tuple(RowTable(layout.rows, width, journal) for _ in layout.components)
        self.tree = PrefixTree(
            self.pools, tuple(grid.rooted for grid in self.grids), layout.page_size, journal
        )
        self.counters = Counters(len(self.pools), journal)
        self.holdings: tuple[Holding | None, ...] = (None,) * layout.rows
        """By row."""
        self.pending: tuple[Pending, ...] = ()
        self.epoch = 0
        self._journal = journal

    # ---------------------------------------------------------------- queries

    def namespace(self, request: RequestId, salt: str) -> Namespace:
        """The namespace of the current epoch."""
        alone = self.layout.prefix_caching is PrefixCaching.OFF
        return Namespace(self.epoch, salt, request if alone else None)

    def offer(self, namespace: Namespace, tokens: Tokens) -> Offer:
        """The way to begin that computes the fewest tokens, at least one; `cold()` if there is no other."""
        return self.offers(namespace, tokens)[0]

    def offers(self, namespace: Namespace, tokens: Tokens) -> tuple[Offer, ...]:
        """All ways to begin, the fewest tokens to compute first: repair, the longest hit, `cold()`."""
        hit = best_hit(self.tree, self.grids, namespace, as_key(tokens, len(tokens) - 1))
        repair = repaired(hit, self.grids, self.layout.layers)
        found = [hit] if hit.begin.full_until else []
        return (*map(self._offer, [repair, *found] if repair else found), self.cold())

    def cold(self) -> Offer:
        """To begin at 0, which is always offered."""
        nothing = (0,) * len(self.pools)
        return Offer(Begin(0, 0, 0), nothing, nothing)

    def room(self) -> tuple[int, ...]:
        """Pages to be had per component: free, or of the tree and unreferenced. Exact."""
        return tuple([pool.room for pool in self.pools])

    def growth(self, held: Holding | Begin, end: int) -> tuple[int, ...]:
        """Pages that extend(..., end) would take, of a holding or after an admission."""
        assert end >= 0, end
        return tuple([max(0, grid.ceil(end) - held.covered(grid)) for grid in self.grids])

    def fits_alone(self, tokens: int, chunk: int) -> bool:
        """Whether a request of `tokens` in all, computed `chunk` at a time, fits an empty cache."""
        return tokens <= sizes.longest_alone(self.layout, chunk)

    def longest_alone(self, chunk: int) -> int:
        """The longest request, in tokens, that `fits_alone`: the served context's bound."""
        return sizes.longest_alone(self.layout, chunk)

    def stats(self) -> CacheStats:
        """A snapshot."""
        counts = self.counters.admissions
        return CacheStats(
            components=tuple(self._component_stats(component) for component in range(len(self.pools))),
            page_size=self.layout.page_size,
            rows_used=len(self._live()),
            epoch=self.epoch,
            admitted=counts.admitted,
            hits=counts.hits,
            hit_tokens=counts.hit_tokens,
            pages_copied=counts.pages_copied,
            repairs=counts.repairs,
        )

    def check(self) -> None:
        """All invariants; AssertionError with the values."""
        check(self)

    def pending_copies(self) -> tuple[PageCopy, ...]:
        """To run, in order, before any kernel of the next step."""
        return tuple([pending.copy for pending in self.pending])

    # ---------------------------------------------------------------- transitions

    def transaction(self) -> Transaction:
        """A block whose transitions happen wholly or, on an exception, not at all."""
        return self._journal.transaction()

    def admit(self, request: RequestId, namespace: Namespace, tokens: Tokens, offer: Offer) -> Holding:
        """A row, references to what is there, and a page for the one it begins within. Raises NoSpace.

        NoSpace names `rows` when none is free, and `prefix` when the tree no longer has what was offered.
        """
        begin = offer.begin
        assert namespace.epoch == self.epoch, (namespace, self.epoch)
        assert begin.start < len(tokens) <= self.layout.context, (offer, len(tokens))
        assert begin.full_until < len(tokens), (offer, len(tokens))
        hit = found_again(self.tree, self.grids, namespace, as_key(tokens, len(tokens) - 1), begin)
        if hit is None:
            raise NoSpace("prefix", begin.full_until, 0)
        if None not in self.holdings:
            raise NoSpace("rows", 1, 0)
        with self._journal.transaction():
            return self._begin(request, namespace, hit)

    def extend(self, holding: Holding, end: int) -> None:
        """Pages up to `end` in every component, reclaimed where free ones are short. Raises NoSpace."""
        self._require_live(holding)
        assert end <= self.layout.context, (end, self.layout.context)
        if end <= holding.allocated:
            return
        growth = self.growth(holding, end)
        with self._journal.transaction():
            self._require_room(growth)
            for component, (grid, count) in enumerate(zip(self.grids, growth, strict=True)):
                self._take(holding.row, component, holding.covered(grid), count)
            self._journal.assign(holding, "allocated", end)

    def advance(self, holding: Holding, end: int) -> None:
        """The runner has computed up to `end`."""
        self._require_live(holding)
        assert holding.computed < end <= holding.allocated, (holding, end)
        assert all(pending.holding is not holding for pending in self.pending), "its copies have not run"
        with self._journal.transaction():
            self._journal.assign(holding, "computed", end)

    def truncate(self, holding: Holding, end: int) -> None:
        """Gives back the pages beyond `end`, which is not before `computed`."""
        self._require_live(holding)
        assert holding.computed <= end <= holding.allocated, (holding, end)
        before = [holding.covered(grid) for grid in self.grids]
        with self._journal.transaction():
            self._journal.assign(holding, "allocated", end)
            for component, (grid, last) in enumerate(zip(self.grids, before, strict=True)):
                self._return_private(holding, component, holding.covered(grid), last)

    def publish(self, holding: Holding, tokens: Tokens) -> None:
        """Gives the computed whole pages to the tree. `tokens` are the request's, at least the computed ones.

        Never needs a page. Afterwards the row names the tree's pages wherever it has not slid. While a repair
        still reads inexact pages, nothing is given.
        """
        self._require_live(holding)
        assert len(tokens) >= holding.computed, (len(tokens), holding)
        whole = self.grids[0].floor(holding.computed)
        if whole <= holding.published or self._reads_inexact(holding):
            return
        with self._journal.transaction():
            self._give_up_inexact(holding)
            Publisher(self.tree, self.grids, self.rows, self.counters, holding).run(
                as_key(tokens, whole * self.layout.page_size), whole
            )
            self._journal.assign(holding, "published", whole)

    def slide(self, holding: Holding) -> None:
        """Gives back or unreferences what fell out of every later window."""
        self._require_live(holding)
        keep = tuple([grid.keep(holding.computed) for grid in self.grids])
        if keep == holding.kept:
            return
        with self._journal.transaction():
            for component, (old, new) in enumerate(zip(holding.kept, keep, strict=True)):
                self._let_go(holding, component, old, max(old, new))
            self._journal.assign(holding, "kept", tuple(map(max, holding.kept, keep)))
            self._purge_if_hidden(holding.namespace)

    def drop(self, holding: Holding) -> None:
        """The row ends: private pages to the pool, references released. Not published: publish first."""
        self._require_live(holding)
        with self._journal.transaction():
            self._end_copies([pending for pending in self.pending if pending.holding is holding])
            for component, grid in enumerate(self.grids):
                self._let_go(holding, component, holding.kept[component], holding.covered(grid))
            self._seat(holding.row, None)
            self._purge_if_hidden(holding.namespace)

    def copies_done(self) -> None:
        """The pending copies have run; their sources are released."""
        if not self.pending:
            return
        with self._journal.transaction():
            done = self.pending
            self._end_copies(list(done))
            for namespace in {pending.holding.namespace for pending in done}:
                self._purge_if_hidden(namespace)

    def flush(self) -> None:
        """A new epoch: nothing cached is found any more; running requests go on.

        They publish under the root they began with, whose pages are given back as their references end.
        """
        with self._journal.transaction():
            self._journal.assign(self, "epoch", self.epoch + 1)
            for root in list(self.tree.roots.values()):
                purge(self.tree, root)

    # ---------------------------------------------------------------- admission

    def _offer(self, hit: Hit) -> Offer:
        pins = []
        for component, (grid, pool) in enumerate(zip(self.grids, self.pools, strict=True)):
            pages = np.append(hit.read(component, grid), hit.source(component, grid))
            pins.append(pool.unreferenced(pages[pages != 0]))
        return Offer(hit.begin, tuple([hit.takes(grid) for grid in self.grids]), tuple(pins))

    def _begin(self, request: RequestId, namespace: Namespace, hit: Hit) -> Holding:
        """References first, then pages: what is referenced cannot be reclaimed for what is taken."""
        holding = self._holding(request, namespace, hit)
        self._seat(holding.row, holding)
        for component, grid in enumerate(self.grids):
            entries = hit.read(component, grid)
            self.pools[component].reference(entries[entries != 0])
            self.rows[component].write(holding.row, holding.kept[component], entries)
        self.tree.use(hit.path, holding.kept)
        sources = tuple([hit.source(component, grid) for component, grid in enumerate(self.grids)])
        self._take_begun(holding, tuple([hit.takes(grid) for grid in self.grids]), sources)
        self.counters.admit(hit.begin, sum(source != 0 for source in sources))
        return holding

    def _holding(self, request: RequestId, namespace: Namespace, hit: Hit) -> Holding:
        start = hit.begin.start
        return Holding(
            request=request,
            row=self.holdings.index(None),
            namespace=namespace,
            start=start,
            computed=start,
            allocated=start,
            published=self.grids[0].floor(start),
            kept=tuple([hit.kept(grid) for grid in self.grids]),
            exact=tuple([hit.exact(component, grid) for component, grid in enumerate(self.grids)]),
            full_until=hit.begin.full_until,
            clip=hit.begin.clip,
        )

    def _take_begun(self, holding: Holding, takes: tuple[int, ...], sources: tuple[int, ...]) -> None:
        """A page of the request's own for the page that `start` lies in, copied where there is a source."""
        for component, source in enumerate(sources):
            if source:
                self.pools[component].reference([source])
        self._require_room(takes)
        for component, (count, source) in enumerate(zip(takes, sources, strict=True)):
            self._take(holding.row, component, holding.published, count)
            if source:
                target = int(self.rows[component].table[holding.row, holding.published])
                tokens = holding.start % self.layout.page_size
                copy = Pending(holding, PageCopy(component, source, target, tokens))
                self._journal.assign(self, "pending", (*self.pending, copy))

    # ---------------------------------------------------------------- pages of a row

    def _require_room(self, growth: tuple[int, ...]) -> None:
        for pool, count in zip(self.pools, growth, strict=True):
            if count > pool.room:
                raise NoSpace(pool.name, count, pool.room)

    def _take(self, row: int, component: int, first: int, count: int) -> None:
        """`count` pages for entries from `first` on, of the tree's unreferenced ones if need be."""
        pool = self.pools[component]
        if count > pool.free:
            self._reclaim(component, count - pool.free)
        self.rows[component].write(row, first, pool.take(count, owner_of(row)))

    def _reclaim(self, component: int, count: int) -> None:
        assert count > 0, count
        before = [pool.tree for pool in self.pools]
        reclaim(self.tree, component, count)
        for other, (pool, pages) in enumerate(zip(self.pools, before, strict=True)):
            if pool.tree < pages:
                self.counters.add(other, reclaimed=pages - pool.tree)

    def _let_go(self, holding: Holding, component: int, start: int, end: int) -> None:
        """Entries [start, end) end: what is the tree's is unreferenced, what is private goes back."""
        middle = min(max(start, holding.shared(self.grids[component])), end)
        if start < middle:
            self.pools[component].unreference(self.rows[component].held(holding.row, start, middle))
            self.rows[component].clear(holding.row, start, middle)
        self._return_private(holding, component, middle, end)

    def _return_private(self, holding: Holding, component: int, start: int, end: int) -> None:
        assert start >= holding.shared(self.grids[component]) or start >= end, (holding, start, end)
        if start < end:
            self.pools[component].give(
                self.rows[component].held(holding.row, start, end), owner_of(holding.row)
            )
            self.rows[component].clear(holding.row, start, end)

    def _reads_inexact(self, holding: Holding) -> bool:
        """Whether what the next token needs begins before what may be published."""
        return any(
            grid.keep(holding.computed) < exact for grid, exact in zip(self.grids, holding.exact, strict=True)
        )

    def _give_up_inexact(self, holding: Holding) -> None:
        """Two kinds of page must not get into the tree. They have slid by now, or may.

        What a repair computed before windows are exact; and a page begun in its middle with nothing to copy
        its beginning from, which a component has that needed nothing at `start`.
        """
        for component, (kept, exact) in enumerate(zip(holding.kept, holding.exact, strict=True)):
            self._let_go(holding, component, kept, max(kept, exact))
        self._journal.assign(holding, "kept", tuple(map(max, holding.kept, holding.exact)))

    # ---------------------------------------------------------------- primitives

    def _seat(self, row: int, holding: Holding | None) -> None:
        assert (self.holdings[row] is None) != (holding is None), (row, holding, self.holdings[row])
        self._journal.assign(self, "holdings", (*self.holdings[:row], holding, *self.holdings[row + 1 :]))

    def _end_copies(self, ended: list[Pending]) -> None:
        """One source at a time: two admissions may copy from the same page."""
        for pending in ended:
            assert pending in self.pending, (pending, self.pending)
            self.pools[pending.copy.component].unreference([pending.copy.source])
        self._journal.assign(self, "pending", tuple(p for p in self.pending if p not in ended))

    def _purge_if_hidden(self, namespace: Namespace) -> None:
        """Nothing will hit a retired or private root again: what nobody reads there goes at once."""
        root = self.tree.roots.get(namespace)
        if root is not None and (namespace.private is not None or namespace.epoch != self.epoch):
            purge(self.tree, root)

    def _require_live(self, holding: Holding) -> None:
        assert self.holdings[holding.row] is holding, (holding, self.holdings[holding.row])

    def _live(self) -> list[Holding]:
        return [holding for holding in self.holdings if holding is not None]

    def _component_stats(self, component: int) -> ComponentStats:
        pool, traffic = self.pools[component], self.counters.traffic[component]
        return ComponentStats(
            name=pool.name,
            capacity=pool.capacity,
            free=pool.free,
            referenced=pool.tree - pool.idle,
            unreferenced=pool.idle,
            private=pool.capacity - pool.free - pool.tree,
            reclaimed=traffic.reclaimed,
            holes_filled=traffic.holes_filled,
            duplicates_returned=traffic.duplicates_returned,
        )


def as_key(tokens: Tokens, count: int) -> bytes:
    """The first `count` tokens as the tree compares them, from any integer array."""
    return np.asarray(tokens)[:count].astype(np.int32, copy=False).tobytes()

"""The memory core: admit, extend, advance, publish, slide, truncate, drop.

A request's life:  admit  ->  (extend -> [runner] -> copies_done -> advance -> publish -> slide)*  ->  drop
"""

from collections.abc import Sequence
from operator import lt

from transom.errors import NoSpace
from transom.kv import layout as sizes
from transom.kv.begin import holding_of, ways
from transom.kv.budget import Budget
from transom.kv.check import check
from transom.kv.events import EventBatch, EventLog
from transom.kv.eviction import make_room, purge
from transom.kv.explain import Explanation, explain
from transom.kv.fork import begin_fork, copy_of, private_entries, share
from transom.kv.holding import Holding, Namespace, Offer, Pending, StartPoint
from transom.kv.journal import Journal, Transaction
from transom.kv.layout import CacheLayout, PrefixCaching
from transom.kv.match import Hit, Share, found_again
from transom.kv.page_table import PageTable
from transom.kv.pins import Pins
from transom.kv.pool import PagePool, as_pages, owner_of, present
from transom.kv.publish import Publisher
from transom.kv.radix_tree import TOKEN_BYTES, PrefixTree, as_key
from transom.kv.room import Capacity
from transom.kv.snapshots import SnapshotKeeper
from transom.kv.stats import CacheStats, Counters, cache_stats
from transom.steps import Discard, PageCopy
from transom.values import RequestId, Tokens

__all__ = ["CacheLayout", "Holding", "HybridCache", "Namespace", "Offer", "PrefixCaching", "StartPoint"]


class HybridCache:
    """Owns pools, rows and tree. Queries change nothing; each transition is all or nothing, mutably.

    `rows[c].table` is what kernels read: int32 [rows, pages per row] of component c.
    """

    def __init__(self, layout: CacheLayout) -> None:
        """Raises ConfigError, naming the minimum, if one request with the smallest chunk cannot run."""
        sizes.require_workable(layout)
        journal = Journal()
        self.layout = layout
        self.rules = layout.rules()
        self.pools = tuple(
            PagePool(component.name, pages, journal)
            for component, pages in zip(layout.components, layout.pages, strict=True)
        )
        self.rows = tuple(
            PageTable(layout.rows, rule.entries(layout.context), journal) for rule in self.rules
        )
        self.budget = Budget(layout.budget, layout.page_bytes, self.pools, journal)
        names = tuple(component.name for component in layout.components)
        self.log = EventLog(names, layout.page_size * TOKEN_BYTES, journal)
        costs = layout.page_bytes or (1,) * len(self.pools)
        self.tree = PrefixTree(self.pools, self.rules, layout.policy.policy, costs, self.log, journal)
        self.pins = Pins(self.tree, self.log, layout.pin_tokens, journal)
        self.counters = Counters(len(self.pools), journal)
        self.holdings: list[Holding | None] = [None] * layout.rows
        """By row."""
        self.pending: tuple[Pending, ...] = ()
        self.epoch = 0
        self._journal = journal
        self._cold = Offer(StartPoint(0, 0, 0), tuple([g.own(0) for g in self.rules]), (0,) * len(self.rules))
        self._has_states = not all(rule.by_reference for rule in self.rules)
        self._snapshots = SnapshotKeeper(self.tree, self.rows, self.rules)
        self._publisher = Publisher(self.tree, self.rows, self.rules, self.counters)

    # ---------------------------------------------------------------- queries

    def namespace(self, request: RequestId, salt: str) -> Namespace:
        """The namespace of the current epoch."""
        alone = self.layout.prefix_caching is PrefixCaching.OFF
        return Namespace(self.epoch, salt, request if alone else None)

    def offer(self, namespace: Namespace, tokens: Tokens) -> Offer:
        """The way to begin that computes the fewest tokens, at least one; `cold()` if there is no other."""
        return next(ways(self, namespace, tokens))

    def offers(self, namespace: Namespace, tokens: Tokens, latest: int | None = None) -> tuple[Offer, ...]:
        """All ways to begin, at the `latest` there; fewest tokens to compute first; `cold()` is the last."""
        return tuple(ways(self, namespace, tokens, latest))

    def cold(self) -> Offer:
        """To begin at 0, which is always offered."""
        return self._cold

    def space(self) -> Capacity:
        """What is to be had: free, or of the tree and unreferenced. Exact: `space().covers(growth)`."""
        return self.budget.room()

    def room(self) -> tuple[int, ...]:
        """Pages to be had of each component if no other took any."""
        return self.budget.room().alone()

    def growth(self, held: Holding | StartPoint, end: int) -> tuple[int, ...]:
        """Pages that extend(..., end) would take, of a holding or after an admission."""
        assert end >= 0, end
        return tuple([max(0, rule.entries(end) - held.covered(rule)) for rule in self.rules])

    def stop(self, start: int, end: int) -> int:
        """Where a span from `start` must stop, at most `end`, so that snapshots can be kept."""
        assert start < end, (start, end)
        return min([rule.cut(start, end) for rule in self.rules])

    def longest_alone(self, chunk: int) -> int:
        """The longest request, in tokens, that fits an empty cache, computed `chunk` at a time."""
        return sizes.longest_alone(self.layout, chunk)

    def stats(self) -> CacheStats:
        """A snapshot."""
        return cache_stats(self)

    def explain(self, namespace: Namespace, tokens: Tokens) -> Explanation:
        """Why a request with `tokens` would begin where it would."""
        key = as_key(tokens, max(0, len(tokens) - 1))
        return explain(self.tree, self.rules, self.layout.layers, self.log, namespace, key)

    def events(self, since: int) -> EventBatch:
        """What was stored and removed, from event number `since` on."""
        return self.log.since(since)

    def check(self) -> None:
        """All invariants; AssertionError with the values."""
        check(self)

    def pending_copies(self) -> tuple[PageCopy, ...]:
        """To run, in order, before any kernel of the next step."""
        return tuple([pending.copy for pending in self.pending])

    def pending_discards(self) -> tuple[Discard, ...]:
        """To give back to the system, after the copies and before any kernel of the next step."""
        return self.budget.discards()

    # ---------------------------------------------------------------- transitions

    def transaction(self) -> Transaction:
        """A block whose transitions happen wholly or, on an exception, not at all."""
        return self._journal.transaction()

    def admit(
        self, request: RequestId, namespace: Namespace, tokens: Tokens, offer: Offer, *, priority: int = 0
    ) -> Holding:
        """A row, references to what is there, and a page for the one it begins within. Raises NoSpace.

        NoSpace names `rows` when none is free, and `prefix` when the tree no longer has what was offered.
        """
        begin = offer.begin
        assert namespace.epoch == self.epoch, (namespace, self.epoch)
        assert begin.start < len(tokens) <= self.layout.context, (offer, len(tokens))
        assert begin.full_until < len(tokens), (offer, len(tokens))
        hit = found_again(self.tree, self.rules, namespace, tokens, begin)
        if hit is None:
            raise NoSpace("prefix", begin.full_until, 0)
        if None not in self.holdings:
            raise NoSpace("rows", 1, 0)
        with self._journal.transaction():
            shares, row = hit.shares(self.rules), self.holdings.index(None)
            holding = holding_of(hit, shares, self.rules, request, namespace, row)
            holding.prompt, holding.priority = len(tokens), priority
            self._begin(holding, hit, shares)
        return holding

    def extend(self, holding: Holding, end: int) -> None:
        """Pages up to `end` in every component, reclaimed where free ones are short. Raises NoSpace."""
        self._require_live(holding)
        assert end <= self.layout.context, (end, self.layout.context)
        if end <= holding.allocated:
            return
        growth = self.growth(holding, end)
        with self._journal.transaction():
            self._make_room(growth, holding.request)
            for component, (rule, count) in enumerate(zip(self.rules, growth, strict=True)):
                self._take(holding.row, component, holding.covered(rule), count)
            self.budget.settle()
            self._journal.assign(holding, "allocated", end)

    def advance(self, holding: Holding, end: int) -> None:
        """The runner has computed up to `end`."""
        self._require_live(holding)
        assert holding.computed < end <= holding.allocated, (holding, end)
        for pending in self.pending:
            assert not pending.concerns(holding), "its copies have not run"
        self._journal.assign_alone(holding, "computed", end)

    def truncate(self, holding: Holding, end: int) -> None:
        """Gives back the pages beyond `end`, which is not before `computed`."""
        self._require_live(holding)
        assert holding.computed <= end <= holding.allocated, (holding, end)
        before = [holding.covered(rule) for rule in self.rules]
        with self._journal.transaction():
            self._journal.assign(holding, "allocated", end)
            for component, (rule, last) in enumerate(zip(self.rules, before, strict=True)):
                self._return_private(holding, component, holding.covered(rule), last)

    def publish(self, holding: Holding, tokens: Tokens) -> None:
        """Gives the computed whole pages to the tree. `tokens` are the request's, at least the computed ones.

        Never needs a page: a snapshot is kept if there is room for one. Afterwards the row names the tree's
        pages wherever it has not slid. While a repair still reads inexact pages, nothing is given.
        """
        self._require_live(holding)
        assert len(tokens) >= holding.computed, (len(tokens), holding)
        whole = self.rules[0].floor(holding.computed)
        if whole <= holding.published:
            return
        keep = holding.keeps(self.rules)
        if holding.reads_inexact(keep):
            return
        with self._journal.transaction():
            self.tree.clock.tick()  # what is stored now is used now
            self._give_up_inexact(holding)
            key = as_key(tokens, whole * self.layout.page_size)
            kept = self._make_room_for_snapshots(holding, key) if self._has_states else ()
            path = self._publisher.publish(holding, key, whole)
            for component in kept:
                self._add_pending(self._snapshots.keep(holding, path, component, key))
            self.budget.settle()
            self.tree.use(path, keep, hit=False, priority=holding.priority)
            self.tree.trim(path.end)
            self._journal.assign(holding, "published", whole)

    def slide(self, holding: Holding) -> None:
        """Gives back or unreferences what fell out of every later window."""
        self._require_live(holding)
        keep = tuple([rule.first_entry(holding.computed) for rule in self.rules])
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
            if self.pending:
                self._end_copies([p for p in self.pending if p.holding is holding and p.snapshot_of is None])
                self._journal.assign(self, "pending", self._snapshots.left_by(holding, self.pending))
            for component, rule in enumerate(self.rules):
                self._let_go(holding, component, holding.kept[component], holding.covered(rule))
            self._seat(holding.row, None)
            self._purge_if_hidden(holding.namespace)
            self.tree.unpark()

    def fork(self, holding: Holding, request: RequestId, tokens: Tokens) -> Holding:
        """A second holding where `holding` stands: whole pages shared, the rest copied. Raises NoSpace.

        `tokens` are those computed, at least. What the copies read must not change before they have run. A
        snapshot of `holding` may still be in the making: that reads its state, as the child's copy does.
        """
        self._require_live(holding)
        assert not any(p.holding is holding and p.snapshot_of is None for p in self.pending), self.pending
        if None not in self.holdings:
            raise NoSpace("rows", 1, 0)
        with self._journal.transaction():
            self.publish(holding, tokens)
            child = begin_fork(self, holding, request, len(tokens))
            self._seat(child.row, child)
            share(self, holding, child)
            own = private_entries(self, holding)
            self._make_room([len(entries) for entries in own], request)
            for component, entries in enumerate(own):
                for entry in entries:
                    self._take(child.row, component, entry, 1)
                    self._add_pending(copy_of(self, holding, child, component, entry))
            self.budget.settle()
        return child

    def pin(self, namespace: Namespace, tokens: Tokens, steps: int) -> int:
        """What is cached of `tokens` gives its pages last, for `steps` steps. Returns how many tokens.

        Order only: no page is held. Raises NoSpace (`pins`) beyond `layout.pin_tokens`.
        """
        with self._journal.transaction():
            return self.pins.add(namespace, as_key(tokens, len(tokens)), steps)

    def copies_done(self) -> None:
        """A step has been computed: its copies and discards have run, and what copies read is released."""
        with self._journal.transaction():
            self._journal.assign(self.log, "step", self.log.step + 1)
            self.pins.expire()
            self.budget.discards_done()
            done = self.pending
            self._end_copies(list(done))
            assert not self.pending, self.pending
            for namespace in {pending.holding.namespace for pending in done}:
                self._purge_if_hidden(namespace)

    def copies_failed(self) -> frozenset[RequestId]:
        """A step failed, so snapshots in the making are gone. Returns those whose copies may not have run."""
        readers = [pending for pending in self.pending if pending.snapshot_of is None]
        with self._journal.transaction():
            self._end_copies(readers)
            self._snapshots.withdraw(self.pending)
            self.copies_done()
        return frozenset([pending.holding.request for pending in readers])

    def flush(self) -> None:
        """A new epoch: nothing cached is found any more; running requests go on.

        They publish under the root they began with, whose pages are given back as their references end.
        """
        with self._journal.transaction():
            self._journal.assign(self, "epoch", self.epoch + 1)
            self.log.clear(self.epoch)
            for root in list(self.tree.roots.values()):
                purge(self.tree, root)
            self.forget_lost_snapshots()

    # ---------------------------------------------------------------- admission

    def _begin(self, holding: Holding, hit: Hit, shares: list[Share]) -> None:
        """References first, then pages: what is referenced cannot be reclaimed for what is taken."""
        self.tree.clock.tick()
        self._seat(holding.row, holding)
        for pool, rows, found in zip(self.pools, self.rows, shares, strict=True):
            if len(found.pages):
                pool.reference(present(found.pages))
                rows.write(holding.row, found.kept, found.pages)
        self.tree.use(hit.path, holding.keeps(self.rules), hit=True, priority=holding.priority)
        takes = [found.takes for found in shares]
        if any(takes):
            self._take_own(holding, shares, takes)
        self.counters.admit(hit.begin, len([found for found in shares if found.source]))

    def _take_own(self, holding: Holding, shares: list[Share], takes: list[int]) -> None:
        """Pages of its own: for the page that `start` lies in, and for a state; copied from their sources."""
        for pool, found in zip(self.pools, shares, strict=True):
            if found.source:
                pool.reference(as_pages([found.source]))
        self._make_room(takes, holding.request)
        for component, (rule, found) in enumerate(zip(self.rules, shares, strict=True)):
            if not found.takes:
                continue
            entry = rule.shared(holding.published)
            self._take(holding.row, component, entry, 1)
            if found.source:
                target = int(self.rows[component].table[holding.row, entry])
                copy = PageCopy(component, found.source, target, rule.copied(holding.start))
                self._add_pending(Pending(holding, copy, pin=found.source))
        self.budget.settle()

    # ---------------------------------------------------------------- pages of a row

    def _make_room(self, need: Sequence[int], request: RequestId) -> None:
        """`need` pages of each component can be taken then. Raises NoSpace."""
        assert len(need) == len(self.pools), need
        self.log.request = request
        make_room(self.tree, self.budget, self.counters, need)
        self.forget_lost_snapshots()

    def _take(self, row: int, component: int, first: int, count: int) -> None:
        """`count` free pages for entries from `first` on."""
        assert first >= 0 and count >= 0, (row, component, first, count)
        if not count:
            return
        self.rows[component].write(row, first, self.pools[component].take(count, owner_of(row)))

    def _let_go(self, holding: Holding, component: int, start: int, end: int) -> None:
        """Entries [start, end) end: what is the tree's is unreferenced, what is private goes back."""
        middle = min(holding.shared(self.rules[component]), end)
        if start < middle:
            named = self.rows[component].clear(holding.row, start, middle)
            self.pools[component].unreference(named)
            start = middle
        self._return_private(holding, component, start, end)

    def _return_private(self, holding: Holding, component: int, start: int, end: int) -> None:
        if start >= end:
            return
        assert start >= holding.shared(self.rules[component]), (holding, start, end)
        named = self.rows[component].clear(holding.row, start, end)
        self.pools[component].give(named, owner_of(holding.row))

    def _give_up_inexact(self, holding: Holding) -> None:
        """Two kinds of page must not get into the tree. They have slid by now, or may.

        What a repair computed before windows are exact; and a page begun in its middle with nothing to copy
        its beginning from, which a component has that needed nothing at `start`.
        """
        if any(map(lt, holding.kept, holding.exact)):
            keep = tuple(map(max, holding.kept, holding.exact))
            for component, (old, new) in enumerate(zip(holding.kept, keep, strict=True)):
                self._let_go(holding, component, old, new)
            self._journal.assign(holding, "kept", keep)

    # ---------------------------------------------------------------- snapshots

    def _make_room_for_snapshots(self, holding: Holding, key: bytes) -> list[int]:
        """Components that keep a snapshot now: there is none, it may be hit, and a page is to be had."""
        if self._is_hidden(holding.namespace) or not (wanted := self._snapshots.wanted(holding, key)):
            return []
        need = [0] * len(self.pools)
        for component in wanted:
            need[component] = 1
            if not self.space().covers(need):
                need[component] = 0
        self._make_room(need, holding.request)
        return [component for component, count in enumerate(need) if count]

    # ---------------------------------------------------------------- primitives

    def _add_pending(self, pending: Pending) -> None:
        assert pending.copy.source != pending.copy.target, pending
        self._journal.assign(self, "pending", (*self.pending, pending))

    def _is_hidden(self, namespace: Namespace) -> bool:
        """Whether no request to come can hit what lies there."""
        return namespace.private is not None or namespace.epoch != self.epoch

    def _seat(self, row: int, holding: Holding | None) -> None:
        before = self.holdings[row]
        assert (before is None) != (holding is None), (row, holding, before)
        self._journal.log(self.holdings.__setitem__, row, before)
        self.holdings[row] = holding

    def _end_copies(self, ended: list[Pending]) -> None:
        """One source at a time: two admissions may copy from the same page."""
        if not ended:
            return
        for pending in ended:
            assert pending in self.pending, (pending, self.pending)
            if pending.pin:
                self.pools[pending.copy.component].unreference(as_pages([pending.pin]))
        self._journal.assign(self, "pending", tuple(p for p in self.pending if p not in ended))

    def _purge_if_hidden(self, namespace: Namespace) -> None:
        """Nothing will hit a retired or private root again: what nobody reads there goes at once."""
        if not self._is_hidden(namespace):
            return
        root = self.tree.roots.get(namespace)
        if root is not None:
            purge(self.tree, root)
            self.forget_lost_snapshots()

    def forget_lost_snapshots(self) -> None:
        """After pages were reclaimed: nothing is copied into those."""
        if any(pending.snapshot_of is not None for pending in self.pending):
            self._journal.assign(self, "pending", self._snapshots.written(self.pending))

    def _require_live(self, holding: Holding) -> None:
        assert self.holdings[holding.row] is holding, (holding, self.holdings[holding.row])

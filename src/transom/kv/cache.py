"""The KV cache: HybridCache owns the memory of all requests: it shares, caches and evicts pages.

The life of a request:  admit -> (extend -> [runner] -> copies_done -> advance -> publish -> slide)* -> drop

    admit    takes a row and references the cached prefix
    extend   allocates pages for the tokens of the next step, and evicts if it must
    advance  notes that the runner has computed them
    publish  inserts whole pages into the radix tree
    slide    frees or unreferences pages that no later window reads
    drop     frees the row; published pages stay cached
"""

from collections.abc import Iterator, Sequence
from operator import add, lt
from typing import Final

import numpy as np
from numpy.typing import NDArray

from transom.errors import NoSpace
from transom.kv import layout as sizes
from transom.kv.budget import Budget, Capacity, PageCounts
from transom.kv.events import EventBatch, EventLog
from transom.kv.eviction import evict_for, purge
from transom.kv.explain import Explanation, explain
from transom.kv.fork import begin_fork, copy_of, private_entries, share_pages
from transom.kv.holding import Holding, Namespace, Offer, Pending, StartPoint
from transom.kv.journal import Journal, Transaction
from transom.kv.layout import CacheLayout, PrefixCaching
from transom.kv.match import Hit, holding_of, match_again, offer_of, start_options
from transom.kv.node import TOKEN_BYTES, as_key
from transom.kv.page_rules import Share
from transom.kv.page_table import PageTable
from transom.kv.pins import Pins
from transom.kv.pool import PagePool, as_pages, owner_of, present
from transom.kv.publish import Publisher
from transom.kv.radix_tree import RadixTree
from transom.kv.snapshots import SnapshotKeeper
from transom.kv.stats import CacheStats, Counters, component_stats
from transom.steps import Discard, PageCopy
from transom.values import RequestId, Tokens

__all__ = ["CacheLayout", "Holding", "HybridCache", "Namespace", "Offer", "PrefixCaching", "StartPoint"]


class HybridCache:
    """Owns the page pools, the page tables and the radix tree. Mutable.

    Queries change nothing. Each transition happens as a whole or, if it raises, not at all.
    """

    def __init__(self, layout: CacheLayout) -> None:
        """Raises ConfigError, naming the minimum, if not even one request can run token by token."""
        sizes.require_workable(layout)
        # One journal for all parts, so that a transaction can roll all of them back together.
        journal = Journal()
        self.layout: Final = layout
        self.rules: Final = layout.rules()
        self._pools = tuple(
            PagePool(component.name, pages, journal)
            for component, pages in zip(layout.components, layout.pages, strict=True)
        )
        self._tables = tuple(
            PageTable(layout.rows, rule.entries(layout.context), journal) for rule in self.rules
        )
        self._budget = Budget(layout.budget, layout.page_bytes, self._pools, journal)
        names = tuple(component.name for component in layout.components)
        self._log = EventLog(names, layout.page_size * TOKEN_BYTES, journal)
        # Without a budget, pools do not compete for bytes, and every page counts the same.
        costs = layout.page_bytes or (1,) * len(self._pools)
        self._tree = RadixTree(self._pools, self.rules, layout.policy.policy, costs, self._log, journal)
        self._pins = Pins(self._tree, self._log, layout.pin_tokens, journal)
        self._counters = Counters(len(self._pools), journal)
        self._holdings: list[Holding | None] = [None] * layout.rows
        """By row. A free row has no holding."""
        self._pending: tuple[Pending, ...] = ()
        self._epoch = 0
        self._journal = journal
        cold = Hit(self._tree.walk(Namespace(0, "", None), b""), StartPoint(0, 0, 0))
        self._cold = offer_of(cold.begin, cold.shares(self.rules), self._pools)
        self._snapshots = SnapshotKeeper(self._tree, self._tables, self.rules)
        self._publisher = Publisher(self._tree, self._tables, self.rules, self._counters)

    # ---------------------------------------------------------------- queries

    @property
    def page_size(self) -> int:
        """Tokens per page, the same in every component."""
        return self.layout.page_size

    @property
    def page_tables(self) -> tuple[NDArray[np.int32], ...]:
        """Per component, the array that kernels read: [rows, pages per row], 0 = no page. Not a copy."""
        return tuple([table.table for table in self._tables])

    @property
    def epoch(self) -> int:
        """The number of flushes so far. A request never hits pages of an earlier epoch."""
        return self._epoch

    @property
    def version(self) -> int:
        """Changes whenever the tree gains or loses pages. While it stays the same, so do offers."""
        return self._log.next

    @property
    def available(self) -> Capacity:
        """Capacity that can be allocated now, exactly: free pages, and unreferenced pages of the tree."""
        return self._budget.available

    def namespace(self, request: RequestId, salt: str) -> Namespace:
        """The namespace of a new request, in the current epoch. Without prefix caching it is its own."""
        alone = self.layout.prefix_caching is PrefixCaching.OFF
        return Namespace(self._epoch, salt, request if alone else None)

    def offer(self, namespace: Namespace, tokens: Tokens) -> Offer:
        """The offer that leaves the fewest tokens to compute, at least one. `cold()` if nothing is cached."""
        return next(self._offers(namespace, tokens, None))

    def offers(self, namespace: Namespace, tokens: Tokens, latest: int | None = None) -> tuple[Offer, ...]:
        """All offers, fewest tokens to compute first; the last is `cold()`. Starts are at most `latest`."""
        return tuple(self._offers(namespace, tokens, latest))

    def cold(self) -> Offer:
        """The offer to start at 0, which is always valid."""
        return self._cold

    def growth(self, held: Holding | StartPoint, end: int) -> PageCounts:
        """Pages that `extend(..., end)` would allocate for a holding, or right after admission at a start."""
        assert end >= 0, end
        return tuple([max(0, rule.entries(end) - rule.covered(held)) for rule in self.rules])

    def freed_by(self, holdings: Sequence[Holding]) -> PageCounts:
        """Pages that become available when all of `holdings` end: private, or read by no other row."""
        if not holdings:
            return (0,) * len(self._pools)
        rows = [holding.row for holding in holdings]
        freed = []
        for pool, table in zip(self._pools, self._tables, strict=True):
            entries = table.table[rows]
            # A page that several of the holdings share is freed if they are all of its readers. Private pages
            # have no references, so they always count.
            pages, readers = np.unique(entries[entries != 0], return_counts=True)
            freed.append(int(np.count_nonzero(pool.references(pages) <= readers)))
        return tuple(freed)

    def stop(self, start: int, end: int) -> int:
        """The furthest end, up to `end`, of a span from `start`: spans stop where a snapshot is kept."""
        assert start < end, (start, end)
        return min([rule.cut(start, end) for rule in self.rules])

    def longest_alone(self, chunk: int) -> int:
        """The longest request, in tokens, that fits an empty cache, computed `chunk` at a time."""
        return sizes.longest_alone(self.layout, chunk)

    def stats(self) -> CacheStats:
        """A snapshot of sizes and counters."""
        counts = self._counters.admissions
        return CacheStats(
            components=tuple(map(component_stats, self._pools, self._counters.traffic)),
            page_size=self.page_size,
            rows_used=sum(holding is not None for holding in self._holdings),
            epoch=self._epoch,
            admitted=counts.admitted,
            hits=counts.hits,
            hit_tokens=counts.hit_tokens,
            pages_copied=counts.pages_copied,
            repairs=counts.repairs,
        )

    def explain(self, namespace: Namespace, tokens: Tokens) -> Explanation:
        """Explains how much of `tokens` is cached, and why not more."""
        key = as_key(tokens, max(0, len(tokens) - 1))
        return explain(self._tree, self.layout.layers, self._log, namespace, key)

    def events(self, since: int) -> EventBatch:
        """Pages stored and removed, from event number `since` on."""
        return self._log.since(since)

    def pending_copies(self) -> tuple[PageCopy, ...]:
        """Copies to run, in order, before any kernel of the next step."""
        return tuple([pending.copy for pending in self._pending])

    def pending_discards(self) -> tuple[Discard, ...]:
        """Memory to return to the system, after the copies and before any kernel of the next step."""
        return self._budget.discards()

    # ---------------------------------------------------------------- transitions

    def transaction(self) -> Transaction:
        """A block that rolls back all its transitions if it raises."""
        return self._journal.transaction()

    def admit(
        self, request: RequestId, namespace: Namespace, tokens: Tokens, offer: Offer, *, priority: int = 0
    ) -> Holding:
        """Takes a row, references the offered prefix, and allocates the page that `start` lies in, if any.

        Raises NoSpace, which names `rows` when all are taken, `prefix` when the tree no longer has the pages
        of the offer, or a pool.
        """
        begin = offer.begin
        assert namespace.epoch == self._epoch, (namespace, self._epoch)
        assert begin.start < len(tokens) <= self.layout.context, (offer, len(tokens))
        assert begin.full_until < len(tokens), (offer, len(tokens))
        # The offer may be older than the last eviction, so the tree is searched again.
        hit = match_again(self._tree, namespace, tokens, begin)
        if hit is None:
            raise NoSpace("prefix", begin.full_until, 0)
        if None not in self._holdings:
            raise NoSpace("rows", 1, 0)
        shares, row = hit.shares(self.rules), self._holdings.index(None)
        if any(share.takes for share in shares):
            # Pages that the hit references now cannot be evicted for the pages that it takes.
            _, takes, pins = offer_of(begin, shares, self._pools)
            self._budget.require(tuple(map(add, takes, pins)))
        with self._journal.transaction():
            holding = holding_of(hit, shares, self.rules, request, namespace, row)
            holding.prompt, holding.priority = len(tokens), priority
            self._begin(holding, hit, shares)
        return holding

    def extend(self, holding: Holding, end: int) -> None:
        """Allocates pages up to `end` in every component; evicts if free pages are short. Raises NoSpace."""
        self._require_live(holding)
        assert end <= self.layout.context, (end, self.layout.context)
        if end <= holding.allocated:
            return
        growth = self.growth(holding, end)
        with self._journal.transaction():
            # For all components together, before any of them allocates, because they may share a budget.
            self._evict_for(growth, holding.request)
            for component, (rule, count) in enumerate(zip(self.rules, growth, strict=True)):
                self._allocate(holding.row, component, rule.covered(holding), count)
            self._budget.settle()
            self._journal.assign(holding, "allocated", end)

    def advance(self, holding: Holding, end: int) -> None:
        """The runner has computed the tokens up to `end`."""
        self._require_live(holding)
        assert holding.computed < end <= holding.allocated, (holding, end)
        for pending in self._pending:
            assert not pending.concerns(holding), "its copies have not run"
        self._journal.assign_alone(holding, "computed", end)

    def truncate(self, holding: Holding, end: int) -> None:
        """Frees the pages beyond `end`, which must be at least `computed`."""
        self._require_live(holding)
        assert holding.computed <= end <= holding.allocated, (holding, end)
        before = [rule.covered(holding) for rule in self.rules]
        with self._journal.transaction():
            # First, because `covered` depends on it.
            self._journal.assign(holding, "allocated", end)
            for component, (rule, last) in enumerate(zip(self.rules, before, strict=True)):
                self._free_private(holding, component, rule.covered(holding), last)

    def publish(self, holding: Holding, tokens: Tokens) -> None:
        """Inserts the computed whole pages into the tree. `tokens`: at least the request's computed ones.

        Never raises NoSpace: a snapshot is kept only if a page is available. Afterwards the row names pages
        of the tree wherever it has not slid. While a repair still reads inexact pages, nothing is published.
        """
        self._require_live(holding)
        assert len(tokens) >= holding.computed, (len(tokens), holding)
        whole = holding.computed // self.layout.page_size
        if whole <= holding.published:
            return
        keep = self._keeps(holding)
        if holding.reads_inexact(keep):
            return
        with self._journal.transaction():
            self._tree.clock.tick()  # new nodes count as used now
            self._let_go_of_inexact(holding)
            key = as_key(tokens, whole * self.layout.page_size)
            # Before the path exists: evicting may change nodes that the path would name.
            kept = self._evict_for_snapshots(holding, key)
            path = self._publisher.publish(holding, key, whole)
            for component in kept:
                self._add_pending(self._snapshots.keep(holding, path, component, key))
            self._budget.settle()
            # Only pages that the request would resume from count as used: older windows may be evicted.
            self._tree.use(path, keep, hit=False, priority=holding.priority)
            # Where the row has slid, the new end may have no page in any component.
            self._tree.trim(path.end)
            self._journal.assign(holding, "published", whole)

    def slide(self, holding: Holding) -> None:
        """Frees or unreferences pages that no later token of the request reads."""
        self._require_live(holding)
        keep = tuple([rule.first_entry(holding.computed) for rule in self.rules])
        if keep == holding.kept:
            return
        with self._journal.transaction():
            for component, (old, new) in enumerate(zip(holding.kept, keep, strict=True)):
                self._let_go(holding, component, old, max(old, new))
            # `kept` may already be further: `_let_go_of_inexact` slides early.
            self._journal.assign(holding, "kept", tuple(map(max, holding.kept, keep)))
            self._purge_if_hidden(holding.namespace)

    def drop(self, holding: Holding) -> None:
        """Ends the holding: frees its private pages, releases its references. Does not publish."""
        self._require_live(holding)
        with self._journal.transaction():
            if self._pending:
                self._end_copies([p for p in self._pending if p.holding is holding and p.snapshot_of is None])
                # A snapshot that is not copied yet is kept all the same: the row's own page takes its place.
                self._journal.assign(self, "_pending", self._snapshots.keep_own_pages(holding, self._pending))
            for component, rule in enumerate(self.rules):
                self._let_go(holding, component, holding.kept[component], rule.covered(holding))
            self._seat(holding.row, None)
            self._purge_if_hidden(holding.namespace)
            # Slides end references too, but come with every step. Skipped nodes are looked at again when a
            # request ends, or when no other candidate is left.
            self._tree.end_skips()

    def fork(self, holding: Holding, request: RequestId, tokens: Tokens) -> Holding:
        """A second holding at the position of `holding`: whole pages are shared, the rest is copied.

        `tokens`: at least the computed ones. Raises NoSpace. `holding` must not compute before the copies
        have run, as they read its pages. A pending snapshot of `holding` may wait: it only reads, too.
        A repair must have computed up to `full_until` first.
        """
        self._require_live(holding)
        # Until then the row names full pages of tokens that the parent has yet to compute. The child would
        # share them, although it may continue with other tokens.
        assert holding.computed >= holding.full_until, (
            "fork before full_until",
            holding.computed,
            holding.full_until,
        )
        assert not any(p.holding is holding and p.snapshot_of is None for p in self._pending), self._pending
        if None not in self._holdings:
            raise NoSpace("rows", 1, 0)
        with self._journal.transaction():
            # What is published is shared, and need not be copied.
            self.publish(holding, tokens)
            child = begin_fork(holding, request, self._holdings.index(None), len(tokens))
            self._seat(child.row, child)
            share_pages(self._tables, self._pools, self.rules, holding, child)
            own = private_entries(self._tables, self.rules, holding)
            self._evict_for([len(entries) for entries in own], request)
            for component, entries in enumerate(own):
                for entry in entries:
                    self._allocate(child.row, component, entry, 1)
                    table, rule = self._tables[component], self.rules[component]
                    copy = copy_of(table, rule, component, holding, child, entry)
                    self._add_pending(Pending(child, copy, pin=0, reads=holding))
            self._budget.settle()
        return child

    def pin(self, namespace: Namespace, tokens: Tokens, steps: int) -> int:
        """Pins the cached prefix of `tokens`: evicted last for `steps` steps. Returns its tokens.

        Changes the order of evictions and holds no page. Raises NoSpace (`pins`) beyond `layout.pin_tokens`.
        """
        with self._journal.transaction():
            return self._pins.add(namespace, as_key(tokens, len(tokens)), steps)

    def copies_done(self) -> None:
        """A step has been computed, its copies and discards included: releases the pages that copies read."""
        with self._journal.transaction():
            self._journal.assign(self._log, "step", self._log.step + 1)
            self._pins.expire()
            self._budget.discards_done()
            done = self._pending
            self._end_copies(list(done))
            assert not self._pending, self._pending
            # A flush keeps the sources of copies. If it came before the copies ran, they go now.
            for namespace in {pending.holding.namespace for pending in done}:
                self._purge_if_hidden(namespace)

    def copies_failed(self) -> frozenset[RequestId]:
        """A step failed: withdraws pending snapshots. Returns the requests that may lack their copies."""
        readers = [pending for pending in self._pending if pending.snapshot_of is None]
        with self._journal.transaction():
            # Copies for hits and forks may have run or not, so the caller must end their requests. Snapshots
            # may be written or not, so no request may hit them.
            self._end_copies(readers)
            self._snapshots.withdraw(self._pending)
            self.copies_done()
        return frozenset([pending.holding.request for pending in readers])

    def flush(self) -> None:
        """Starts a new epoch: no request hits pages cached so far. Running requests continue.

        They publish in the namespace of the old epoch. Its pages are freed as references end.
        """
        with self._journal.transaction():
            self._journal.assign(self, "_epoch", self._epoch + 1)
            self._log.clear(self._epoch)
            for root in list(self._tree.roots.values()):
                purge(self._tree, root)
            self._forget_lost_snapshots()

    # ---------------------------------------------------------------- admission

    def _offers(self, namespace: Namespace, tokens: Tokens, latest: int | None) -> Iterator[Offer]:
        """Lazily, fewest tokens to compute first. Valid until the tree changes."""
        for hit in start_options(self._tree, self.layout.layers, namespace, tokens, latest=latest):
            yield offer_of(hit.begin, hit.shares(self.rules), self._pools)
        yield self._cold

    def _begin(self, holding: Holding, hit: Hit, shares: list[Share]) -> None:
        """Seats the holding and references the hit, then allocates, so that no page of the hit is evicted."""
        self._tree.clock.tick()
        self._seat(holding.row, holding)
        for pool, table, share in zip(self._pools, self._tables, shares, strict=True):
            if len(share.pages):
                # Holes before the first page that the request reads stay holes in its row.
                pool.reference(present(share.pages))
                table.write(holding.row, share.kept, share.pages)
        self._tree.use(hit.path, self._keeps(holding), hit=True, priority=holding.priority)
        takes = [share.takes for share in shares]
        if any(takes):
            self._allocate_own(holding, shares, takes)
        self._counters.admit(hit.begin, len([share for share in shares if share.source]))

    def _allocate_own(self, holding: Holding, shares: list[Share], takes: list[int]) -> None:
        """Allocates the pages that are private from the start and notes the copies into them."""
        # Sources stay referenced until the copies have run: `Pending.pin`.
        for pool, share in zip(self._pools, shares, strict=True):
            if share.source:
                pool.reference(as_pages([share.source]))
        self._evict_for(takes, holding.request)
        for component, (rule, share) in enumerate(zip(self.rules, shares, strict=True)):
            if not share.takes:
                continue
            entry = rule.shared(holding)
            self._allocate(holding.row, component, entry, 1)
            if share.source:
                target = int(self._tables[component].table[holding.row, entry])
                copy = PageCopy(component, share.source, target, rule.slots(entry, holding.start))
                self._add_pending(Pending(holding, copy, pin=share.source))
        self._budget.settle()

    # ---------------------------------------------------------------- pages of a row

    def _evict_for(self, need: Sequence[int], request: RequestId) -> None:
        """Evicts until `need` pages of each component can be allocated. Raises NoSpace."""
        assert len(need) == len(self._pools), need
        self._log.request = request  # evictions are recorded as made for this request
        evict_for(self._tree, self._budget, self._counters, need)
        self._forget_lost_snapshots()

    def _allocate(self, row: int, component: int, first: int, count: int) -> None:
        """Allocates `count` pages for the entries from `first` on. They must be free."""
        assert first >= 0 and count >= 0, (row, component, first, count)
        if not count:
            return
        self._tables[component].write(row, first, self._pools[component].allocate(count, owner_of(row)))

    def _let_go(self, holding: Holding, component: int, start: int, end: int) -> None:
        """Clears entries [start, end): unreferences pages of the tree, frees private ones."""
        # Entries before `middle` name pages of the tree, later ones private pages.
        middle = min(self.rules[component].shared(holding), end)
        if start < middle:
            pages = self._tables[component].clear(holding.row, start, middle)
            self._pools[component].unreference(pages)
            start = middle
        self._free_private(holding, component, start, end)

    def _free_private(self, holding: Holding, component: int, start: int, end: int) -> None:
        if start >= end:
            return
        assert start >= self.rules[component].shared(holding), (holding, start, end)
        pages = self._tables[component].clear(holding.row, start, end)
        self._pools[component].free_private(pages, owner_of(holding.row))

    def _let_go_of_inexact(self, holding: Holding) -> None:
        """Lets go of pages that must not get into the tree. All windows have passed them, so they may slide.

        There are two kinds: pages that a repair computed before windows are exact; and a page begun in its
        middle without a source for its first tokens, in a component that needed nothing at `start`.
        """
        if any(map(lt, holding.kept, holding.exact)):
            keep = tuple(map(max, holding.kept, holding.exact))
            for component, (old, new) in enumerate(zip(holding.kept, keep, strict=True)):
                self._let_go(holding, component, old, new)
            self._journal.assign(holding, "kept", keep)

    # ---------------------------------------------------------------- snapshots

    def _evict_for_snapshots(self, holding: Holding, key: bytes) -> list[int]:
        """The components that keep a snapshot now, with a free page for each.

        A component keeps one if it has none there yet, the namespace can be hit, and a page is available.
        """
        if self._is_hidden(holding.namespace) or not (wanted := self._snapshots.wanted(holding, key)):
            return []
        need = [0] * len(self._pools)
        for component in wanted:
            need[component] = 1
            # One by one: under a budget, components compete for the same bytes.
            if not self.available.covers(need):
                need[component] = 0
        self._evict_for(need, holding.request)
        return [component for component, count in enumerate(need) if count]

    # ---------------------------------------------------------------- primitives

    def _add_pending(self, pending: Pending) -> None:
        assert pending.copy.source != pending.copy.target, pending
        self._journal.assign(self, "_pending", (*self._pending, pending))

    def _keeps(self, holding: Holding) -> tuple[int, ...]:
        """Per component: the first page needed to resume at the last page boundary that is computed."""
        computed = holding.computed
        return tuple([rule.keep(computed) for rule in self.rules])

    def _is_hidden(self, namespace: Namespace) -> bool:
        """Whether no future request can hit pages of `namespace`."""
        return namespace.private is not None or namespace.epoch != self._epoch

    def _seat(self, row: int, holding: Holding | None) -> None:
        """Gives the row to `holding`, or frees it."""
        before = self._holdings[row]
        assert (before is None) != (holding is None), (row, holding, before)
        self._journal.log(self._holdings.__setitem__, row, before)
        self._holdings[row] = holding

    def _end_copies(self, ended: list[Pending]) -> None:
        """Forgets the copies and releases the pages that they referenced."""
        if not ended:
            return
        for pending in ended:
            assert pending in self._pending, (pending, self._pending)
            # One by one: two admissions may copy from the same page, and a pool takes distinct pages only.
            if pending.pin:
                self._pools[pending.copy.component].unreference(as_pages([pending.pin]))
        self._journal.assign(self, "_pending", tuple(p for p in self._pending if p not in ended))

    def _purge_if_hidden(self, namespace: Namespace) -> None:
        """Frees unreferenced pages of a namespace that no request can hit, at once and not by eviction."""
        if not self._is_hidden(namespace):
            return
        root = self._tree.roots.get(namespace)
        if root is not None:
            purge(self._tree, root)
            self._forget_lost_snapshots()

    def _forget_lost_snapshots(self) -> None:
        """Forgets pending snapshots if their page has been evicted. Call after every eviction."""
        if any(pending.snapshot_of is not None for pending in self._pending):
            self._journal.assign(self, "_pending", self._snapshots.without_evicted(self._pending))

    def _require_live(self, holding: Holding) -> None:
        assert self._holdings[holding.row] is holding, (holding, self._holdings[holding.row])

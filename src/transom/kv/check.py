"""Checks all invariants of a cache, and gives tests access to its private parts.

The check recounts everything from the tree, the page tables and the free lists, and compares the result with
the counters that the cache works with. It is slow on purpose: it trusts no counter. Numbers in docstrings
refer to the list of invariants in ARCHITECTURE.md.

Every part is a generator that pauses after each node, row or stretch of pages, so that an idle engine can
check in slices. Findings about pages are kept in flat arrays by page id: a dict of 200,000 pages would take
tens of milliseconds to free when a check is abandoned.
"""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from operator import ge, le

import numpy as np

from transom.kv.budget import Budget
from transom.kv.cache import HybridCache
from transom.kv.children import child_of
from transom.kv.events import EventLog
from transom.kv.eviction import evict as evict_from_tree
from transom.kv.holding import Holding, Pending
from transom.kv.journal import Journal
from transom.kv.layout import CacheLayout
from transom.kv.node import Node, Root, joined, residency
from transom.kv.page_rules import PageRule
from transom.kv.page_table import PageTable
from transom.kv.pins import Pins
from transom.kv.pool import FREE, TREE, PagePool, owner_of
from transom.kv.radix_tree import RadixTree
from transom.kv.stats import Counters

Work = Iterator[int]
"""A check in progress: the pages, nodes and rows that it has looked at since it last paused."""

SLICE_WORK = 1024
"""Work of one slice: about a millisecond, which a request that arrives meanwhile has to wait."""

STRETCH = 512
"""Pages of a pool or entries of a queue that are looked at without a pause."""

UNKNOWN = -1


@dataclass(frozen=True, slots=True, eq=False)
class Inside:
    """The private parts of a cache, for inspection: this check, the fuzzer, stories and tests.

    The parts are the cache's own. Only `pending` and `epoch` are values of the moment.
    """

    layout: CacheLayout
    rules: tuple[PageRule, ...]
    pools: tuple[PagePool, ...]
    tables: tuple[PageTable, ...]
    tree: RadixTree
    budget: Budget
    log: EventLog
    pins: Pins
    counters: Counters
    holdings: list[Holding | None]
    pending: tuple[Pending, ...]
    epoch: int
    journal: Journal


def inside(cache: HybridCache) -> Inside:
    """The private parts of `cache`. No other code outside the class may read them."""
    return Inside(
        layout=cache.layout,
        rules=cache.rules,
        pools=cache._pools,
        tables=cache._tables,
        tree=cache._tree,
        budget=cache._budget,
        log=cache._log,
        pins=cache._pins,
        counters=cache._counters,
        holdings=cache._holdings,
        pending=cache._pending,
        epoch=cache.epoch,
        journal=cache._journal,
    )


def evict(cache: HybridCache, component: int, count: int) -> None:
    """Evicts at least `count` unreferenced pages of a component, as an allocation under pressure does."""
    with cache.transaction():
        evict_from_tree(cache._tree, component, count)
        cache._forget_lost_snapshots()


def check(cache: HybridCache) -> None:
    """Checks every invariant of the cache. Raises AssertionError with the values that disagree."""
    for _ in _check(inside(cache)):
        pass


def check_slices(cache: HybridCache) -> Work:
    """`check` in slices. Yields the work of each slice, which does not depend on the size of the cache.

    A slice ends after SLICE_WORK, but never within a node or a row, whose sizes the context bounds. The cache
    must not change between two slices: after a change, start again.
    """
    done = 0
    for work in _check(inside(cache)):
        done += work
        if done >= SLICE_WORK:
            yield done
            done = 0


def _check(parts: Inside) -> Work:
    for namespace, root in parts.tree.roots.items():
        assert root.namespace == namespace, (namespace, root)
        yield from _check_shape(parts, root)
        yield from _check_references_along(parts, root)
    recounts = tuple(map(Recount, parts.pools))
    nodes: list[Node] = []
    yield from _recount_tree(parts, nodes, recounts)
    yield from _recount_free(recounts)
    for row, holding in enumerate(parts.holdings):
        if holding is None:
            for table in parts.tables:
                assert not table.table[row].any(), (row, "a row without a holding names pages")
            yield 1
        else:
            assert holding.row == row, (row, holding)
            yield from _recount_row(parts, holding, recounts)
            yield from _check_holding(parts, holding, nodes, recounts)
    for recount in recounts:
        yield from _check_pool(parts, recount)
    yield from _check_queues(parts, nodes)
    _check_budget(parts, recounts)


# ---------------------------------------------------------------- owners and readers of pages


class Recount:
    """Owns what the check finds out about the pages of one pool. Arrays are indexed by page id; mutable.

    owners  the owner, in the pool's terms, or UNKNOWN
    readers rows and pending copies that read the page from the tree
    nodes   for a page of the tree: the number of its node, in the order of the walk
    places  for a page of the tree: its index from the root
    """

    __slots__ = ("nodes", "owned", "owners", "places", "pool", "readers", "tree")

    def __init__(self, pool: PagePool) -> None:
        size = pool.capacity + 1
        self.pool = pool
        self.owners = array("i", [UNKNOWN]) * size
        self.readers, self.nodes, self.places = (array("i", [0]) * size for _ in range(3))
        self.tree = 0
        """Pages of the tree."""
        self.owned = 0
        """Pages with an owner: in the tree or private."""

    def claim(self, page: int, owner: int) -> None:
        """1: every page has exactly one owner."""
        assert 0 < page <= self.pool.capacity, (self.pool.name, page, owner)
        assert self.owners[page] == UNKNOWN, (self.pool.name, page, "two owners", self.owners[page], owner)
        self.owners[page] = owner
        self.tree += owner == TREE
        self.owned += owner != FREE

    def read(self, page: int, reader: object) -> None:
        """2: only pages of the tree are referenced."""
        assert self.owners[page] == TREE, (self.pool.name, page, "is read but not in the tree", reader)
        self.readers[page] += 1


def _recount_tree(parts: Inside, nodes: list[Node], recounts: tuple[Recount, ...]) -> Work:
    """Fills `nodes` and notes where the pages of the tree lie."""
    for node in chain.from_iterable(map(_below, parts.tree.roots.values())):
        hidden = node.namespace.private is not None or node.namespace.epoch != parts.epoch
        for recount, pages in zip(recounts, node.pages, strict=True):
            # Namespaces that no request can hit contain referenced pages only.
            held = pages[pages != 0] if hidden else pages[:0]
            assert (recount.pool.references(held) > 0).all(), (node, held)
            for place, page in enumerate(pages.tolist(), node.start):
                if page:
                    recount.claim(page, TREE)
                    recount.nodes[page], recount.places[page] = len(nodes), place
        nodes.append(node)
        yield 1 + node.size * len(recounts)
    for pending in parts.pending:
        if pending.pin:
            recounts[pending.copy.component].read(pending.pin, pending)


def _recount_free(recounts: tuple[Recount, ...]) -> Work:
    for recount in recounts:
        free = recount.pool.free_pages()
        for start in range(0, len(free), STRETCH):
            for page in free[start : start + STRETCH].tolist():
                recount.claim(page, FREE)
            yield STRETCH


def _recount_row(parts: Inside, holding: Holding, recounts: tuple[Recount, ...]) -> Work:
    """The row reads its first pages from the tree and owns the later ones."""
    for recount, table, rule in zip(recounts, parts.tables, parts.rules, strict=True):
        entries, shared = table.table[holding.row].tolist(), rule.shared(holding)
        for entry, page in enumerate(entries):
            if page and entry < shared:
                recount.read(page, holding)
            elif page:
                recount.claim(page, owner_of(holding.row))
        yield 1 + len(entries)


def _check_pool(parts: Inside, recount: Recount) -> Work:
    """1 and 2: the pool has recorded every page's owner and, as reference count, the number of readers."""
    pool, recorded = recount.pool, recount.pool.owners()
    owners, readers = (np.frombuffer(found, np.int32) for found in (recount.owners, recount.readers))
    assert recorded[0] == FREE and owners[0] == UNKNOWN, (pool.name, recorded[0], "page 0 has an owner")
    idle = 0
    for start in range(1, pool.capacity + 1, STRETCH):
        pages = np.arange(start, min(start + STRETCH, pool.capacity + 1))
        wrong = pages[recorded[pages] != owners[pages]]
        # A page that nothing claims is UNKNOWN here: it is lost.
        assert not len(wrong), (pool.name, wrong, recorded[wrong], owners[wrong])
        wrong = pages[pool.references(pages) != readers[pages]]
        assert not len(wrong), (pool.name, wrong, pool.references(wrong), readers[wrong])
        idle += int(np.count_nonzero((owners[pages] == TREE) & (readers[pages] == 0)))
        yield len(pages)
    assert (pool.tree, pool.idle) == (recount.tree, idle), (
        pool.name,
        pool.tree,
        recount.tree,
        pool.idle,
        idle,
    )


def _check_budget(parts: Inside, recounts: tuple[Recount, ...]) -> None:
    """7: bytes in use are the sum over pools; with free touched pages they never exceed the budget."""
    layout = parts.layout
    if layout.budget is None:
        return
    owned = [recount.owned for recount in recounts]
    in_use = sum(count * size for count, size in zip(owned, layout.page_bytes, strict=True))
    assert in_use == parts.budget.in_use(), (owned, in_use, parts.budget.in_use())
    assert in_use <= parts.budget.touched() <= layout.budget, (in_use, parts.budget.touched(), layout.budget)
    for pool in parts.pools:
        assert 0 <= pool.untouched <= pool.free, (pool.name, pool.untouched, pool.free)


# ---------------------------------------------------------------- the tree


def _below(root: Root) -> Iterator[Node]:
    """Every node but the root, parents first."""
    # Iterators, so that a node with many children is not copied at once.
    stack = [iter(root.children)]
    while stack:
        node = next(stack[-1], None)
        if node is None:
            stack.pop()
        else:
            yield node
            stack.append(iter(node.children))


def _check_references_along(parts: Inside, root: Root) -> Work:
    """3: references never grow along a path, and a referenced page has its full pages referenced."""
    whole = [c for c in range(len(parts.pools)) if c not in parts.tree.sparse]
    if not whole:
        return
    for node in _below(root):
        pairs = zip(parts.pools, node.pages, strict=True)
        counts: list[list[int]] = [pool.references(pages).tolist() for pool, pages in pairs]
        for full in whole:
            assert all(map(ge, counts[full], counts[full][1:])), (node, full, counts)
            for component, other in enumerate(counts):
                assert all(map(le, other, counts[full])), (node, component, other, counts[full])
        yield 1 + node.size * len(counts)
        below = [0] * len(counts)
        for child in node.children:
            for full in whole:
                below[full] += int(parts.pools[full].references([child.page(full, 0)])[0])
            yield 1
        for full in whole:
            assert below[full] <= counts[full][-1], (node, full, counts[full], below[full])


def _check_shape(parts: Inside, root: Root) -> Work:
    """4: the shape of the tree below one root."""
    assert root.children and not root.key and root.parent is None, root
    assert root.start == 0, root
    yield from _check_children(parts, root)
    for node in _below(root):
        _check_node(parts, node)
        yield 1 + node.size * len(parts.pools)
        yield from _check_children(parts, node)


def _check_children(parts: Inside, node: Node) -> Work:
    above, before, page_bytes = joined(node.above, node.key), b"", parts.tree.page_bytes
    for child in node.children:
        first = child.key[:page_bytes]
        assert before < first and child_of(node.children, first) is child, (node, before, first)
        before = first
        assert child.start == node.start + node.size and child.namespace == node.namespace, (node, child)
        assert joined(child.above) == above, (node, child, child.above)
        assert child.parent is node, (node, child)
        # Comparing the tokens above costs little per page, but there may be many pages.
        yield 3 + child.start // 64


def _check_node(parts: Inside, node: Node) -> None:
    assert node.key and len(node.key) == node.size * parts.tree.page_bytes, node
    assert all(len(pages) == node.size and pages.dtype == np.int64 for pages in node.pages), node
    assert node.resident == residency(node.runs), node
    assert node.children or any(pages[-1] for pages in node.pages), (node, "a leaf ends with a hole")
    for component, resident in enumerate(node.resident):
        assert component in parts.tree.sparse or 0 not in resident, (node, component, "a hole")


def _check_queues(parts: Inside, nodes: list[Node]) -> Work:
    """Each eviction queue has every node with pages to evict once."""
    for group, component in enumerate(parts.tree.groups):
        queue, is_sparse = parts.tree.queues[group], component in parts.tree.sparse
        entered: set[int] = set()
        for numbers in queue.entered():
            entered.update(numbers)
            yield len(numbers)
        queued = 0
        for node in nodes:
            expected = 1 in node.resident[component] and (is_sparse or not node.children)
            assert parts.tree.numbers.items[node.number] is node, (component, node, node.number)
            assert bool(queue.queued[node.number]) == expected, (component, node, expected)
            assert not expected or node.number in entered, (component, node, "is queued without an entry")
            queued += expected
            yield 1
        # Every node of the tree is right, so any further candidate belongs to a node that is gone.
        assert queued == len(queue), (component, queued, len(queue))


# ---------------------------------------------------------------- rows


def _check_holding(parts: Inside, holding: Holding, nodes: list[Node], recounts: tuple[Recount, ...]) -> Work:
    """5 and 6: a row covers the pages that its request needs, and only computed pages are published."""
    page_size = parts.layout.page_size
    assert 0 <= holding.start <= holding.computed <= holding.allocated <= parts.layout.context, holding
    assert holding.published * page_size <= holding.computed, holding
    for component, rule in enumerate(parts.rules):
        entries = parts.tables[component].table[holding.row]
        last = rule.covered(holding)
        # The first entry that the next token reads. A state has one entry.
        needed = min(rule.needed(holding.computed), last - 1)
        kept = holding.kept[component]
        first = max(rule.first_entry(holding.computed), holding.clip // page_size)
        assert kept <= first, (holding, component)
        # Until it has published, a repair still keeps its inexact pages.
        untouched = holding.published == holding.start // page_size
        assert untouched or kept >= holding.exact[component], (
            holding,
            component,
            "published inexact pages",
        )
        assert entries[max(kept, needed) : last].all(), (holding, component, entries)
        assert not entries[:kept].any() and not entries[last:].any(), (holding, component, entries)
        yield from _check_path(parts, holding, nodes, recounts[component], component)


def _check_path(parts: Inside, holding: Holding, nodes: list[Node], recount: Recount, component: int) -> Work:
    """The pages of the tree that a row names lie at the row's positions, in its namespace, on one path."""
    entries = parts.tables[component].table[holding.row, : parts.rules[component].shared(holding)]
    named: list[Node] = []
    for index, page in enumerate(entries.tolist()):
        if page:
            node, place = nodes[recount.nodes[page]], recount.places[page]
            assert (node.namespace, place) == (holding.namespace, index), (holding, component, page, place)
            if not named or node is not named[-1]:
                named.append(node)
    above = set(map(id, _ancestors(named[-1]))) if named else set()
    assert all(id(node) in above for node in named), (holding, component, named)
    yield 1 + len(entries) + len(above)


def _ancestors(node: Node) -> list[Node]:
    """The node and all nodes above it."""
    ancestors = [node]
    while node.parent is not None:
        node = node.parent
        ancestors.append(node)
    return ancestors

"""Checks all invariants of a cache, and gives tests access to its private parts.

The check recounts everything from the tree, the page tables and the free lists, and compares the result with
the counters that the cache works with. It is slow on purpose: it trusts no counter. Numbers in docstrings
refer to the list of invariants in ARCHITECTURE.md.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from operator import ge, le

import numpy as np

from transom.kv.budget import Budget
from transom.kv.cache import HybridCache
from transom.kv.events import EventLog
from transom.kv.eviction import evict as evict_from_tree
from transom.kv.holding import Holding, Namespace, Pending
from transom.kv.journal import Journal
from transom.kv.layout import CacheLayout
from transom.kv.node import Node, Root, residency
from transom.kv.page_rules import PageRule
from transom.kv.page_table import PageTable
from transom.kv.pins import Pins
from transom.kv.pool import FREE, TREE, PagePool, owner_of
from transom.kv.radix_tree import RadixTree
from transom.kv.stats import Counters

Position = tuple[Namespace, Node, int]
"""Where a page of the tree lies: the namespace, the node, the page index from the root."""


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
    parts = inside(cache)
    for root in parts.tree.roots.values():
        _check_shape(parts, root)
        _check_references_along(parts, root)
    positions = tuple(_positions(parts, component) for component in range(len(parts.pools)))
    for component, by_page in enumerate(positions):
        _check_owners(parts, component, by_page)
        _check_references(parts, component, by_page)
        _check_hidden(parts, component, by_page)
    for row, holding in enumerate(parts.holdings):
        if holding is not None:
            assert holding.row == row, (row, holding)
            _check_holding(parts, holding)
            for component, by_page in enumerate(positions):
                _check_path(parts, holding, component, by_page)
    unused = [row for row, holding in enumerate(parts.holdings) if holding is None]
    for table in parts.tables:
        assert not table.table[unused].any(), (unused, "rows without a holding name pages", table.table)
    _check_queues(parts)
    _check_budget(parts)


# ---------------------------------------------------------------- owners and readers of pages


def _check_budget(parts: Inside) -> None:
    """7: bytes in use are the sum over pools; with free touched pages they never exceed the budget."""
    layout = parts.layout
    if layout.budget is None:
        return
    owned = [int(np.count_nonzero(pool.owners() != FREE)) for pool in parts.pools]
    in_use = sum(count * size for count, size in zip(owned, layout.page_bytes, strict=True))
    assert in_use == parts.budget.in_use(), (owned, in_use, parts.budget.in_use())
    assert in_use <= parts.budget.touched() <= layout.budget, (in_use, parts.budget.touched(), layout.budget)
    for pool in parts.pools:
        assert 0 <= pool.untouched <= pool.free, (pool.name, pool.untouched, pool.free)


def _nodes(parts: Inside) -> list[tuple[Namespace, Node, int]]:
    """Every node except roots, with its namespace and first page index; parents first."""
    nodes: list[tuple[Namespace, Node, int]] = []
    for namespace, root in parts.tree.roots.items():
        stack: list[tuple[Node, int]] = [(child, 0) for child in root.children.values()]
        while stack:
            node, start = stack.pop()
            nodes.append((namespace, node, start))
            stack.extend((child, start + node.size) for child in node.children.values())
    return nodes


def _positions(parts: Inside, component: int) -> dict[int, Position]:
    """The position of each page of the tree. A page in two positions is an error."""
    positions: dict[int, Position] = {}
    for namespace, node, start in _nodes(parts):
        for index, page in enumerate(node.pages[component].tolist()):
            if page:
                assert page not in positions, (component, page, node, positions[page])
                positions[page] = (namespace, node, start + index)
    return positions


def _named(parts: Inside, component: int, holding: Holding, start: int, end: int) -> list[int]:
    """The pages in entries [start, end) of the holding's row."""
    return [page for page in parts.tables[component].table[holding.row, start:end].tolist() if page]


def _check_owners(parts: Inside, component: int, positions: dict[int, Position]) -> None:
    """1: every page has exactly one owner; page 0 has no owner."""
    pool = parts.pools[component]
    owners: dict[int, int] = dict.fromkeys(positions, TREE)
    free = pool.free_pages().tolist()
    private = [
        (page, owner_of(holding.row))
        for holding in parts.holdings
        if holding is not None
        for page in _named(
            parts, component, holding, holding.shared(parts.rules[component]), parts.layout.context
        )
    ]
    for page, owner in [(page, FREE) for page in free] + private:
        assert page not in owners, (pool.name, page, "has two owners:", owners[page], owner)
        owners[page] = owner
    assert owners.keys() == set(range(1, pool.capacity + 1)), (pool.name, "lost or unknown pages", owners)
    owners[0] = FREE
    recorded = dict(enumerate(pool.owners().tolist()))
    assert recorded == owners, (pool.name, recorded, owners)
    assert (pool.free, pool.tree) == (len(free), len(positions)), (pool.name, pool.free, pool.tree)


def _check_references(parts: Inside, component: int, positions: dict[int, Position]) -> None:
    """2: a page's reference count is the number of rows and pending copies that read it from the tree."""
    pool = parts.pools[component]
    readers: Counter[int] = Counter()
    for holding in parts.holdings:
        if holding is not None:
            readers.update(_named(parts, component, holding, 0, holding.shared(parts.rules[component])))
    readers.update(p.pin for p in parts.pending if p.copy.component == component and p.pin)
    assert readers.keys() <= positions.keys(), (
        pool.name,
        "referenced but not in the tree",
        readers,
        positions,
    )
    recorded = pool.references(np.arange(pool.capacity + 1)).tolist()
    assert recorded == [readers[page] for page in range(pool.capacity + 1)], (pool.name, recorded, readers)
    assert pool.idle == len(positions.keys() - readers.keys()), (pool.name, pool.idle)


def _check_hidden(parts: Inside, component: int, positions: dict[int, Position]) -> None:
    """Namespaces that no request can hit contain referenced pages only."""
    for page, (namespace, node, _) in positions.items():
        if namespace.private is not None or namespace.epoch != parts.epoch:
            assert parts.pools[component].references([page])[0] > 0, (namespace, node, page)


# ---------------------------------------------------------------- the tree


def _check_references_along(parts: Inside, root: Root) -> None:
    """3: references never grow along a path, and a referenced page has its full pages referenced."""
    keeps_all = [c for c in range(len(parts.pools)) if parts.tree.keeps_all[c]]
    if not keeps_all:
        return
    # By node and component: the reference count of each page.
    counted: dict[Node, list[list[int]]] = {root: [[0]] * len(parts.pools)}
    for node in _below(root):
        pairs = zip(parts.pools, node.pages, strict=True)
        counted[node] = [pool.references(pages).tolist() for pool, pages in pairs]
    for node, counts in counted.items():
        for full in keeps_all:
            below = sum(counted[child][full][0] for child in node.children.values())
            falling = all(map(ge, counts[full], counts[full][1:]))
            assert node is root or (falling and below <= counts[full][-1]), (node, counts, below)
            for component, other in enumerate(counts):
                assert all(map(le, other, counts[full])), (node, component, other, counts[full])


def _below(root: Root) -> Iterator[Node]:
    """Every node but the root, parents first."""
    stack: list[Node] = list(root.children.values())
    while stack:
        node = stack.pop()
        yield node
        stack.extend(node.children.values())


def _check_shape(parts: Inside, root: Root) -> None:
    """4: the shape of the tree below one root."""
    assert root.children and not root.key and root.parent is None, root
    assert root.start == 0, root
    stack: list[Node] = [root]
    while stack:
        node = stack.pop()
        _check_children(parts, node)
        if node is not root:
            _check_node(parts, node)
        stack.extend(node.children.values())


def _check_children(parts: Inside, node: Node) -> None:
    assert node.sorted_children == sorted(node.children), node
    for first, child in node.children.items():
        assert child.start == node.start + node.size and child.namespace == node.namespace, (node, child)
        assert b"".join(child.above) == b"".join(node.above) + node.key, (node, child, child.above)
        assert child.parent is node and child.key[: parts.tree.page_bytes] == first, (node, child)


def _check_node(parts: Inside, node: Node) -> None:
    assert node.key and len(node.key) == node.size * parts.tree.page_bytes, node
    assert all(len(pages) == node.size and pages.dtype == np.int64 for pages in node.pages), node
    assert node.resident == residency(node.runs), node
    assert node.children or any(pages[-1] for pages in node.pages), (node, "a leaf ends with a hole")
    for component, keeps_all in enumerate(parts.tree.keeps_all):
        assert not keeps_all or node.pages[component].all(), (
            node,
            component,
            "a hole in a component that keeps everything",
        )


def _check_queues(parts: Inside) -> None:
    """Each eviction queue has every node with pages to evict once: leaves only if the component keeps all."""
    nodes = {id(node): node for _, node, _ in _nodes(parts)}
    for group, component in enumerate(parts.tree.groups):
        queued = parts.tree.queues[group].items()
        keeps_all = parts.tree.keeps_all[component]
        expected = {
            key
            for key, node in nodes.items()
            if node.pages[component].any() and not (keeps_all and node.children)
        }
        assert len(queued) == len(expected) and {id(node) for node in queued} == expected, (component, queued)


# ---------------------------------------------------------------- rows


def _check_holding(parts: Inside, holding: Holding) -> None:
    """5 and 6: a row covers the pages that its request needs, and only computed pages are published."""
    page_size = parts.layout.page_size
    assert 0 <= holding.start <= holding.computed <= holding.allocated <= parts.layout.context, holding
    assert holding.published * page_size <= holding.computed, holding
    for component, rule in enumerate(parts.rules):
        entries = parts.tables[component].table[holding.row]
        last = holding.covered(rule)
        needed = rule.first_read(holding.computed)
        kept = holding.kept[component]
        first = max(rule.first_entry(holding.computed), rule.shared(rule.floor(holding.clip)))
        assert kept <= first, (holding, component)
        # Until it has published, a repair still keeps its inexact pages.
        untouched = holding.published == rule.floor(holding.start)
        assert untouched or kept >= holding.exact[component], (
            holding,
            component,
            "published inexact pages",
        )
        assert entries[max(kept, needed) : last].all(), (holding, component, entries)
        assert not entries[:kept].any() and not entries[last:].any(), (holding, component, entries)


def _check_path(parts: Inside, holding: Holding, component: int, positions: dict[int, Position]) -> None:
    """The pages of the tree that a row names lie at the row's positions, in its namespace, on one path."""
    entries = parts.tables[component].table[holding.row, : holding.shared(parts.rules[component])]
    nodes = []
    for index, page in enumerate(entries.tolist()):
        if page:
            namespace, node, position = positions[page]
            assert (namespace, position) == (holding.namespace, index), (holding, component, page, position)
            nodes.append(node)
    ancestors = _ancestors(nodes[-1]) if nodes else []
    assert all(any(node is above for above in ancestors) for node in nodes), (holding, component, nodes)


def _ancestors(node: Node) -> list[Node]:
    """The node and all nodes above it."""
    ancestors = [node]
    while node.parent is not None:
        node = node.parent
        ancestors.append(node)
    return ancestors

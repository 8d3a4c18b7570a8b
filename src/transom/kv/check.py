"""All invariants of architecture.md, compared as sets. Slow on purpose: it trusts no counter."""

from collections import Counter
from collections.abc import Iterator
from operator import ge, le
from typing import TYPE_CHECKING

import numpy as np

from transom.kv.pool import FREE, TREE, owner_of
from transom.kv.radix_tree import Node, Root, residency

if TYPE_CHECKING:
    from transom.kv.cache import HybridCache
    from transom.kv.holding import Holding, Namespace

Place = tuple["Namespace", Node, int]
"""Where a page of the tree lies: its root, its node, its page index from the root."""


def check(cache: "HybridCache") -> None:
    """Raises AssertionError with the values that disagree."""
    for root in cache.tree.roots.values():
        _check_shape(cache, root)
        _check_references_along(cache, root)
    places = tuple(_places(cache, component) for component in range(len(cache.pools)))
    for component, where in enumerate(places):
        _check_owners(cache, component, where)
        _check_references(cache, component, where)
        _check_hidden(cache, component, where)
    for row, holding in enumerate(cache.holdings):
        if holding is not None:
            assert holding.row == row, (row, holding)
            _check_holding(cache, holding)
            for component, where in enumerate(places):
                _check_path(cache, holding, component, where)
    unused = [row for row, holding in enumerate(cache.holdings) if holding is None]
    for rows in cache.rows:
        assert not rows.table[unused].any(), (unused, "name pages without a holding", rows.table)
    _check_orders(cache)
    _check_budget(cache)


# ---------------------------------------------------------------- whose pages


def _check_budget(cache: "HybridCache") -> None:
    """6: bytes in use are the sum over pools; with what is free and touched they never pass the budget."""
    layout = cache.layout
    if layout.budget is None:
        return
    owned = [int(np.count_nonzero(pool.owners() != FREE)) for pool in cache.pools]
    in_use = sum(count * size for count, size in zip(owned, layout.page_bytes, strict=True))
    assert in_use == cache.budget.in_use(), (owned, in_use, cache.budget.in_use())
    assert in_use <= cache.budget.touched() <= layout.budget, (in_use, cache.budget.touched(), layout.budget)
    for pool in cache.pools:
        assert 0 <= pool.untouched <= pool.free, (pool.name, pool.untouched, pool.free)


def _nodes(cache: "HybridCache") -> list[tuple["Namespace", Node, int]]:
    """Every node but roots, with its namespace and the page index where it starts; parents first."""
    found: list[tuple[Namespace, Node, int]] = []
    for namespace, root in cache.tree.roots.items():
        ahead: list[tuple[Node, int]] = [(child, 0) for child in root.children.values()]
        while ahead:
            node, start = ahead.pop()
            found.append((namespace, node, start))
            ahead.extend((child, start + node.size) for child in node.children.values())
    return found


def _places(cache: "HybridCache", component: int) -> dict[int, Place]:
    """Where each page of the tree lies; a page in two places is an error."""
    places: dict[int, Place] = {}
    for namespace, node, start in _nodes(cache):
        for index, page in enumerate(node.pages[component].tolist()):
            if page:
                assert page not in places, (component, page, node, places[page])
                places[page] = (namespace, node, start + index)
    return places


def _named(cache: "HybridCache", component: int, holding: "Holding", start: int, end: int) -> list[int]:
    return [page for page in cache.rows[component].table[holding.row, start:end].tolist() if page]


def _check_owners(cache: "HybridCache", component: int, places: dict[int, Place]) -> None:
    """1: every page has exactly one owner; page 0 has none."""
    pool = cache.pools[component]
    owners: dict[int, int] = dict.fromkeys(places, TREE)
    free = pool.free_pages().tolist()
    private = [
        (page, owner_of(holding.row))
        for holding in cache.holdings
        if holding is not None
        for page in _named(
            cache, component, holding, holding.shared(cache.rules[component]), cache.layout.context
        )
    ]
    for page, owner in [(page, FREE) for page in free] + private:
        assert page not in owners, (pool.name, page, "owned by", owners[page], "and", owner)
        owners[page] = owner
    assert owners.keys() == set(range(1, pool.capacity + 1)), (pool.name, "lost or unknown", owners)
    owners[0] = FREE
    noted = dict(enumerate(pool.owners().tolist()))
    assert noted == owners, (pool.name, noted, owners)
    assert (pool.free, pool.tree) == (len(free), len(places)), (pool.name, pool.free, pool.tree)


def _check_references(cache: "HybridCache", component: int, places: dict[int, Place]) -> None:
    """2: a page's reference count is the number of rows and pending copies that read it from the tree."""
    pool = cache.pools[component]
    readers: Counter[int] = Counter()
    for holding in cache.holdings:
        if holding is not None:
            readers.update(_named(cache, component, holding, 0, holding.shared(cache.rules[component])))
    readers.update(p.pin for p in cache.pending if p.copy.component == component and p.pin)
    assert readers.keys() <= places.keys(), (pool.name, "read but not the tree's", readers, places)
    noted = pool.references(np.arange(pool.capacity + 1)).tolist()
    assert noted == [readers[page] for page in range(pool.capacity + 1)], (pool.name, noted, readers)
    assert pool.idle == len(places.keys() - readers.keys()), (pool.name, pool.idle)


def _check_hidden(cache: "HybridCache", component: int, places: dict[int, Place]) -> None:
    """Roots that nothing can hit keep only what is being read."""
    for page, (namespace, node, _) in places.items():
        if namespace.private is not None or namespace.epoch != cache.epoch:
            assert cache.pools[component].references([page])[0] > 0, (namespace, node, page)


# ---------------------------------------------------------------- the tree


def _check_references_along(cache: "HybridCache", root: Root) -> None:
    """3: references are prefix-closed, and no component is read where a rooted one is not."""
    keeps_all = [c for c in range(len(cache.pools)) if cache.tree.keeps_all[c]]
    if not keeps_all:
        return
    counted: dict[Node, list[list[int]]] = {root: [[0]] * len(cache.pools)}
    for node in _below(root):
        pairs = zip(cache.pools, node.pages, strict=True)
        counted[node] = [pool.references(pages).tolist() for pool, pages in pairs]
    for node, counts in counted.items():
        for stem in keeps_all:
            below = sum(counted[child][stem][0] for child in node.children.values())
            falling = all(map(ge, counts[stem], counts[stem][1:]))
            assert node is root or (falling and below <= counts[stem][-1]), (node, counts, below)
            for component, other in enumerate(counts):
                assert all(map(le, other, counts[stem])), (node, component, other, counts[stem])


def _below(root: Root) -> Iterator[Node]:
    """Every node but the root, parents first."""
    ahead: list[Node] = list(root.children.values())
    while ahead:
        node = ahead.pop()
        yield node
        ahead.extend(node.children.values())


def _check_shape(cache: "HybridCache", root: Root) -> None:
    """4: the shape of nodes."""
    assert root.children and not root.key and root.parent is None, root
    assert root.start == 0, root
    ahead: list[Node] = [root]
    while ahead:
        node = ahead.pop()
        _check_children(cache, node)
        if node is not root:
            _check_node(cache, node)
        ahead.extend(node.children.values())


def _check_children(cache: "HybridCache", node: Node) -> None:
    assert node.order == sorted(node.children), node
    for first, child in node.children.items():
        assert child.start == node.start + node.size and child.space == node.space, (node, child)
        assert b"".join(child.above) == b"".join(node.above) + node.key, (node, child, child.above)
        assert child.parent is node and child.key[: cache.tree.page_bytes] == first, (node, child)


def _check_node(cache: "HybridCache", node: Node) -> None:
    assert node.key and len(node.key) == node.size * cache.tree.page_bytes, node
    assert all(len(pages) == node.size and pages.dtype == np.int64 for pages in node.pages), node
    assert node.resident == residency(node.runs), node
    assert node.children or any(pages[-1] for pages in node.pages), (node, "a leaf ends with a hole")
    for component, keeps_all in enumerate(cache.tree.keeps_all):
        assert not keeps_all or node.pages[component].all(), (node, component, "a hole in a rooted component")


def _check_orders(cache: "HybridCache") -> None:
    """Reclaim sees every node that has pages to give, once: of rooted ones the leaves."""
    nodes = {id(node): node for _, node, _ in _nodes(cache)}
    for group, component in enumerate(cache.tree.groups):
        listed = cache.tree.orders[group].items()
        keeps_all = cache.tree.keeps_all[component]
        expected = {
            key
            for key, node in nodes.items()
            if node.pages[component].any() and not (keeps_all and node.children)
        }
        assert len(listed) == len(expected) and {id(node) for node in listed} == expected, (component, listed)


# ---------------------------------------------------------------- rows


def _check_holding(cache: "HybridCache", holding: "Holding") -> None:
    """5 and 7: a row covers what its request needs, and gave the tree only what was computed."""
    page_size = cache.layout.page_size
    assert 0 <= holding.start <= holding.computed <= holding.allocated <= cache.layout.context, holding
    assert holding.published * page_size <= holding.computed, holding
    for component, rule in enumerate(cache.rules):
        entries = cache.rows[component].table[holding.row]
        last = holding.covered(rule)
        needed = rule.first_read(holding.computed)
        kept = holding.kept[component]
        first = max(rule.first_entry(holding.computed), rule.shared(rule.floor(holding.clip)))
        assert kept <= first, (holding, component)
        untouched = holding.published == rule.floor(holding.start)
        assert untouched or kept >= holding.exact[component], (
            holding,
            component,
            "published what is inexact",
        )
        assert entries[max(kept, needed) : last].all(), (holding, component, entries)
        assert not entries[:kept].any() and not entries[last:].any(), (holding, component, entries)


def _check_path(cache: "HybridCache", holding: "Holding", component: int, places: dict[int, Place]) -> None:
    """Pages a row reads from the tree lie at their own positions, under its namespace, on one path."""
    entries = cache.rows[component].table[holding.row, : holding.shared(cache.rules[component])]
    nodes = []
    for index, page in enumerate(entries.tolist()):
        if page:
            namespace, node, position = places[page]
            assert (namespace, position) == (holding.namespace, index), (holding, component, page, position)
            nodes.append(node)
    line = _line(nodes[-1]) if nodes else []
    assert all(any(node is above for above in line) for node in nodes), (holding, component, nodes)


def _line(node: Node) -> list[Node]:
    line = [node]
    while node.parent is not None:
        node = node.parent
        line.append(node)
    return line

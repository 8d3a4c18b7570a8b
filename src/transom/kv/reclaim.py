"""Taking pages back from the tree: under pressure, and from roots that nothing will ever hit again."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from transom.kv.budget import Budget
from transom.kv.order import RANK_USELESS, Link
from transom.kv.pool import Pages
from transom.kv.stats import Counters
from transom.kv.tree import Node, PrefixTree, Root


def make_room(tree: PrefixTree, budget: Budget, counters: Counters, need: Sequence[int]) -> None:
    """`need` pages of each component can be taken then. Raises NoSpace.

    A pool short of pages asks its own victims; when bytes are short, whoever's is worth least gives.
    """
    budget.require(need)
    if not budget.short(need) and all(p.free >= n for p, n in zip(tree.pools, need, strict=True)):
        return
    before = [pool.tree for pool in tree.pools]
    for component, (pool, count) in enumerate(zip(tree.pools, need, strict=True)):
        if count > pool.free:
            reclaim(tree, component, count - pool.free)
    while short := budget.short(need):
        component = cheapest(tree)
        take_from(tree, component, budget.pages_of(component, short))
    for component, (pool, pages) in enumerate(zip(tree.pools, before, strict=True)):
        if pool.tree < pages:
            counters.add(component, reclaimed=pages - pool.tree)


def reclaim(tree: PrefixTree, component: int, count: int) -> None:
    """Frees at least `count` pages of `component`, which must be unreferenced in the tree.

    Rooted components give the tails of leaves, and with them what else lies there. Others give what no
    boundary needs, then the islands at the ends of nodes, earliest pages first.
    """
    pool = tree.pools[component]
    assert count <= pool.idle, (pool.name, count, pool.idle)
    freed = Freed(tree)
    goal = pool.free + count
    while (missing := goal - pool.free - freed.counts[component]) > 0:
        _take(tree, component, missing, freed)
    freed.release()


def cheapest(tree: PrefixTree) -> int:
    """The component whose next victim is worth least; one of them has an unreferenced page."""
    offers = []
    for group, component in enumerate(tree.groups):
        if tree.pools[component].idle:
            offers.append((tree.orders[group].key(_victim(tree, component)), group, component))
    assert offers, "asked for bytes when nobody has any"
    return min(offers)[-1]


def take_from(tree: PrefixTree, component: int, count: int) -> None:
    """Asks the next victim, once, for `count` pages of `component`. It may have none, or give more."""
    freed = Freed(tree)
    _take(tree, component, count, freed)
    freed.release()


def purge(tree: PrefixTree, root: Root) -> None:
    """Gives back all that no row reads below `root`."""
    assert root.parent is None, root
    stem = next((c for c, rooted in enumerate(tree.rooted) if rooted), None)
    freed = Freed(tree)
    for node in _deepest_first(root):
        for component in range(len(tree.pools)):
            if not tree.rooted[component]:
                idle = _idle(tree, component, node)
                _vacate(tree, component, node, idle, idle.count(1), freed)
        if stem is not None and not node.children:
            _cut(tree, stem, node, node.size, freed)
    freed.release()


class Freed:
    """Owns pages that left the tree and are not the pools' yet, which take many at the price of one.

    Mutable, `counts` by component. `release` ends it.
    """

    __slots__ = ("_pages", "_pools", "counts")

    def __init__(self, tree: PrefixTree) -> None:
        self.counts = [0] * len(tree.pools)
        self._pools = tree.pools
        self._pages: list[list[Pages]] = [[] for _ in tree.pools]

    def add(self, component: int, pages: Pages) -> None:
        self._pages[component].append(pages)
        self.counts[component] += len(pages)

    def release(self) -> None:
        for pool, count, pages in zip(self._pools, self.counts, self._pages, strict=True):
            if count:
                # Backwards: the free list is then as if each had been given when it was found.
                pool.release(np.concatenate(pages[::-1]))


def _take(tree: PrefixTree, component: int, count: int, freed: Freed) -> None:
    order = tree.order_of(component)
    link = _victim(tree, component)
    rank, worth, _ = order.asked
    taken = _take_tail if tree.rooted[component] else _take_earliest
    if not taken(tree, component, link.item, count, freed):
        # Somebody reads all of it. Looked at once until references end, not at every reclaim.
        order.park(link)
    elif rank != RANK_USELESS and tree.gives_whole:
        tree.clock.inflate(worth)


def _victim(tree: PrefixTree, component: int) -> Link[Node]:
    order = tree.order_of(component)
    link = order.victim()
    if (
        link is None
    ):  # all were passed over; some of it has ended to be read, or there would be no page to ask for
        order.unpark()
        link = order.victim()
    assert link is not None, (component, "nobody has pages")
    return link


def _take_tail(tree: PrefixTree, component: int, node: Node, most: int, freed: Freed) -> int:
    return _cut(tree, component, node, node.size if tree.gives_whole else most, freed)


def _cut(tree: PrefixTree, component: int, node: Node, most: int, freed: Freed) -> int:
    """References never grow along a path, so the unreferenced pages of a node are its last."""
    count = min(most, tree.pools[component].unreferenced(node.pages[component]))
    if count:
        assert not node.children, (node, "a leaf comes before what it hangs from")
        for place, pages in enumerate(tree.cut(node, count)):
            freed.add(place, pages)
    return count


def _take_earliest(tree: PrefixTree, component: int, node: Node, most: int, freed: Freed) -> int:
    """What no boundary needs is given page by page, the page of slack too; what one needs, as a whole."""
    idle = _idle(tree, component, node)
    island = tree.island(node, component)
    useless = idle.count(1, 0, island)
    if useless:
        count = min(most, useless)
    elif most <= idle.count(1, 0, island + 1) or not tree.gives_whole:
        count = min(most, idle.count(1))
    else:
        count = idle.count(1)
    _vacate(tree, component, node, idle, count, freed)
    return count


def _idle(tree: PrefixTree, component: int, node: Node) -> bytes:
    """A byte per page of `node`: 1 where it has one that nobody reads."""
    entries = node.pages[component]
    references = tree.pools[component].references(entries)
    if not np.count_nonzero(references):
        return node.resident[component]
    idle: NDArray[np.bool_] = (entries != 0) & (references == 0)
    return idle.tobytes()


def _vacate(tree: PrefixTree, component: int, node: Node, idle: bytes, count: int, freed: Freed) -> None:
    """The first `count` pages of `idle`, which mostly lie side by side."""
    if not count:
        return
    first = idle.find(1)
    if idle.count(1, first, first + count) == count:
        freed.add(component, tree.vacate_run(node, component, first, first + count))
    else:
        tree.vacate(node, component, np.flatnonzero(np.frombuffer(idle, dtype=np.uint8))[:count])
    tree.trim(node)


def _deepest_first(root: Root) -> list[Node]:
    found: list[Node] = []
    ahead = list(root.children.values())
    while ahead:
        node = ahead.pop()
        found.append(node)
        ahead.extend(node.children.values())
    return found[::-1]

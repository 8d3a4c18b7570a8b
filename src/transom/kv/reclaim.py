"""Taking pages back from the tree: under pressure, and from roots that nothing will ever hit again."""

from collections.abc import Sequence

import numpy as np

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
    goal = pool.free + count
    while pool.free < goal:
        take_from(tree, component, goal - pool.free)


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
    link = _victim(tree, component)
    price = tree.order_of(component).key(link)
    taken = _take_tail if tree.rooted[component] else _take_earliest
    if not taken(tree, component, link.item, count):
        # Somebody reads all of it. Looked at once until references end, not at every reclaim.
        tree.order_of(component).park(link)
    elif price[0] != RANK_USELESS and tree.gives_whole:
        tree.clock.inflate(price[1])


def purge(tree: PrefixTree, root: Root) -> None:
    """Gives back all that no row reads below `root`."""
    assert root.parent is None, root
    stem = next((c for c, rooted in enumerate(tree.rooted) if rooted), None)
    for node in _deepest_first(root):
        for component in range(len(tree.pools)):
            if not tree.rooted[component]:
                _vacate(tree, component, node, _idle(tree, component, node))
        if stem is not None and not node.children:
            _cut(tree, stem, node, node.size)


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


def _take_tail(tree: PrefixTree, component: int, node: Node, most: int) -> int:
    return _cut(tree, component, node, node.size if tree.gives_whole else most)


def _cut(tree: PrefixTree, component: int, node: Node, most: int) -> int:
    """References never grow along a path, so the unreferenced pages of a node are its last."""
    count = min(most, tree.pools[component].unreferenced(node.pages[component]))
    if count:
        assert not node.children, (node, "a leaf comes before what it hangs from")
        tree.cut(node, count)
    return count


def _take_earliest(tree: PrefixTree, component: int, node: Node, most: int) -> int:
    """What no boundary needs is given page by page, the page of slack too; what one needs, as a whole."""
    idle = _idle(tree, component, node)
    island = tree.island(node, component)
    useless = int(np.searchsorted(idle, island))
    if useless:
        idle = idle[: min(most, useless)]
    elif most <= int(np.searchsorted(idle, island + 1)) or not tree.gives_whole:
        idle = idle[:most]
    _vacate(tree, component, node, idle)
    return len(idle)


def _idle(tree: PrefixTree, component: int, node: Node) -> Pages:
    """Where `node` has pages that nobody reads."""
    entries = node.pages[component]
    index: Pages = np.flatnonzero((entries != 0) & (tree.pools[component].references(entries) == 0))
    return index


def _vacate(tree: PrefixTree, component: int, node: Node, index: Pages) -> None:
    if len(index):
        tree.vacate(node, component, index)
        tree.trim(node)


def _deepest_first(root: Root) -> list[Node]:
    found: list[Node] = []
    ahead = list(root.children.values())
    while ahead:
        node = ahead.pop()
        found.append(node)
        ahead.extend(node.children.values())
    return found[::-1]

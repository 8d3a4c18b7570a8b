"""Taking pages back from the tree: under pressure, and from roots that nothing will ever hit again."""

from collections.abc import Sequence
from operator import le

import numpy as np

from transom.kv.budget import Budget
from transom.kv.eviction_policy import RANK_USELESS, Candidate
from transom.kv.eviction_queue import USEFUL, EvictionQueue, Key
from transom.kv.pool import ID_BYTES, Run, pages_of, without_holes
from transom.kv.radix_tree import Node, PrefixTree, Root, Stretch
from transom.kv.stats import Counters


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
        component, until = cheapest(tree)
        take_from(tree, component, budget.pages_of(component, short), until)
    assert all(map(le, need, [pool.free for pool in tree.pools])), (need, tree.pools)
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
    freed, order = Freed(tree), tree.order_of(component)
    goal = pool.free + count
    while (missing := goal - pool.free - freed.counts[component]) > 0:
        _take(tree, component, order, missing, USEFUL, freed)
    freed.release()


def cheapest(tree: PrefixTree) -> tuple[int, Key]:
    """The component whose next victim is worth least, and what those of others are worth at least.

    One of them has an unreferenced page.
    """
    offers = []
    for group, component in enumerate(tree.groups):
        if tree.pools[component].idle:
            _victim(tree.orders[group])
            offers.append((tree.orders[group].asked, group, component))
    assert offers, "asked for bytes when nobody has any"
    offers.sort()
    return offers[0][-1], offers[1][0] if len(offers) > 1 else USEFUL


def take_from(tree: PrefixTree, component: int, count: int, until: Key) -> None:
    """Asks the next victim, once, for `count` pages of `component`. It may have none, or give more.

    So may those after it whose key is below `until`.
    """
    assert count > 0, (component, count)
    freed = Freed(tree)
    _take(tree, component, tree.order_of(component), count, until, freed)
    freed.release()


def purge(tree: PrefixTree, root: Root) -> None:
    """Gives back all that no row reads below `root`."""
    assert root.parent is None, root
    stem = next((c for c, keeps_all in enumerate(tree.keeps_all) if keeps_all), None)
    freed = Freed(tree)
    for node in _deepest_first(root):
        for component in range(len(tree.pools)):
            if not tree.keeps_all[component]:
                idle = _idle(tree, component, node)
                if 1 in idle:
                    _vacate(tree, component, node, idle, idle.count(1), freed)
        if stem is not None and not node.children:
            _cut(tree, stem, node, node.size, freed)
    freed.release()


class Freed:
    """Owns pages that left the tree and are not the pools' yet, which take many at the price of one.

    Mutable, `counts` by component. `release` ends it.
    """

    __slots__ = ("_pools", "_runs", "counts")

    def __init__(self, tree: PrefixTree) -> None:
        self.counts = [0] * len(tree.pools)
        self._pools = tree.pools
        self._runs: list[list[Run]] = [[] for _ in tree.pools]

    def add(self, component: int, run: Run) -> None:
        """`run` has no hole."""
        assert run and len(run) % ID_BYTES == 0, run
        self._runs[component].append(run)
        self.counts[component] += len(run) // ID_BYTES

    def release(self) -> None:
        for pool, count, runs in zip(self._pools, self.counts, self._runs, strict=True):
            if count:
                # Backwards: the free list is then as if each had been given when it was found.
                pool.release(pages_of(b"".join(runs[::-1])))


def _take(
    tree: PrefixTree, component: int, order: EvictionQueue[Node], count: int, until: Key, freed: Freed
) -> None:
    """Of the next victim, which may have none to give; of several, below `until`, what no boundary needs."""
    link = _victim(order)
    rank, worth, _ = order.asked
    if rank == RANK_USELESS and (stretches := _useless(tree, component, order, count, until)):
        freed.add(component, tree.vacate_stretches(component, stretches))
        return
    taken = _take_tail if tree.keeps_all[component] else _take_earliest
    if not taken(tree, component, link, count, freed):
        # Somebody reads all of it. Looked at once until references end, not at every reclaim.
        order.park(link)
    elif rank != RANK_USELESS and tree.ages:
        tree.clock.inflate(worth)


def _victim(order: EvictionQueue[Node]) -> Candidate[Node]:
    link = order.victim()
    if link is None:
        # All were passed over. Some of it has ended to be read, or there would be no page to ask for.
        order.unpark()
        link = order.victim()
    assert link is not None, "nobody has pages"
    return link


def _take_tail(tree: PrefixTree, component: int, link: Candidate[Node], most: int, freed: Freed) -> int:
    node = link.item
    return _cut(tree, component, node, node.size if tree.gives_whole else most, freed)


def _cut(tree: PrefixTree, component: int, node: Node, most: int, freed: Freed) -> int:
    """References never grow along a path, so the unreferenced pages of a node are its last."""
    count = min(most, tree.pools[component].unreferenced(pages_of(node.runs[component])))
    if count:
        assert not node.children, (node, "a leaf comes before what it hangs from")
        for place, run in enumerate(tree.cut(node, count)):
            if there := without_holes(run):
                freed.add(place, there)
    return count


def _useless(
    tree: PrefixTree, component: int, order: EvictionQueue[Node], most: int, until: Key
) -> list[Stretch]:
    """What the next victims have that no boundary needs, up to one with holes or readers in it."""
    found: list[Stretch] = []
    runs: list[Run] = []
    for node, price in order.useless(until):
        first = node.resident[component].find(1)
        end = min(price.island, first + most)
        most -= end - first
        found.append((node, first, end))
        runs.append(node.runs[component][first * ID_BYTES : end * ID_BYTES])
        if not most:
            break
    idle = tree.pools[component].idle_among(b"".join(runs))
    while 0 in idle:  # a hole is no page, so it is not idle
        _, first, end = found.pop()
        idle = idle[: first - end]
    return found


def _take_earliest(tree: PrefixTree, component: int, link: Candidate[Node], most: int, freed: Freed) -> int:
    """What no boundary needs is given page by page, the page of slack too; what one needs, as a whole."""
    node = link.item
    price = link.price or tree.price(component, node)
    idle = _idle(tree, component, node)
    useless = idle.count(1, 0, price.island)
    if useless:
        count = most if most < useless else useless
    elif most <= idle.count(1, 0, price.island + 1) or not tree.gives_whole:
        count = min(most, idle.count(1))
    else:
        count = idle.count(1)
    if count:
        _vacate(tree, component, node, idle, count, freed)
    return count


def _idle(tree: PrefixTree, component: int, node: Node) -> bytes:
    """A byte per page of `node`: 1 where it has one that nobody reads."""
    return tree.pools[component].idle_among(node.runs[component])


def _vacate(tree: PrefixTree, component: int, node: Node, idle: bytes, count: int, freed: Freed) -> None:
    """The first `count` pages of `idle`, which mostly lie side by side."""
    first = idle.find(1)
    assert first >= 0 < count, (node, component, count)
    end = first + count
    if idle.count(1, first, end) == count:
        freed.add(component, tree.vacate_stretches(component, [(node, first, end)]))
        if end < len(idle):
            return  # it ends as it did
    else:
        tree.evict_pages(node, component, np.flatnonzero(np.frombuffer(idle, dtype=np.uint8))[:count])
    tree.trim(node)


def _deepest_first(root: Root) -> list[Node]:
    found: list[Node] = []
    ahead = list(root.children.values())
    while ahead:
        node = ahead.pop()
        found.append(node)
        ahead.extend(node.children.values())
    return found[::-1]

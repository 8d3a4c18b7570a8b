"""Evicts pages from the radix tree: when an allocation needs them, and from roots that no request can hit."""

from collections.abc import Sequence
from operator import le

import numpy as np

from transom.kv.budget import Budget
from transom.kv.entries import Key
from transom.kv.eviction_policy import RANK_UNNEEDED, Price
from transom.kv.eviction_queue import LOWEST_NEEDED, EvictionQueue
from transom.kv.node import Node, Root
from transom.kv.pool import ID_BYTES, Run, pages_of
from transom.kv.radix_tree import RadixTree, Stretch
from transom.kv.stats import Counters


def evict_for(tree: RadixTree, budget: Budget, counters: Counters, need: Sequence[int]) -> None:
    """Evicts until `need` pages of each component can be allocated. Raises NoSpace before it evicts any.

    A pool that is short of pages evicts from its own queue. When the shared budget is short of bytes, the
    component with the lowest key in front of its queue evicts.
    """
    budget.require(need)
    if not budget.bytes_short(need) and all(p.free >= n for p, n in zip(tree.pools, need, strict=True)):
        return
    before = [pool.tree for pool in tree.pools]
    # Pages first: evicting them frees bytes too.
    for component, (pool, count) in enumerate(zip(tree.pools, need, strict=True)):
        if count > pool.free:
            evict(tree, component, count - pool.free)
    while short := budget.bytes_short(need):
        component, until = cheapest_component(tree)
        evict_next(tree, component, budget.pages_of(component, short), until)
    assert all(map(le, need, [pool.free for pool in tree.pools])), (need, tree.pools)
    for component, (pool, pages) in enumerate(zip(tree.pools, before, strict=True)):
        if pool.tree < pages:
            counters.add(component, evicted=pages - pool.tree)


def evict(tree: RadixTree, component: int, count: int) -> None:
    """Frees at least `count` pages of `component`; the tree must have as many unreferenced ones.

    A component that keeps everything loses the tails of leaves, and the other components lose their pages at
    the same positions. Other components lose unneeded pages first, then islands, earliest pages first.
    """
    pool = tree.pools[component]
    assert count <= pool.idle, (pool.name, count, pool.idle)
    freed, queue = Freed(tree), tree.queue_of(component)
    goal = pool.free + count
    # Pages in `freed` have left the tree but are not free yet, so both count.
    while (missing := goal - pool.free - freed.counts[component]) > 0:
        _evict_next(tree, component, queue, missing, LOWEST_NEEDED, freed)
    freed.release()


def cheapest_component(tree: RadixTree) -> tuple[int, Key]:
    """The component with the lowest victim key, and the lowest key of the other components.

    At least one component must have an unreferenced page.
    """
    victims = []
    for group, component in enumerate(tree.groups):
        if tree.pools[component].idle:
            _next_victim(tree.queues[group])
            victims.append((tree.queues[group].victim_key, component))
    assert victims, "bytes are short, and no component has an unreferenced page"
    victims.sort()
    # Up to the next component's key: one call then evicts several victims before the components are compared
    # again.
    return victims[0][-1], victims[1][0] if len(victims) > 1 else LOWEST_NEEDED


def evict_next(tree: RadixTree, component: int, count: int, until: Key) -> None:
    """Evicts up to `count` pages from the next victim, and from later ones with keys below `until`.

    May free no page, if rows read all pages of the victim, and more than `count` if they go as a whole.
    """
    assert count > 0, (component, count)
    freed = Freed(tree)
    _evict_next(tree, component, tree.queue_of(component), count, until, freed)
    freed.release()


def purge(tree: RadixTree, root: Root) -> None:
    """Frees every page below `root` that no row reads."""
    assert root.parent is None, root
    freed = Freed(tree)
    for node in _deepest_first(root):
        # Windows first: they may be unreferenced where the full pages at the same positions are still read.
        for component in tree.groups:
            if component in tree.sparse:
                freed.leave_holes(component, node, node.size, None)
            elif not node.children:
                freed.cut_tail(component, node, node.size)
    freed.release()


class Freed:
    """Takes pages out of nodes. Owns pages that have left the tree and are not in the pools yet.

    A pool takes many pages for nearly the price of one, so evictions collect pages here. End with `release`.
    Mutable; `counts` by component.
    """

    __slots__ = ("_runs", "_tree", "counts")

    def __init__(self, tree: RadixTree) -> None:
        self.counts = [0] * len(tree.pools)
        self._tree = tree
        self._runs: list[list[Run]] = [[] for _ in tree.pools]

    def add(self, component: int, run: Run) -> None:
        """`run` has no hole."""
        assert run and len(run) % ID_BYTES == 0, run
        self._runs[component].append(run)
        self.counts[component] += len(run) // ID_BYTES

    def cut_tail(self, component: int, node: Node, most: int) -> int:
        """Cuts up to `most` unreferenced pages off a leaf, in all components. Returns how many.

        References never grow along a path, so the unreferenced pages of a node are its last.
        """
        tree = self._tree
        count = min(most, tree.pools[component].unreferenced(pages_of(node.run(component))))
        if count:
            assert not node.children, (node, "a leaf is evicted before its parent")
            for each, run in enumerate(tree.cut(node, count)):
                if run:
                    self.add(each, run)
        return count

    def leave_holes(self, component: int, node: Node, most: int, price: Price | None) -> int:
        """Evicts up to `most` unreferenced pages of `node`, the first ones. Returns how many.

        With a price: unneeded pages and the slack page one by one, an island as a whole.
        """
        tree = self._tree
        # A byte per page: 1 where there is a page that no row reads.
        idle = tree.pools[component].idle_among(node.run(component))
        count = idle.count(1) if price is None else _victims(idle, price, most)
        if not count:
            return 0
        first = idle.find(1)
        end = first + count
        assert first >= 0 < most, (node, component, count)
        if idle.count(1, first, end) == count:  # mostly they lie side by side
            self.add(component, tree.evict_stretches(component, [(node, first, end)]))
            if end < len(idle):
                return count  # its last page stays, so the shape does too
        else:
            index = np.flatnonzero(np.frombuffer(idle, dtype=np.uint8))[:count]
            tree.evict_pages(node, component, index)
        tree.trim(node)
        return count

    def release(self) -> None:
        for pool, count, runs in zip(self._tree.pools, self.counts, self._runs, strict=True):
            if count:
                # Backwards: the free list is then the same as if each run had been freed when it was found.
                pool.free_evicted(pages_of(b"".join(runs[::-1])))


def _evict_next(
    tree: RadixTree, component: int, queue: EvictionQueue[Node], count: int, until: Key, freed: Freed
) -> None:
    """Evicts up to `count` unneeded pages of several victims below `until`, or else from the next victim."""
    number = _next_victim(queue)
    rank, priority, _ = queue.victim_key
    if rank == RANK_UNNEEDED and (stretches := _unneeded_stretches(tree, component, queue, count, until)):
        freed.add(component, tree.evict_stretches(component, stretches))
        return
    node = tree.numbers.items[number]
    assert node is not None, number
    if component in tree.sparse:
        evicted = freed.leave_holes(component, node, count, queue.price_of(number))
    else:
        evicted = freed.cut_tail(component, node, node.size if tree.evicts_whole else count)
    if not evicted:
        # Rows read all of its pages. Skip it until references end, instead of at every eviction again.
        queue.skip(number)
    elif rank != RANK_UNNEEDED and tree.inflates:
        tree.clock.inflate(priority)


def _victims(idle: bytes, price: Price, most: int) -> int:
    """How many of the idle pages to evict."""
    unneeded, count = idle.count(1, 0, price.island), idle.count(1)
    if unneeded:
        return most if most < unneeded else unneeded
    # Half an island makes no hit, so the rest would only occupy memory.
    is_whole = price.whole and most > idle.count(1, 0, price.island + 1)
    return count if is_whole or count < most else most


def _next_victim(queue: EvictionQueue[Node]) -> int:
    victim = queue.victim()
    if victim is None:
        # All are skipped. References to some of them have ended, or the pool would have no idle page.
        queue.end_skips()
        victim = queue.victim()
    assert victim is not None, "no node has pages to evict"
    return victim


def _unneeded_stretches(
    tree: RadixTree, component: int, queue: EvictionQueue[Node], most: int, until: Key
) -> list[Stretch]:
    """Up to `most` unneeded pages of the next victims, before the first that has holes or readers among them.

    A victim with holes or readers is left to `_evict_next`, which looks at every page.
    """
    stretches: list[Stretch] = []
    runs: list[Run] = []
    for node, price in queue.unneeded(until):
        first = node.resident[component].find(1)
        end = min(price.island, first + most)
        most -= end - first
        stretches.append((node, first, end))
        runs.append(node.run(component)[first * ID_BYTES : end * ID_BYTES])
        if not most:
            break
    # One look at the pool for all of them. A hole is page 0, which is never idle.
    idle = tree.pools[component].idle_among(b"".join(runs))
    while 0 in idle:
        _, first, end = stretches.pop()
        idle = idle[: first - end]
    return stretches


def _deepest_first(root: Root) -> list[Node]:
    nodes: list[Node] = []
    stack = list(root.children)
    while stack:
        node = stack.pop()
        nodes.append(node)
        stack.extend(node.children)
    return nodes[::-1]

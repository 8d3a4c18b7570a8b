"""The prefix tree: runs of tokens with, per component, their pages or holes. Structure only, no policy."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from transom.kv.events import EventLog, What
from transom.kv.eviction_policy import RANK_PINNED, RANK_USEFUL, RANK_USELESS, Policy, Price
from transom.kv.eviction_queue import Clock, EvictionQueue
from transom.kv.holding import Namespace
from transom.kv.journal import Journal
from transom.kv.node import NO_PAGES, TOKEN_BYTES, Node, Path, Root, as_key, residency, shared_tokens
from transom.kv.page_rules import PageRule
from transom.kv.pool import ID_BYTES, PagePool, Run, as_pages, pages_of

__all__ = [
    "NO_PAGES",
    "TOKEN_BYTES",
    "Node",
    "Path",
    "PrefixTree",
    "Root",
    "as_key",
    "residency",
    "shared_tokens",
]


HOLE = b"\0"
"""In `resident`; in runs ID_BYTES of them."""

Stretch = tuple[Node, int, int]
"""Pages [first, end) of a node."""


class PrefixTree:
    """Owns the nodes, and through the pools their pages. Mutable; every change is logged."""

    __slots__ = (
        "_costs",
        "_groups_of",
        "_journal",
        "_log",
        "_rules",
        "ages",
        "clock",
        "gives_whole",
        "groups",
        "keeps_all",
        "orders",
        "page_bytes",
        "pools",
        "roots",
    )

    def __init__(
        self,
        pools: tuple[PagePool, ...],
        rules: tuple[PageRule, ...],
        policy: Policy,
        costs: tuple[int, ...],
        log: EventLog,
        journal: Journal,
    ) -> None:
        """`costs` are bytes per page, by component: what prices are relative to."""
        keeps_all = tuple(rule.keeps_all for rule in rules)
        self.pools = pools
        self.keeps_all = keeps_all
        self.page_bytes = rules[0].page_size * TOKEN_BYTES
        self.roots: dict[Namespace, Root] = {}
        self.clock = Clock(journal)
        self.ages = policy.knows_boundaries
        """Whether value fades as others give."""
        self.gives_whole = policy.knows_boundaries and not all(keeps_all)
        """Whether a stretch or an island goes as a whole: half of one is of no use."""
        self._rules = rules
        self._costs = costs
        self._log = log
        stem = keeps_all.index(True) if True in keeps_all else len(keeps_all)
        self.groups = tuple(c for c in range(len(pools)) if not keeps_all[c] or c == stem)
        """One component per reclaim order: the rooted ones go together, their first speaks for them."""
        self._groups_of = tuple(self.groups.index(stem if keeps_all[c] else c) for c in range(len(pools)))
        self.orders: tuple[EvictionQueue[Node], ...] = tuple(
            EvictionQueue(policy, partial(self.price, component), self.clock, journal)
            for component in self.groups
        )
        self._journal = journal

    # ---------------------------------------------------------------- queries

    def walk(self, namespace: Namespace, key: bytes) -> Path:
        """What the tree shares with `key`, in whole pages."""
        root = self.roots.get(namespace)
        node: Node = Root(namespace, len(self.pools)) if root is None else root
        top = node
        nodes: list[Node] = []
        starts: list[int] = []
        at, page_bytes = 0, self.page_bytes
        while (child := node.children.get(key[at : at + page_bytes])) is not None:
            nodes.append(child)
            starts.append(at // page_bytes)
            if not key.startswith(child.key, at):
                tokens = shared_tokens(child.key, key[at : at + len(child.key)])
                return Path(top, nodes, starts, starts[-1] + tokens * TOKEN_BYTES // page_bytes)
            at += len(child.key)
            node = child
        return Path(top, nodes, starts, at // page_bytes)

    def order_of(self, component: int) -> EvictionQueue[Node]:
        return self.orders[self._groups_of[component]]

    # ---------------------------------------------------------------- what giving would cost

    def price(self, component: int, node: Node) -> Price:
        """Of a rooted component the stretch back to the boundary before, with all that lies there; of others
        the pages that no boundary needs, or else the island at the end.

        Nodes end where a prompt or a turn ended and where a request left the path of another. A page of slack
        is for who sends the same prompt again, one token of which is to be computed.
        """
        price = self._stretch(node) if self.keeps_all[component] else self._island(component, node)
        if not node.pinned:  # else it also changes with time
            node.links[self._groups_of[component]].price = price
        elif node.pinned > self._log.step and price.rank == RANK_USEFUL:
            return price._replace(rank=RANK_PINNED)
        return price

    def _stretch(self, node: Node) -> Price:
        size = 0
        for cost, there in zip(self._costs, node.resident, strict=True):
            size += cost * there.count(1)
        return Price(RANK_USEFUL, len(node.key) // TOKEN_BYTES, size or 1, 0, node.branched, self.gives_whole)

    def _island(self, component: int, node: Node) -> Price:
        there = node.resident[component]
        island = self._rules[component].island(node.start, there)
        rank = RANK_USELESS if there.find(1, 0, island) >= 0 else RANK_USEFUL
        size = self._costs[component] * there.count(1) or 1
        return Price(rank, len(node.key) // TOKEN_BYTES, size, island, node.branched, self.gives_whole)

    # ---------------------------------------------------------------- recency

    def use(self, path: Path, first: tuple[int, ...], *, hit: bool, priority: int) -> None:
        """The path was read now, by component from page `first[component]` on."""
        assert len(first) == len(self.pools), first
        for group, component in enumerate(self.groups):
            after = bisect_right(path.starts, first[component])
            nodes = path.nodes[after - 1 :] if after else path.nodes
            self.orders[group].use([node.links[group] for node in nodes], hit=hit, priority=priority)

    def reprice(self, path: Path) -> None:
        """Pins have ended: keys of the path may be lower now."""
        for node in path.nodes:
            for order, link in zip(self.orders, node.links, strict=True):
                order.bound(link)

    def pin(self, node: Node, until: int) -> None:
        """It gives last until after step `until`."""
        assert until >= node.pinned, (node, until)
        self._journal.log(self._pin, node, node.pinned)
        self._pin(node, until)

    def unpark(self) -> None:
        """References have ended: nodes passed over while they were read are asked again."""
        for order in self.orders:
            order.unpark()

    # ---------------------------------------------------------------- growing

    def root(self, namespace: Namespace) -> Root:
        """The root of `namespace`, made if there is none. Give it a child before the transition ends."""
        root = self.roots.get(namespace)
        if root is None:
            root = Root(namespace, len(self.pools))
            self._journal.log(self.roots.pop, namespace)
            self.roots[namespace] = root
        return root

    def grow(self, end: Node, key: bytes, runs: tuple[Run, ...]) -> Node:
        """Hangs a run after `end`, which shares none of it."""
        assert key and len(key) // self.page_bytes == len(runs[0]) // ID_BYTES, (len(key), runs)
        if end.children and not end.branched:
            self._journal.log(self._part, end, False)
            self._part(end, True)
        node = Node(end, end.space, key, runs, len(self.groups))
        self._journal.log(self._unlink, node)
        self._link(node)
        self._relist(node)
        self._relist(end, cheaper=False)
        self._tell_from(What.STORED, node, 0)
        return node

    def lengthen(self, end: Node, key: bytes, runs: tuple[Run, ...]) -> Node:
        """The same, in place where `end` is a leaf and nobody parted there: its end is no boundary then."""
        assert key and len(key) // self.page_bytes == len(runs[0]) // ID_BYTES, (len(key), runs)
        if end.parent is not None and not end.children and not end.branched:
            size = end.size
            self._set(end, end.key + key, tuple([a + b for a, b in zip(end.runs, runs, strict=True)]))
            self._tell_from(What.STORED, end, size)
            return end
        return self.grow(end, key, runs)

    def split(self, node: Node, at: int) -> Node:
        """Cuts `node` before its page `at`; returns the new upper part. Runs are cut, pages do not move."""
        parent, page_bytes = node.parent, self.page_bytes
        assert parent is not None and 0 < at < node.size, (node, at)
        front = tuple([run[: at * ID_BYTES] for run in node.runs])
        upper = Node(parent, node.space, node.key[: at * page_bytes], front, len(self.groups))
        upper.pinned, upper.branched = node.pinned, True
        for order, link, lower in zip(self.orders, upper.links, node.links, strict=True):
            order.split(link, lower)
        self._journal.assign(node, "start", node.start + at)
        self._journal.assign(node, "above", (*node.above, upper.key))
        self._set(node, node.key[at * page_bytes :], tuple([run[at * ID_BYTES :] for run in node.runs]))
        first = upper.key[:page_bytes]
        self._journal.log(parent.children.__setitem__, first, node)
        parent.children[first] = upper
        self._journal.assign(node, "parent", upper)
        upper.children[node.key[:page_bytes]] = node
        upper.order.append(node.key[:page_bytes])
        self._relist(upper)
        return upper

    def fill(self, node: Node, component: int, index: ArrayLike, pages: ArrayLike) -> None:
        """Holes `index` of `node` get `pages`. Whatever is resident stays."""
        entries = pages_of(node.runs[component]).copy()
        index = as_pages(index)
        assert not entries[index].any() and np.all(pages), (entries[index], pages)
        entries[index] = pages
        self._replace(node, component, entries.tobytes(), (entries != 0).tobytes())
        self._relist(node)
        self._tell(What.STORED, node, component, (index + node.start).tolist())

    # ---------------------------------------------------------------- shrinking

    def evict_pages(self, node: Node, component: int, index: ArrayLike) -> None:
        """Pages `index` of `node` go back to the pool and leave holes. Let `trim` follow."""
        entries = pages_of(node.runs[component]).copy()
        index = as_pages(index)
        assert len(index) and entries[index].all(), (node, component, index)
        self.pools[component].release(entries[index])
        entries[index] = 0
        self._replace(node, component, entries.tobytes(), (entries != 0).tobytes())
        self._relist(node, cheaper=False)
        self._tell(What.REMOVED, node, component, (index + node.start).tolist())

    def vacate_stretches(self, component: int, stretches: Sequence[Stretch]) -> Run:
        """The same of several nodes, but for the pool: to it the caller gives what is returned."""
        self._journal.log(self._restore_all, [(n, n.key, n.runs, n.resident) for n, _, _ in stretches])
        taken, told = [], []
        for node, first, end in stretches:
            taken.append(self._vacate(node, component, first, end))
            pages = range(node.start + first, node.start + end)
            told.append((component, node.space, node.above, node.key, pages))
        self._log.record(What.REMOVED, told)
        return b"".join(taken[::-1])

    def _vacate(self, node: Node, component: int, first: int, end: int) -> Run:
        """Holes take the place of pages [first, end), which are returned."""
        link, run, there = (
            node.links[self._groups_of[component]],
            node.runs[component],
            node.resident[component],
        )
        assert first < end and there.count(1, first, end) == end - first, (node, component, first, end)
        price, left = link.price, len(there) - first
        there = there[:first] + there[end:].rjust(left, HOLE)
        holes = run[: first * ID_BYTES] + run[end * ID_BYTES :].rjust(left * ID_BYTES, HOLE)
        self._assign(node, component, holes, there)
        earliest = there.find(1)
        if earliest < 0:
            self._relist(node, cheaper=False)
        elif price and earliest >= price.island:
            link.price = price.useful((end - first) * self._costs[component])
        return run[first * ID_BYTES : end * ID_BYTES]

    def cut(self, node: Node, count: int) -> list[Run]:
        """The last `count` pages of a leaf end; by component, what the caller gives to the pools."""
        assert not node.children and 0 < count <= node.size, (node, count)
        size = node.size - count
        taken = [run[size * ID_BYTES :] for run in node.runs]
        self._tell_from(What.REMOVED, node, size)
        if size:
            self._set(node, node.key[: size * self.page_bytes], _front(node.runs, size))
            self.trim(node)
        else:
            self._remove(node)
        return taken

    def _remove(self, leaf: Node) -> None:
        """It keeps its runs, to come back with them if that is undone."""
        assert leaf.parent is not None and not leaf.children, leaf
        for order, link in zip(self.orders, leaf.links, strict=True):
            if link.listed:
                order.leave(link)
        self._journal.log(self._link, leaf)
        self._unlink(leaf)
        self._relist(leaf.parent, cheaper=False)
        self.trim(leaf.parent)

    def trim(self, node: Node) -> None:
        """Restores the shape: a leaf ends with a resident page; what owns nothing and leads nowhere goes."""
        while node.parent is not None and not node.children:
            keep = 0
            for resident in node.resident:
                last = resident.rfind(1) + 1
                if last > keep:
                    keep = last
            if keep == node.size:
                return
            if keep:
                self._set(node, node.key[: keep * self.page_bytes], _front(node.runs, keep))
                return
            self._journal.log(self._link, node)
            self._unlink(node)
            node = node.parent
            self._relist(node, cheaper=False)
        if isinstance(node, Root) and not node.children and self.roots.get(node.space) is node:
            self._journal.log(self.roots.__setitem__, node.space, node)
            del self.roots[node.space]

    # ---------------------------------------------------------------- events

    def _tell_from(self, what: What, node: Node, first: int) -> None:
        """Of all that `node` has from page `first` on."""
        assert node.parent is not None and first < node.size, (node, first)
        start, told = node.start + first, []
        for component, resident in enumerate(node.resident):
            pages: Sequence[int] = range(start, node.start + node.size)
            if resident.find(0, first) >= 0:
                pages = [page for page in pages if resident[page - node.start]]
            if pages:
                told.append((component, node.space, node.above, node.key, pages))
        self._log.record(what, told)

    def _tell(self, what: What, node: Node, component: int, pages: Sequence[int]) -> None:
        """`pages` by index from the root."""
        assert node.parent is not None, node
        self._log.record(what, [(component, node.space, node.above, node.key, pages)])

    # ---------------------------------------------------------------- primitives

    def _link(self, node: Node) -> None:
        first = node.key[: self.page_bytes]
        assert node.parent is not None and first not in node.parent.children, node
        node.parent.children[first] = node
        insort(node.parent.order, first)

    def _unlink(self, node: Node) -> None:
        first = node.key[: self.page_bytes]
        assert node.parent is not None and node.parent.children[first] is node, node
        del node.parent.children[first]
        del node.parent.order[bisect_left(node.parent.order, first)]

    def _replace(self, node: Node, component: int, run: Run, there: bytes) -> None:
        """Of one component, whatever the others have. `there` is its residency. Let `_relist` follow."""
        assert len(run) == len(there) * ID_BYTES, (node, component, run, there)
        self._journal.log(self._restore, node, node.key, node.runs, node.resident)
        self._assign(node, component, run, there)

    def _assign(self, node: Node, component: int, run: Run, there: bytes) -> None:
        runs, resident = list(node.runs), list(node.resident)
        runs[component], resident[component] = run, there
        node.runs, node.resident = tuple(runs), tuple(resident)
        node.forget_prices()

    def _set(self, node: Node, key: bytes, runs: tuple[Run, ...]) -> None:
        assert len(key) == len(runs[0]) // ID_BYTES * self.page_bytes, (len(key), runs)
        self._journal.log(self._restore, node, node.key, node.runs, node.resident)
        node.key, node.runs, node.resident = key, runs, residency(runs)
        node.size = len(node.resident[0])
        node.forget_prices()
        self._relist(node)

    def _part(self, node: Node, branched: bool) -> None:
        node.branched = branched
        node.forget_prices()
        for order, link in zip(self.orders, node.links, strict=False):  # a root has no links
            order.bound(link)

    def _pin(self, node: Node, until: int) -> None:
        node.pinned = until
        node.forget_prices()

    def _restore(self, node: Node, key: bytes, runs: tuple[Run, ...], resident: tuple[bytes, ...]) -> None:
        node.key, node.runs, node.resident = key, runs, resident
        node.size = len(resident[0])
        node.forget_prices()
        for order, link in zip(self.orders, node.links, strict=True):
            order.bound(link)

    def _restore_all(self, before: list[tuple[Node, bytes, tuple[Run, ...], tuple[bytes, ...]]]) -> None:
        for each in before:
            self._restore(*each)

    def _relist(self, node: Node, *, cheaper: bool = True) -> None:
        """A node is in the orders of the components it has pages of; of rooted ones only a leaf can give.

        Prices may have fallen if `cheaper`. Losing pages or children lets none fall.
        """
        if node.parent is None:
            return
        for group, component in enumerate(self.groups):
            order, link = self.orders[group], node.links[group]
            gives = 1 in node.resident[component] and not (self.keeps_all[component] and node.children)
            if gives and link.listed:
                if cheaper:
                    order.refresh(link)
            elif gives:
                order.enter(link)
            elif link.listed:
                order.leave(link)


def _front(runs: tuple[Run, ...], count: int) -> tuple[Run, ...]:
    """The first `count` pages of each."""
    assert count * ID_BYTES <= len(runs[0]), (count, runs)
    return tuple([run[: count * ID_BYTES] for run in runs])

"""The prefix tree: runs of tokens with, per component, their pages or holes. Structure only, no policy."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from transom.kv.components import PageRule
from transom.kv.events import EventLog, What
from transom.kv.holding import Namespace
from transom.kv.journal import Journal
from transom.kv.node import NO_PAGES, TOKEN_BYTES, Node, Path, Root, as_key, residency, shared_tokens
from transom.kv.order import RANK_PINNED, RANK_USEFUL, RANK_USELESS, Clock, Order, Policy, Price
from transom.kv.pool import PagePool, Pages, as_pages

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


class PrefixTree:
    """Owns the nodes, and through the pools their pages. Mutable; every change is logged."""

    __slots__ = (
        "_costs",
        "_grids",
        "_groups_of",
        "_journal",
        "_log",
        "clock",
        "gives_whole",
        "groups",
        "orders",
        "page_bytes",
        "pools",
        "rooted",
        "roots",
    )

    def __init__(
        self,
        pools: tuple[PagePool, ...],
        grids: tuple[PageRule, ...],
        policy: Policy,
        costs: tuple[int, ...],
        log: EventLog,
        journal: Journal,
    ) -> None:
        """`costs` are bytes per page, by component: what prices are relative to."""
        rooted = tuple(grid.rooted for grid in grids)
        self.pools = pools
        self.rooted = rooted
        self.page_bytes = grids[0].page_size * TOKEN_BYTES
        self.roots: dict[Namespace, Root] = {}
        self.clock = Clock(journal)
        self.gives_whole = policy.knows_boundaries and not all(rooted)
        """Whether a stretch or an island goes as a whole: half of one is of no use."""
        self._grids = grids
        self._costs = costs
        self._log = log
        stem = rooted.index(True) if True in rooted else len(rooted)
        self.groups = tuple(c for c in range(len(pools)) if not rooted[c] or c == stem)
        """One component per reclaim order: the rooted ones go together, their first speaks for them."""
        self._groups_of = tuple(self.groups.index(stem if rooted[c] else c) for c in range(len(pools)))
        self.orders: tuple[Order[Node], ...] = tuple(
            Order(policy, partial(self.price, component), self.clock, journal) for component in self.groups
        )
        self._journal = journal

    # ---------------------------------------------------------------- queries

    def walk(self, namespace: Namespace, key: bytes) -> Path:
        """What the tree shares with `key`, in whole pages."""
        root = self.roots.get(namespace)
        node: Node = Root(namespace, len(self.pools)) if root is None else root
        path = Path(node)
        at, page_bytes = 0, self.page_bytes
        while (child := node.children.get(key[at : at + page_bytes])) is not None:
            if key.startswith(child.key, at):
                path.follow(child, child.size)
                at += len(child.key)
                node = child
            else:
                tokens = shared_tokens(child.key, key[at : at + len(child.key)])
                path.follow(child, tokens * TOKEN_BYTES // page_bytes)
                break
        return path

    def order_of(self, component: int) -> Order[Node]:
        return self.orders[self._groups_of[component]]

    # ---------------------------------------------------------------- what giving would cost

    def island(self, node: Node, component: int) -> int:
        """The first page of `node` that its end, a boundary to be hit again, has use for.

        Nodes end where a prompt or a turn ended and where a request left the path of another. A page of slack
        is for who sends the same prompt again, one token of which is to be computed.
        """
        return self._grids[component].island(node.start, node.resident[component])

    def price(self, component: int, node: Node) -> Price:
        """Of a rooted component the stretch back to the boundary before, with all that lies there; of others
        the pages that no boundary needs, or else the island at the end."""
        price = node.prices.get(component)
        if price is None:
            price = node.prices[component] = self._price_unpinned(component, node)
        if node.pinned > self._log.step and price.rank == RANK_USEFUL:
            return price._replace(rank=RANK_PINNED)
        return price

    def _price_unpinned(self, component: int, node: Node) -> Price:
        resident = node.resident
        if self.rooted[component]:
            size = sum([cost * there.count(1) for cost, there in zip(self._costs, resident, strict=True)])
            rank = RANK_USEFUL
        else:
            there = resident[component]
            useless = there.find(1, 0, self.island(node, component)) >= 0
            rank = RANK_USELESS if useless else RANK_USEFUL
            size = self._costs[component] * there.count(1)
        return Price(rank, len(node.key) // TOKEN_BYTES, max(1, size))

    # ---------------------------------------------------------------- recency

    def use(self, path: Path, first: tuple[int, ...], *, hit: bool, priority: int) -> None:
        """The path was read now, by component from page `first[component]` on."""
        assert len(first) == len(self.pools), first
        for group, component in enumerate(self.groups):
            after = bisect_right(path.starts, first[component])
            nodes = path.nodes[max(0, after - 1) :]
            links = [node.links[group] for node in nodes]
            self.orders[group].use(links, hit=hit, priority=priority)

    def reprice(self, path: Path) -> None:
        """Pins have ended: keys of the path may be lower now."""
        for node in path.nodes:
            for order, link in zip(self.orders, node.links, strict=True):
                order.bound(link)

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

    def grow(self, end: Node, key: bytes, pages: tuple[Pages, ...]) -> Node:
        """Hangs a run after `end`, which shares none of it."""
        if end.children and not end.parted:
            self._journal.assign(end, "parted", True)
        node = Node(end, key, pages, len(self.groups))
        self._journal.log(self._unlink, node)
        self._link(node)
        self._relist(node)
        self._relist(end, cheaper=False)
        self._tell_new(node, 0)
        return node

    def lengthen(self, end: Node, key: bytes, pages: tuple[Pages, ...]) -> Node:
        """The same, in place where `end` is a leaf where nobody parted: its end is then no boundary."""
        assert key and len(key) == len(pages[0]) * self.page_bytes, (len(key), pages)
        if end.parent is not None and not end.children and not end.parted:
            longer = tuple(np.concatenate(pair) for pair in zip(end.pages, pages, strict=True))
            size = end.size
            self._set(end, end.key + key, longer)
            self._tell_new(end, size)
            return end
        return self.grow(end, key, pages)

    def split(self, node: Node, at: int) -> Node:
        """Cuts `node` before its page `at`; returns the new upper part. Array bounds move, pages do not."""
        parent = node.parent
        assert parent is not None and 0 < at < node.size, (node, at)
        upper = Node(
            parent, node.key[: at * self.page_bytes], tuple(p[:at] for p in node.pages), len(self.groups)
        )
        upper.pinned, upper.parted = node.pinned, True
        for order, link, lower in zip(self.orders, upper.links, node.links, strict=True):
            order.split(link, lower)
        self._journal.assign(node, "start", node.start + at)
        self._set(node, node.key[at * self.page_bytes :], tuple(p[at:] for p in node.pages))
        first = upper.key[: self.page_bytes]
        self._journal.log(parent.children.__setitem__, first, node)
        parent.children[first] = upper
        self._journal.assign(node, "parent", upper)
        upper.children[node.key[: self.page_bytes]] = node
        upper.order.append(node.key[: self.page_bytes])
        self._relist(upper)
        return upper

    def fill(self, node: Node, component: int, index: ArrayLike, pages: ArrayLike) -> None:
        """Holes `index` of `node` get `pages`. Whatever is resident stays."""
        entries = node.pages[component].copy()
        index = as_pages(index)
        assert not entries[index].any() and np.all(pages), (entries[index], pages)
        entries[index] = pages
        self._replace(node, component, entries, (entries != 0).tobytes())
        self._relist(node)
        self._tell(What.STORED, node, component, (index + node.start).tolist())

    # ---------------------------------------------------------------- shrinking

    def vacate(self, node: Node, component: int, index: ArrayLike) -> None:
        """Pages `index` of `node` go back to the pool and leave holes. Let `trim` follow."""
        entries = node.pages[component].copy()
        index = as_pages(index)
        assert len(index) and entries[index].all(), (node, component, index)
        self.pools[component].release(entries[index])
        entries[index] = 0
        self._replace(node, component, entries, (entries != 0).tobytes())
        self._relist(node, cheaper=False)
        self._tell(What.REMOVED, node, component, (index + node.start).tolist())

    def vacate_run(self, node: Node, component: int, first: int, end: int) -> Pages:
        """The same of pages [first, end), but for the pool: to it the caller gives what is returned."""
        pages, resident = node.pages[component], node.resident[component]
        assert first < end and resident.count(1, first, end) == end - first, (node, component, first, end)
        entries = pages.copy()
        entries[first:end] = 0
        now = resident[:first] + bytes(end - first) + resident[end:]
        self._replace(node, component, entries, now)
        if 1 not in now:
            self._relist(node, cheaper=False)
        self._tell(What.REMOVED, node, component, range(node.start + first, node.start + end))
        return pages[first:end]

    def cut(self, node: Node, count: int) -> list[Pages]:
        """The last `count` pages of a leaf end; by component, what the caller gives to the pools."""
        assert not node.children and 0 < count <= node.size, (node, count)
        size, taken = node.size - count, []
        for component in range(len(self.pools)):
            resident, pages = node.resident[component], node.pages[component][size:]
            taken.append(pages if 0 not in resident[size:] else pages[pages != 0])
            self._tell_run(What.REMOVED, node, component, size)
        if size:
            self._set(node, node.key[: size * self.page_bytes], tuple([p[:size] for p in node.pages]))
            self.trim(node)
        else:
            self._remove(node)
        return taken

    def _remove(self, leaf: Node) -> None:
        """It keeps its arrays, to come back with them if that is undone."""
        assert leaf.parent is not None, leaf
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
            if 1 in [resident[-1] for resident in node.resident]:
                return
            keep = 1 + max([resident.rfind(1) for resident in node.resident])
            if keep:
                self._set(node, node.key[: keep * self.page_bytes], tuple(p[:keep] for p in node.pages))
                return
            self._journal.log(self._link, node)
            self._unlink(node)
            node = node.parent
            self._relist(node, cheaper=False)
        if isinstance(node, Root) and not node.children and self.roots.get(node.namespace) is node:
            self._journal.log(self.roots.__setitem__, node.namespace, node)
            del self.roots[node.namespace]

    # ---------------------------------------------------------------- events

    def _tell_new(self, node: Node, first: int) -> None:
        """Pages of `node` from `first` on are new."""
        for component in range(len(self.pools)):
            self._tell_run(What.STORED, node, component, first)

    def _tell_run(self, what: What, node: Node, component: int, first: int) -> None:
        """Of what `node` has from page `first` on."""
        resident, start = node.resident[component], node.start
        pages: Sequence[int] = range(start + first, start + len(resident))
        if 0 in resident[first:]:
            pages = [start + place for place in range(first, len(resident)) if resident[place]]
        if pages:
            self._tell(what, node, component, pages)

    def _tell(self, what: What, node: Node, component: int, pages: Sequence[int]) -> None:
        """`pages` by index from the root."""
        keys, above = [node.key], node.parent
        while above is not None and above.parent is not None:
            keys.append(above.key)
            above = above.parent
        assert isinstance(above, Root), node
        keys.reverse()
        self._log.record(what, component, above.namespace, tuple(keys), pages)

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

    def _replace(self, node: Node, component: int, entries: Pages, there: bytes) -> None:
        """Of one component, whatever the others have. `there` is its residency. Let `_relist` follow."""
        pages, resident = node.pages, node.resident
        self._journal.log(self._restore, node, node.key, pages, resident)
        node.pages = (*pages[:component], entries, *pages[component + 1 :])
        node.resident = (*resident[:component], there, *resident[component + 1 :])
        node.prices.clear()

    def _set(self, node: Node, key: bytes, pages: tuple[Pages, ...]) -> None:
        self._journal.log(self._restore, node, node.key, node.pages, node.resident)
        node.key, node.pages, node.resident = key, pages, residency(pages)
        node.prices.clear()
        self._relist(node)

    def _restore(self, node: Node, key: bytes, pages: tuple[Pages, ...], resident: tuple[bytes, ...]) -> None:
        node.key, node.pages, node.resident = key, pages, resident
        node.prices.clear()
        for order, link in zip(self.orders, node.links, strict=True):
            order.bound(link)

    def _relist(self, node: Node, *, cheaper: bool = True) -> None:
        """A node is in the orders of the components it has pages of; of rooted ones only a leaf can give.

        Prices may have fallen if `cheaper`. Losing pages or children lets none fall.
        """
        if node.parent is None:
            return
        for group, component in enumerate(self.groups):
            order, link = self.orders[group], node.links[group]
            gives = 1 in node.resident[component] and not (self.rooted[component] and node.children)
            if gives and link.listed:
                if cheaper:
                    order.refresh(link)
            elif gives:
                order.enter(link)
            elif link.listed:
                order.leave(link)

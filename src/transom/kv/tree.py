"""The prefix tree: runs of tokens with, per component, their pages or holes. Structure only, no policy."""

from bisect import bisect_left, bisect_right, insort

import numpy as np
from numpy.typing import ArrayLike

from transom.kv.holding import Namespace
from transom.kv.journal import Journal
from transom.kv.pool import PagePool, Pages, as_pages
from transom.kv.recency import LeastRecentlyUsed, Link, Order

TOKEN_BYTES = 4
NO_PAGES: Pages = np.zeros(0, dtype=np.int64)


class Node:
    """A run of tokens after its parent's. Mutable, owned by the tree.

    key      int32 tokens as bytes, a page multiple; empty in roots only
    pages    per component, one entry per page of the key, 0 = hole; arrays are replaced, never written to
    resident per component, one byte per page: 1 where `pages` is not 0
    children by their first page
    order    the same first pages, sorted: equal beginnings lie side by side
    links    places in the reclaim orders
    """

    __slots__ = ("children", "key", "links", "order", "pages", "parent", "resident")

    def __init__(self, parent: "Node | None", key: bytes, pages: tuple[Pages, ...], orders: int) -> None:
        self.parent = parent
        self.key = key
        self.pages = pages
        self.resident = residency(pages)
        self.children: dict[bytes, Node] = {}
        self.order: list[bytes] = []
        self.links: tuple[Link[Node], ...] = tuple(Link(self) for _ in range(orders))

    @property
    def size(self) -> int:
        """Pages of the key."""
        return len(self.resident[0])

    def __repr__(self) -> str:
        return f"Node({np.frombuffer(self.key, dtype=np.int32).tolist()}, {[p.tolist() for p in self.pages]})"


class Root(Node):
    """The empty beginning of one namespace."""

    __slots__ = ("namespace",)

    def __init__(self, namespace: Namespace, components: int) -> None:
        super().__init__(None, b"", (NO_PAGES,) * components, 0)
        self.namespace = namespace


class Path:
    """What a key shares with the tree: nodes from below the root, where each starts, pages shared.

    The last node may be shared in part. `end` is the deepest node, or the root.
    """

    __slots__ = ("end", "nodes", "pages", "root", "starts")

    def __init__(self, root: Node) -> None:
        self.root = self.end = root
        self.nodes: list[Node] = []
        self.starts: list[int] = []
        self.pages = 0

    def follow(self, node: Node, shared: int) -> None:
        assert 0 < shared <= node.size and (node.parent is self.end or not self.nodes), (node, shared)
        self.nodes.append(node)
        self.starts.append(self.pages)
        self.pages += shared
        self.end = node

    def lengthen(self, pages: int) -> None:
        """The last node grew in place, by pages that are shared too."""
        self.pages += pages
        assert self.within == self.end.size, (self.within, self.end)

    def cut_last(self, upper: Node) -> None:
        """The last node was split where the sharing ends; `upper` is what was shared."""
        assert upper.size == self.within, (upper, self.within)
        self.nodes[-1] = self.end = upper

    @property
    def within(self) -> int:
        """Pages of `end` that are shared; 0 at the root."""
        return self.pages - self.starts[-1] if self.starts else 0

    def after(self, pages: int) -> tuple[Node, int]:
        """Where the path stands after its first `pages`: a node, and how many of its pages are passed."""
        assert 0 <= pages <= self.pages, (pages, self.pages)
        which = bisect_left(self.starts, pages) - 1
        return (self.nodes[which], pages - self.starts[which]) if which >= 0 else (self.root, 0)

    def start_of(self, page: int) -> int:
        """Where the node that holds page `page` of the path starts."""
        assert 0 <= page < self.pages, (page, self.pages)
        return self.starts[bisect_right(self.starts, page) - 1]

    def read(self, component: int, start: int, end: int) -> Pages:
        """Entries [start, end) of the path's pages."""
        assert start <= end <= self.pages, (start, end, self.pages)
        parts = [
            node.pages[component][max(0, start - at) : end - at]
            for node, at in zip(self.nodes, self.starts, strict=True)
            if at < end and at + node.size > start
        ]
        return parts[0] if len(parts) == 1 else np.concatenate(parts) if parts else NO_PAGES

    def residency(self, component: int) -> bytes:
        """A byte per page of the path: 1 where it is resident."""
        whole = b"".join([node.resident[component] for node in self.nodes])
        return whole[: self.pages]


def residency(pages: tuple[Pages, ...]) -> tuple[bytes, ...]:
    return tuple((entries != 0).tobytes() for entries in pages)


def shared_tokens(left: bytes, right: bytes) -> int:
    """Tokens that two keys have in common from their beginning."""
    assert len(left) % TOKEN_BYTES == len(right) % TOKEN_BYTES == 0, (left, right)
    count = min(len(left), len(right)) // TOKEN_BYTES
    if left[: count * TOKEN_BYTES] == right[: count * TOKEN_BYTES]:
        return count
    differs = np.frombuffer(left, np.int32, count) != np.frombuffer(right, np.int32, count)
    return int(differs.argmax())


class PrefixTree:
    """Owns the nodes, and through the pools their pages. Mutable; every change is logged."""

    __slots__ = ("_groups_of", "_journal", "groups", "orders", "page_bytes", "pools", "rooted", "roots")

    def __init__(
        self, pools: tuple[PagePool, ...], rooted: tuple[bool, ...], page_size: int, journal: Journal
    ) -> None:
        self.pools = pools
        self.rooted = rooted
        self.page_bytes = page_size * TOKEN_BYTES
        self.roots: dict[Namespace, Root] = {}
        stem = rooted.index(True) if True in rooted else len(rooted)
        self.groups = tuple(c for c in range(len(pools)) if not rooted[c] or c == stem)
        """One component per reclaim order: the rooted ones go together, their first speaks for them."""
        self._groups_of = tuple(self.groups.index(stem if rooted[c] else c) for c in range(len(pools)))
        nobody = Node(None, b"", (NO_PAGES,) * len(pools), 0)
        self.orders: tuple[Order[Node], ...] = tuple(LeastRecentlyUsed(journal, nobody) for _ in self.groups)
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

    def victim(self, component: int) -> Node:
        return self.order_of(component).victim()

    # ---------------------------------------------------------------- recency

    def use(self, path: Path, first: tuple[int, ...]) -> None:
        """The path was read, by component from page `first[component]` on."""
        assert len(first) == len(self.pools), first
        for node, start in zip(reversed(path.nodes), reversed(path.starts), strict=True):
            for group, component in enumerate(self.groups):
                link = node.links[group]
                if link.listed and start + node.size > first[component]:
                    self.orders[group].use(link)

    def pass_over(self, node: Node, component: int) -> None:
        """All of `node` is being read: it and, where pages hang together, its ancestors are in use."""
        group = self._groups_of[component]
        assert node.links[group].listed, (node, component)
        self.orders[group].use(node.links[group])
        while self.rooted[component] and node.parent is not None and node.parent.links:
            node = node.parent
            self.orders[group].use(node.links[group])

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
        """Hangs a run after `end`, which shares none of it: in place where `end` is a leaf."""
        assert key and len(key) == len(pages[0]) * self.page_bytes, (len(key), pages)
        if end.parent is not None and not end.children:
            longer = tuple(np.concatenate(pair) for pair in zip(end.pages, pages, strict=True))
            self._set(end, end.key + key, longer)
            return end
        node = Node(end, key, pages, len(self.groups))
        self._journal.log(self._unlink, node)
        self._link(node)
        self._relist(node)
        return node

    def split(self, node: Node, at: int) -> Node:
        """Cuts `node` before its page `at`; returns the new upper part. Array bounds move, pages do not."""
        parent = node.parent
        assert parent is not None and 0 < at < node.size, (node, at)
        upper = Node(
            parent, node.key[: at * self.page_bytes], tuple(p[:at] for p in node.pages), len(self.groups)
        )
        for group, component in enumerate(self.groups):
            if 1 in upper.resident[component]:
                self.orders[group].split(upper.links[group], node.links[group])
        self._set(node, node.key[at * self.page_bytes :], tuple(p[at:] for p in node.pages))
        first = upper.key[: self.page_bytes]
        self._journal.log(parent.children.__setitem__, first, node)
        parent.children[first] = upper
        self._journal.assign(node, "parent", upper)
        upper.children[node.key[: self.page_bytes]] = node
        upper.order.append(node.key[: self.page_bytes])
        return upper

    def fill(self, node: Node, component: int, index: ArrayLike, pages: ArrayLike) -> None:
        """Holes `index` of `node` get `pages`. Whatever is resident stays."""
        entries = node.pages[component].copy()
        index = as_pages(index)
        assert not entries[index].any() and np.all(pages), (entries[index], pages)
        entries[index] = pages
        self._replace(node, component, entries)

    # ---------------------------------------------------------------- shrinking

    def vacate(self, node: Node, component: int, index: ArrayLike) -> None:
        """Pages `index` of `node` go back to the pool and leave holes. Let `trim` follow."""
        entries = node.pages[component].copy()
        index = as_pages(index)
        assert len(index) and entries[index].all(), (node, component, index)
        self.pools[component].release(entries[index])
        entries[index] = 0
        self._replace(node, component, entries)

    def cut(self, node: Node, count: int) -> None:
        """The last `count` pages of a leaf go back to the pools, of all components."""
        assert not node.children and 0 < count <= node.size, (node, count)
        for component in range(len(self.pools)):
            resident = np.flatnonzero(node.pages[component])
            index = resident[resident >= node.size - count]
            if len(index):
                self.vacate(node, component, index)
        self.trim(node)

    def trim(self, node: Node) -> None:
        """Restores the shape: a leaf ends with a resident page; what owns nothing and leads nowhere goes."""
        while node.parent is not None and not node.children:
            keep = 1 + max(resident.rfind(1) for resident in node.resident)
            if 0 < keep < node.size:
                self._set(node, node.key[: keep * self.page_bytes], tuple(p[:keep] for p in node.pages))
            if keep:
                return
            self._journal.log(self._link, node)
            self._unlink(node)
            node = node.parent
        if isinstance(node, Root) and not node.children and self.roots.get(node.namespace) is node:
            self._journal.log(self.roots.__setitem__, node.namespace, node)
            del self.roots[node.namespace]

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

    def _replace(self, node: Node, component: int, entries: Pages) -> None:
        pages = node.pages
        self._set(node, node.key, (*pages[:component], entries, *pages[component + 1 :]))

    def _set(self, node: Node, key: bytes, pages: tuple[Pages, ...]) -> None:
        self._journal.log(self._restore, node, node.key, node.pages, node.resident)
        self._restore(node, key, pages, residency(pages))
        self._relist(node)

    @staticmethod
    def _restore(node: Node, key: bytes, pages: tuple[Pages, ...], resident: tuple[bytes, ...]) -> None:
        node.key, node.pages, node.resident = key, pages, resident

    def _relist(self, node: Node) -> None:
        """A node is in exactly the orders of the components it has pages of."""
        for group, component in enumerate(self.groups):
            link, resident = node.links[group], 1 in node.resident[component]
            if resident and not link.listed:
                self.orders[group].use(link)
            elif not resident and link.listed:
                self.orders[group].leave(link)

"""What the prefix tree is made of: nodes, roots, and the path that a key takes through them."""

from bisect import bisect_left, bisect_right

import numpy as np

from transom.kv.holding import Namespace
from transom.kv.order import Link, Price
from transom.kv.pool import Pages
from transom.values import Tokens

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
    prices   what giving would cost, by component, as far as it was asked for since the node changed
    start    pages before it
    parted   whether requests have parted at its end, who may come again when what they left has gone
    pinned   until which step a user has pinned it
    """

    __slots__ = (
        "children",
        "key",
        "links",
        "order",
        "pages",
        "parent",
        "parted",
        "pinned",
        "prices",
        "resident",
        "start",
    )

    def __init__(self, parent: "Node | None", key: bytes, pages: tuple[Pages, ...], orders: int) -> None:
        self.parent = parent
        self.start: int = 0 if parent is None else parent.start + parent.size
        self.pinned = 0
        self.parted = False
        self.key = key
        self.pages = pages
        self.resident = residency(pages)
        self.prices: dict[int, Price] = {}
        self.children: dict[bytes, Node] = {}
        self.order: list[bytes] = []
        self.links: tuple[Link[Node], ...] = tuple([Link(self) for _ in range(orders)])

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
        if start == end:
            return NO_PAGES
        nodes, starts = self.nodes, self.starts
        first, last = bisect_right(starts, start) - 1, bisect_left(starts, end) - 1
        start, end = start - starts[first], end - starts[last]
        if first == last:
            return nodes[first].pages[component][start:end]
        between = [node.pages[component] for node in nodes[first + 1 : last]]
        return np.concatenate(
            [nodes[first].pages[component][start:], *between, nodes[last].pages[component][:end]]
        )

    def residency(self, component: int) -> bytes:
        """A byte per page of the path: 1 where it is resident."""
        whole = b"".join([node.resident[component] for node in self.nodes])
        return whole[: self.pages]


def residency(pages: tuple[Pages, ...]) -> tuple[bytes, ...]:
    return tuple([(entries != 0).tobytes() for entries in pages])


def shared_tokens(left: bytes, right: bytes) -> int:
    """Tokens that two keys have in common from their beginning."""
    assert len(left) % TOKEN_BYTES == len(right) % TOKEN_BYTES == 0, (left, right)
    count = min(len(left), len(right)) // TOKEN_BYTES
    if left[: count * TOKEN_BYTES] == right[: count * TOKEN_BYTES]:
        return count
    differs = np.frombuffer(left, np.int32, count) != np.frombuffer(right, np.int32, count)
    return int(differs.argmax())


def as_key(tokens: Tokens, count: int) -> bytes:
    """The first `count` tokens as the tree compares them, from any integer array."""
    return np.asarray(tokens)[:count].astype(np.int32, copy=False).tobytes()

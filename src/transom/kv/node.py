"""Nodes and roots of the radix tree, and the path that a key takes through it."""

from bisect import bisect_left, bisect_right
from functools import lru_cache
from sys import byteorder

import numpy as np

from transom.kv.children import NO_CHILDREN, Children
from transom.kv.holding import Namespace
from transom.kv.pool import ID_BYTES, Pages, Run, pages_of
from transom.values import Tokens

TOKEN_BYTES = 4
NO_PAGES: Pages = np.zeros(0, dtype=np.int64)
NO_NUMBER = -1
INTERNED = 16
"""Pages of a node up to which `resident` is one object for all nodes with the same value."""
_TOKEN = np.dtype(np.int32)
_PAGE = np.dtype(np.int64)
NO_PAGE = np.array(0, dtype=np.int64)


Above = tuple["Above", bytes] | tuple[()]
"""The tokens before a node: a link to those before its parent, and the parent's key. Never changes."""

NO_TOKENS: Above = ()


class Node:
    """A run of tokens after its parent's, in whole pages. Mutable, owned by the tree.

    A cache has as many nodes as memory allows, so a node has few objects of its own: the pages of all
    components lie in one `packed`, the children in one tuple, its uses in columns of the eviction queues.

    key        tokens as int32 bytes, a multiple of the page; empty in roots only
    packed     page ids as int64 bytes, one per page of the key, component after component; 0 = hole
    resident   per component, one byte per page: 1 where there is a page
    size       pages of the key
    start      pages before the node
    above      tokens before the node: the keys of the nodes that were above it when it was created
    namespace  that of its root
    children   in the order of their keys
    branched   whether requests continued differently after its end; stays set when the children are gone
    pinned     the step until which a user has pinned it, 0 if never
    number     its place in the columns of the eviction queues
    """

    __slots__ = (
        "above",
        "branched",
        "children",
        "key",
        "namespace",
        "number",
        "packed",
        "parent",
        "pinned",
        "resident",
        "size",
        "start",
    )

    def __init__(
        self, parent: "Node | None", namespace: Namespace, key: bytes, runs: tuple[Run, ...]
    ) -> None:
        self.parent = parent
        self.namespace = namespace
        self.key: bytes = key
        self.start: int = 0
        self.above = NO_TOKENS
        if parent is not None:
            self.start = parent.start + parent.size
            self.above = _above(parent)
        self.branched = False
        self.pinned = 0
        self.number = NO_NUMBER
        self.packed: Run = b"".join(runs)
        self.resident = residency(runs)
        self.size: int = len(self.resident[0])
        self.children: Children[Node] = NO_CHILDREN

    def run(self, component: int) -> Run:
        """The page ids of one component."""
        assert 0 <= component < len(self.resident), (component, self)
        length = self.size * ID_BYTES
        return self.packed[component * length : (component + 1) * length]

    @property
    def runs(self) -> tuple[Run, ...]:
        """`run` of all components."""
        return tuple([self.run(component) for component in range(len(self.resident))])

    @property
    def pages(self) -> tuple[Pages, ...]:
        """`runs` as arrays."""
        return tuple([pages_of(run) for run in self.runs])

    def page(self, component: int, index: int) -> int:
        """The page id at `index`, 0 if there is a hole."""
        assert 0 <= index < self.size, (index, self)
        at = (component * self.size + index) * ID_BYTES
        return int.from_bytes(self.packed[at : at + ID_BYTES], byteorder)

    def __repr__(self) -> str:
        return f"Node({np.frombuffer(self.key, dtype=np.int32).tolist()}, {[p.tolist() for p in self.pages]})"


def _above(parent: Node) -> Above:
    """The tokens before a new child of `parent`."""
    assert parent.key or parent.parent is None, parent
    if not parent.key:
        return NO_TOKENS
    # Siblings share one link. A sibling from before a split of the parent has another one.
    sibling = next(iter(parent.children), None)
    if sibling is not None and sibling.above and sibling.above[1] is parent.key:
        return sibling.above
    return (parent.above, parent.key)


class Root(Node):
    """The empty beginning of one namespace."""

    __slots__ = ()

    def __init__(self, namespace: Namespace, components: int) -> None:
        super().__init__(None, namespace, b"", (b"",) * components)


class Path:
    """The nodes that share tokens with a key, from below the root. The last one may be shared in part.

    starts pages before each node
    pages  whole pages shared
    end    the deepest node, or the root
    """

    __slots__ = ("end", "nodes", "pages", "root", "starts")

    def __init__(self, root: Node, nodes: list[Node], starts: list[int], pages: int) -> None:
        assert len(nodes) == len(starts), (nodes, starts)
        self.root = root
        self.nodes = nodes
        self.starts = starts
        self.pages = pages
        self.end = nodes[-1] if nodes else root

    def follow(self, node: Node) -> None:
        """Adds `node`, a new child of the last one, all of which is shared."""
        assert node.parent is self.end or not self.nodes, (node, self.end)
        self.nodes.append(node)
        self.starts.append(self.pages)
        self.pages += node.size
        self.end = node

    def lengthen(self, pages: int) -> None:
        """The last node grew in place by `pages`, which are shared too."""
        self.pages += pages
        assert self.within == self.end.size, (self.within, self.end)

    def cut_last(self, upper: Node) -> None:
        """The last node was split where the sharing ends; `upper` is the shared part."""
        assert upper.size == self.within, (upper, self.within)
        self.nodes[-1] = self.end = upper

    @property
    def within(self) -> int:
        """Shared pages of `end`; 0 at the root."""
        return self.pages - self.starts[-1] if self.starts else 0

    def after(self, pages: int) -> tuple[Node, int]:
        """The node in which the first `pages` of the path end, and how many of its pages they cover."""
        assert 0 <= pages <= self.pages, (pages, self.pages)
        # `bisect_left`: a boundary between two nodes belongs to the first, at whose end it lies.
        which = bisect_left(self.starts, pages) - 1
        return (self.nodes[which], pages - self.starts[which]) if which >= 0 else (self.root, 0)

    def start_of(self, page: int) -> int:
        """The first page of the node that holds page `page` of the path."""
        assert 0 <= page < self.pages, (page, self.pages)
        return self.starts[bisect_right(self.starts, page) - 1]

    def read(self, component: int, start: int, end: int) -> Pages:
        """Page ids [start, end) of the path, 0 = hole. Not to be written to."""
        assert start <= end <= self.pages, (start, end, self.pages)
        if start == end:
            return NO_PAGES
        first = bisect_right(self.starts, start) - 1
        start -= self.starts[first]
        end -= self.starts[first]
        node = self.nodes[first]
        if end <= node.size:
            at = component * node.size
            return pages_of(node.packed[(at + start) * ID_BYTES : (at + end) * ID_BYTES])
        # `Node.run`, without a call for each node of a long path.
        run = b"".join(
            [
                node.packed[(length := node.size * ID_BYTES) * component : length * (component + 1)]
                for node in self.nodes[first:]
            ]
        )
        return pages_of(run[start * ID_BYTES : end * ID_BYTES])

    def residency(self, component: int) -> bytes:
        """A byte per page of the path: 1 where it is resident in `component`."""
        whole = b"".join([node.resident[component] for node in self.nodes])
        return whole[: self.pages]


def residency(runs: tuple[Run, ...]) -> tuple[bytes, ...]:
    """Per run, a byte per page: 1 where it is no hole. Bytes, for their fast `find` and `count`."""
    resident = tuple([(np.frombuffer(run, _PAGE) != NO_PAGE).tobytes() for run in runs])
    return _interned(resident) if len(resident[0]) <= INTERNED else resident


@lru_cache(maxsize=4096)
def _interned(resident: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """One object for all equal values: short nodes have few different ones."""
    return resident


def joined(above: Above, *keys: bytes) -> bytes:
    """The tokens of `above`, then `keys`."""
    parts = list(keys[::-1])
    while above:
        above, key = above
        parts.append(key)
    return b"".join(parts[::-1])


def shared_tokens(left: bytes, right: bytes) -> int:
    """The length, in tokens, of the common prefix of two keys."""
    assert len(left) % TOKEN_BYTES == len(right) % TOKEN_BYTES == 0, (left, right)
    count = min(len(left), len(right)) // TOKEN_BYTES
    # Comparing bytes first: mostly all of the shorter key is shared, and then no array is needed.
    if left[: count * TOKEN_BYTES] == right[: count * TOKEN_BYTES]:
        return count
    differs = np.frombuffer(left, np.int32, count) != np.frombuffer(right, np.int32, count)
    return int(differs.argmax())


def as_key(tokens: Tokens, count: int) -> bytes:
    """The first `count` tokens of any integer array, as the tree compares them: int32 bytes."""
    assert 0 <= count <= len(tokens), (count, len(tokens))
    if type(tokens) is not np.ndarray or tokens.dtype is not _TOKEN:
        tokens = np.asarray(tokens).astype(np.int32, copy=False)
    return tokens[:count].tobytes()

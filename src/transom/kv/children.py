"""The children of a tree node, in the order of their keys: a tuple, or buckets where there are many.

No dict: that takes several times the memory of the references, and keys of its own. A child is found by
binary search over the keys that the children have anyway. Siblings differ in their first page.
"""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import chain
from operator import attrgetter
from typing import Generic, Protocol, TypeVar

NARROW = 8
"""Children up to which they lie in a tuple. It is copied when it changes."""
BUCKET = 256
"""Children at which a bucket is split: a change moves no more than that, however many there are."""


class Keyed(Protocol):
    key: bytes


Child = TypeVar("Child", bound=Keyed)
_KEY = attrgetter("key")


class Buckets(Generic[Child]):
    """Many children, in buckets, beside their keys. Mutable; a bucket is never empty.

    A child's key may change as long as its first page stays the same: the order is that of first pages. Keys
    that have changed stay here until the next `put` of the child.
    """

    __slots__ = ("_count", "_keys", "_lasts", "_nodes")

    def __init__(self, children: tuple[Child, ...]) -> None:
        assert children, "a bucket is never empty"
        self._nodes = [list(children)]
        self._keys = [[child.key for child in children]]
        self._lasts = [children[-1].key]
        """The last key in each bucket."""
        self._count = len(children)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Child]:
        return chain.from_iterable(self._nodes)

    def find(self, page: bytes) -> Child | None:
        assert len(self._lasts) == len(self._keys), (len(self._lasts), len(self._keys))
        # Without `_place`: every lookup of a prompt comes here.
        index = bisect_left(self._lasts, page)
        if index == len(self._lasts):
            return None
        keys = self._keys[index]
        at = bisect_left(keys, page)
        return self._nodes[index][at] if keys[at].startswith(page) else None

    def put(self, child: Child, page: bytes) -> None:
        """Adds a child, or replaces the one with the same first page."""
        assert child.key.startswith(page), (child, page)
        index, at = self._place(page)
        keys, nodes = self._keys[index], self._nodes[index]
        same = at < len(keys) and keys[at].startswith(page)
        keys[at : at + same], nodes[at : at + same] = [child.key], [child]
        self._count += not same
        if len(keys) > BUCKET:
            half = BUCKET // 2
            self._keys[index : index + 1] = [keys[:half], keys[half:]]
            self._nodes[index : index + 1] = [nodes[:half], nodes[half:]]
            self._lasts.insert(index, keys[half - 1])
        elif at == len(keys) - 1:
            self._lasts[index] = child.key

    def remove(self, child: Child, page: bytes) -> None:
        index, at = self._place(page)
        keys, nodes = self._keys[index], self._nodes[index]
        assert nodes[at] is child, (child, nodes[at])
        del keys[at], nodes[at]
        self._count -= 1
        if not keys:
            del self._keys[index], self._nodes[index], self._lasts[index]
        else:
            self._lasts[index] = keys[-1]

    def from_page(self, page: bytes) -> Iterator[Child]:
        """The children from `page` on, in order."""
        index, at = self._place(page)
        yield from self._nodes[index][at:]
        for later in self._nodes[index + 1 :]:
            yield from later

    def before_page(self, page: bytes) -> Iterator[Child]:
        """The children before `page`, the last one first."""
        index, at = self._place(page)
        yield from self._nodes[index][:at][::-1]
        for earlier in self._nodes[:index][::-1]:
            yield from earlier[::-1]

    def _place(self, page: bytes) -> tuple[int, int]:
        """The bucket in which `page` lies or would lie, and its place there."""
        assert self._lasts, "a bucket is never empty"
        index = bisect_left(self._lasts, page)
        if index == len(self._lasts):
            index -= 1
        return index, bisect_left(self._keys[index], page)


Children = tuple[Child, ...] | Buckets[Child]
NO_CHILDREN: tuple[()] = ()


def child_of(children: Children[Child], page: bytes) -> Child | None:
    """The child whose key begins with `page`, all tokens of a page."""
    if isinstance(children, Buckets):
        return children.find(page)
    for child in children:  # few; mostly there is one
        if child.key.startswith(page):
            return child
    return None


def with_child(children: Children[Child], child: Child, page: bytes) -> Children[Child]:
    """The children with `child`, whose first page is `page`, in place of a child with the same page."""
    if isinstance(children, tuple) and len(children) < NARROW:
        at = bisect_left(children, page, key=_KEY)
        same = at < len(children) and children[at].key.startswith(page)
        return (*children[:at], child, *children[at + same :])
    wide = Buckets(children) if isinstance(children, tuple) else children
    wide.put(child, page)
    return wide


def without_child(children: Children[Child], child: Child, page: bytes) -> Children[Child]:
    """The children without `child`, whose first page is `page`."""
    if isinstance(children, Buckets):
        children.remove(child, page)
        # Half of NARROW, so that a child more or less does not convert them at every change.
        return children if len(children) > NARROW // 2 else tuple(children)
    at = children.index(child)
    return children[:at] + children[at + 1 :]


def refresh(children: Children[Child], child: Child, page: bytes) -> None:
    """The key of `child` has changed, except for its first page: the old key need not stay in memory."""
    if isinstance(children, Buckets) and children.find(page) is child:
        children.put(child, page)


def around(children: Children[Child], page: bytes) -> tuple[Iterator[Child], Iterator[Child]]:
    """The children from `page` on, in order, and those before it, backwards."""
    if isinstance(children, Buckets):
        return children.from_page(page), children.before_page(page)
    at = bisect_left(children, page, key=_KEY)
    return iter(children[at:]), iter(children[:at][::-1])

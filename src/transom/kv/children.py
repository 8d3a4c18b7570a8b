"""The children of a tree node, in the order of their keys: a tuple, or buckets where there are many.

No dict: that takes several times the memory of the references, and keys of its own. A child is found by
binary search over the keys that the children have anyway. Siblings differ in their first page.
"""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import chain
from operator import attrgetter
from typing import Generic, Protocol, TypeVar

NARROW = 64
"""Children up to which they lie in a tuple. It is copied when it changes."""
BUCKET = 256
"""Children at which a bucket is split: a change moves no more than that, however many there are."""


class Keyed(Protocol):
    key: bytes


Child = TypeVar("Child", bound=Keyed)
_KEY = attrgetter("key")


class Buckets(Generic[Child]):
    """Many children, in buckets. Mutable; a bucket is never empty.

    A child's key may change as long as its first page stays the same: the order is that of first pages.
    """

    __slots__ = ("_buckets", "_count", "_lasts")

    def __init__(self, children: tuple[Child, ...]) -> None:
        assert children, "a bucket is never empty"
        self._buckets = [list(children)]
        self._lasts = [children[-1].key]
        """The last key in each bucket, or an earlier key of the same child."""
        self._count = len(children)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Child]:
        return chain.from_iterable(self._buckets)

    def bucket(self, page: bytes) -> list[Child]:
        """The children among which `page` lies, or after which it would lie."""
        return self._buckets[self._index(page)]

    def put(self, child: Child, page: bytes) -> None:
        """Adds a child, or replaces the one with the same first page."""
        index = self._index(page)
        bucket = self._buckets[index]
        at = bisect_left(bucket, page, key=_KEY)
        if at < len(bucket) and bucket[at].key.startswith(page):
            bucket[at] = child
        else:
            bucket.insert(at, child)
            self._count += 1
        self._lasts[index] = bucket[-1].key
        if len(bucket) > BUCKET:
            self._buckets[index : index + 1] = [bucket[: BUCKET // 2], bucket[BUCKET // 2 :]]
            self._lasts.insert(index, self._buckets[index][-1].key)

    def remove(self, page: bytes) -> None:
        index = self._index(page)
        bucket = self._buckets[index]
        at = bisect_left(bucket, page, key=_KEY)
        assert bucket[at].key.startswith(page), (page, bucket[at])
        del bucket[at]
        self._count -= 1
        if bucket:
            self._lasts[index] = bucket[-1].key
        else:
            del self._buckets[index], self._lasts[index]

    def from_page(self, page: bytes) -> Iterator[Child]:
        """The children from `page` on, in order."""
        index = self._index(page)
        bucket = self._buckets[index]
        yield from bucket[bisect_left(bucket, page, key=_KEY) :]
        for later in self._buckets[index + 1 :]:
            yield from later

    def before_page(self, page: bytes) -> Iterator[Child]:
        """The children before `page`, the last one first."""
        index = self._index(page)
        bucket = self._buckets[index]
        yield from bucket[: bisect_left(bucket, page, key=_KEY)][::-1]
        for earlier in self._buckets[:index][::-1]:
            yield from earlier[::-1]

    def _index(self, page: bytes) -> int:
        return min(bisect_left(self._lasts, page), len(self._lasts) - 1)


Children = tuple[Child, ...] | Buckets[Child]
NO_CHILDREN: tuple[()] = ()


def child_of(children: Children[Child], page: bytes) -> Child | None:
    """The child whose key begins with `page`, all tokens of a page."""
    bucket = children.bucket(page) if isinstance(children, Buckets) else children
    if len(bucket) == 1:
        return bucket[0] if bucket[0].key.startswith(page) else None
    at = bisect_left(bucket, page, key=_KEY)
    # Keys that begin with `page` are not below it, so the first such key lies here if there is one.
    return bucket[at] if at < len(bucket) and bucket[at].key.startswith(page) else None


def with_child(children: Children[Child], child: Child, page: bytes) -> Children[Child]:
    """The children with `child`, whose first page is `page`, in place of a child with the same page."""
    if isinstance(children, tuple) and len(children) < NARROW:
        at = bisect_left(children, page, key=_KEY)
        same = at < len(children) and children[at].key.startswith(page)
        return (*children[:at], child, *children[at + same :])
    wide = Buckets(children) if isinstance(children, tuple) else children
    wide.put(child, page)
    return wide


def without_child(children: Children[Child], page: bytes) -> Children[Child]:
    """The children without the one whose first page is `page`."""
    if isinstance(children, Buckets):
        children.remove(page)
        # Half of NARROW, so that a child more or less does not convert them at every change.
        return children if len(children) > NARROW // 2 else tuple(children)
    at = bisect_left(children, page, key=_KEY)
    assert children[at].key.startswith(page), (page, children)
    return children[:at] + children[at + 1 :]


def around(children: Children[Child], page: bytes) -> tuple[Iterator[Child], Iterator[Child]]:
    """The children from `page` on, in order, and those before it, backwards."""
    if isinstance(children, Buckets):
        return children.from_page(page), children.before_page(page)
    at = bisect_left(children, page, key=_KEY)
    return iter(children[at:]), iter(children[:at][::-1])

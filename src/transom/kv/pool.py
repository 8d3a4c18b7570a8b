"""Pages of one component: who owns each, and how many rows read it."""

from sys import byteorder
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from transom.errors import NoSpace
from transom.kv.journal import Journal

Pages = NDArray[np.int64]
"""Page ids in the one index type of the core. Arrays that nodes hold are never written to."""

FREE: Final = 0
TREE: Final = -1


def owner_of(row: int) -> int:
    """How the holding in `row` signs for its private pages."""
    return row + 1


def as_pages(pages: ArrayLike) -> Pages:
    """The boundary: any integer array (int32, strided, read-only, a list), in the index type."""
    return np.asarray(pages, dtype=np.int64)


def present(entries: Pages) -> Pages:
    """`entries` without holes; mostly there are none."""
    return entries if np.count_nonzero(entries) == len(entries) else entries[entries != 0]


class PagePool:
    """Owns pages 1..capacity; page 0 is the null page. Mutable. Every call is O(pages named).

    A page is free, or private to one holding, or the tree's and then read by `references` rows. A page given
    back by anyone but its owner, or twice, also within one call, is an assertion in every build.
    """

    __slots__ = (
        "_free",
        "_journal",
        "_owner",
        "_references",
        "_stamp",
        "capacity",
        "free",
        "idle",
        "name",
        "tree",
        "untouched",
    )

    def __init__(self, name: str, capacity: int, journal: Journal) -> None:
        assert capacity >= 0, capacity
        self.name = name
        self.capacity = capacity
        self.free = capacity
        """Pages nobody owns."""
        self.tree = 0
        """Pages of the tree."""
        self.idle = 0
        """Pages of the tree that no row reads."""
        self.untouched = capacity
        """Free pages that cost no memory: never taken, or discarded. They lie at the bottom of the stack."""
        self._free: Pages = np.arange(capacity, 0, -1, dtype=np.int64)
        self._owner = np.full(capacity + 1, FREE, dtype=np.int32)
        self._references = np.zeros(capacity + 1, dtype=np.int32)
        self._stamp = np.zeros(capacity + 1, dtype=np.int64)
        self._journal = journal

    @property
    def room(self) -> int:
        """Pages to be had: free, or reclaimable at once."""
        return self.free + self.idle

    # ---------------------------------------------------------------- queries

    def references(self, pages: ArrayLike) -> NDArray[np.int32]:
        """How many rows read each of `pages`."""
        return self._references[as_pages(pages)]

    def unreferenced(self, pages: ArrayLike) -> int:
        """How many of `pages` no row reads; 0 is no page."""
        index = as_pages(pages)
        return int(np.count_nonzero(index)) - int(np.count_nonzero(self._references[index]))

    def is_of_tree(self, page: int) -> bool:
        return bool(self._owner[page] == TREE)

    def owners(self) -> NDArray[np.int32]:
        """A copy: owner of each page, [capacity + 1]."""
        return self._owner.copy()

    def free_pages(self) -> Pages:
        """A copy of the free list; the next page to be taken is last."""
        return self._free[: self.free].copy()

    def untouched_pages(self) -> Pages:
        """A copy: the free pages that cost no memory."""
        return self._free[: self.untouched].copy()

    # ---------------------------------------------------------------- free <-> private

    def discard(self, count: int) -> Pages:
        """`count` free pages that were touched, from now on untouched; the next to be taken go last."""
        assert 0 < count <= self.free - self.untouched, (self.name, count, self.free, self.untouched)
        self._journal.assign(self, "untouched", self.untouched + count)
        return self._free[self.untouched - count : self.untouched].copy()

    def take(self, count: int, owner: int) -> Pages:
        """`count` free pages, now private to `owner`. Raises NoSpace."""
        assert owner > FREE and count >= 0, (owner, count)
        if count > self.free:
            raise NoSpace(self.name, count, self.free)
        pages = self._free[self.free - count : self.free][::-1].copy()
        assert self._all_of(pages, FREE), (self.name, pages)
        self._journal.log(self._untake, pages, self.untouched)
        self.free -= count
        self.untouched = min(self.untouched, self.free)
        self._owner[pages] = owner
        return pages

    def give(self, pages: ArrayLike, owner: int) -> None:
        """Takes the private pages of `owner` back."""
        index = as_pages(pages)
        self._require(index, owner)
        self._journal.log(self._pop, index, owner)
        self._push(index)

    # ---------------------------------------------------------------- private <-> tree

    def adopt(self, pages: ArrayLike, owner: int) -> None:
        """Private pages of `owner` become the tree's, each read by one row: the giver's."""
        index = as_pages(pages)
        self._require(index, owner)
        self._journal.log(self._disown, index, owner)
        self._owner[index] = TREE
        self._references[index] = 1
        self.tree += len(index)

    def release(self, pages: ArrayLike) -> None:
        """Unreferenced pages of the tree become free."""
        index = as_pages(pages)
        self._require(index, TREE)
        assert not self._references[index].any(), (self.name, index, self._references[index])
        self._journal.log(self._unrelease, index)
        self._push(index)
        self.tree -= len(index)
        self.idle -= len(index)

    # ---------------------------------------------------------------- references

    def reference(self, pages: ArrayLike) -> None:
        """One more row reads each of `pages`, distinct pages of the tree."""
        index = as_pages(pages)
        assert self._all_of(index, TREE), (self.name, index, self._owner[index])
        self._journal.log(self._subtract, index)
        self._add(index)

    def unreference(self, pages: ArrayLike) -> None:
        """One row less reads each of `pages`, distinct pages of the tree."""
        index = as_pages(pages)
        counts = self._references[index]
        assert np.count_nonzero(counts) == len(index), (self.name, index, counts)
        self._journal.log(self._add, index)
        counts -= 1
        self._references[index] = counts
        self.idle += len(index) - int(np.count_nonzero(counts))

    # ---------------------------------------------------------------- inverses

    def _require(self, index: Pages, owner: int) -> None:
        """All of `index` are `owner`'s, none named twice."""
        assert self._all_of(index, owner), (self.name, owner, index, self._owner[index])
        order = np.arange(len(index))
        self._stamp[index] = order
        assert self._stamp[index].tobytes() == order.tobytes(), (self.name, "named twice", index)

    def _all_of(self, index: Pages, owner: int) -> bool:
        """Compared as bytes, which takes a third of the time of a reduction."""
        return self._owner[index].tobytes() == owner.to_bytes(4, byteorder, signed=True) * len(index)

    def _untake(self, pages: Pages, untouched: int) -> None:
        self._push(pages)
        self.untouched = untouched

    def _push(self, index: Pages) -> None:
        # Reversed, so that undoing a take restores the stack to the entry.
        self._free[self.free : self.free + len(index)] = index[::-1]
        self.free += len(index)
        self._owner[index] = FREE

    def _pop(self, index: Pages, owner: int) -> None:
        self.free -= len(index)
        assert self.untouched <= self.free, (self.name, self.untouched, self.free)
        lying = self._free[self.free : self.free + len(index)]
        assert lying.tobytes() == index[::-1].tobytes(), (self.name, index)
        self._owner[index] = owner

    def _disown(self, index: Pages, owner: int) -> None:
        self._owner[index] = owner
        self._references[index] = 0
        self.tree -= len(index)

    def _unrelease(self, index: Pages) -> None:
        self._pop(index, TREE)
        self.tree += len(index)
        self.idle += len(index)

    def _add(self, index: Pages) -> None:
        counts = self._references[index]
        self.idle -= len(index) - int(np.count_nonzero(counts))
        self._references[index] = counts + 1

    def _subtract(self, index: Pages) -> None:
        counts = self._references[index] - 1
        self._references[index] = counts
        self.idle += len(index) - int(np.count_nonzero(counts))

"""Pages of one component: who owns each, and how many rows read it."""

from inspect import unwrap
from sys import byteorder
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from transom.errors import NoSpace
from transom.kv.journal import Journal

Pages = NDArray[np.int64]
"""Page ids in the one index type of the core."""

Run = bytes
"""The same as immutable bytes, which are cheaper to cut, join and keep for undoing than arrays."""

ID_BYTES: Final = 8

TREE: Final = 0
"""0, so that counting what is not 0 counts what is read."""
FREE: Final = 0x7FFF_FFFF
"""No row signs like that."""


def owner_of(row: int) -> int:
    """How the holding in `row` signs for its private pages."""
    assert row >= 0, row
    return row + 1


def as_pages(pages: ArrayLike) -> Pages:
    """The boundary: any integer array (int32, strided, read-only, a list), in the index type."""
    if type(pages) is np.ndarray and pages.dtype is _ID:
        return pages
    return np.asarray(pages, _ID)


def pages_of(run: Run) -> Pages:
    """A view, which cannot be written to."""
    return np.frombuffer(run, _ID)


def present(entries: Pages) -> Pages:
    """`entries` without holes; mostly there are none."""
    return entries if _count_nonzero(entries) == len(entries) else entries[entries != 0]


def without_holes(run: Run) -> Run:
    """The same of a run."""
    return present(pages_of(run)).tobytes() if run else run


_count_nonzero = unwrap(np.count_nonzero)
"""Without the dispatch to other array types, which takes longer than the counting."""
_ID = np.dtype(np.int64)
_READ_ONCE = np.array(TREE - 1, np.int32)
_ONE, _TREE = np.array(1, np.int32), np.array(TREE, np.int32)
"""As arrays: numpy takes twice as long to compute with a Python number."""
_MARKS = np.arange(1 << 12, dtype=np.int32)


class PagePool:
    """Owns pages 1..capacity; page 0 is the null page. Mutable. Every call is O(pages named).

    A page is free, or private to one holding, or the tree's and then read by `references` rows. A page given
    back by anyone but its owner, or twice, also within one call, is an assertion in every build.
    """

    __slots__ = (
        "_free",
        "_journal",
        "_marked",
        "_state",
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
        self._state = np.full(capacity + 1, FREE, dtype=np.int32)
        """Per page: FREE, or its owner, or TREE less one for each row that reads it."""
        self._marked = np.zeros(capacity + 1, dtype=np.int32)
        self._journal = journal

    @property
    def available(self) -> int:
        """Pages that can be allocated now: free, or of the tree and unreferenced."""
        return self.free + self.idle

    # ---------------------------------------------------------------- queries

    def references(self, pages: ArrayLike) -> NDArray[np.int32]:
        """How many rows read each of `pages`."""
        readers: NDArray[np.int32] = np.maximum(TREE - self._state[as_pages(pages)], 0)
        return readers

    def alone(self, rows: NDArray[np.int32]) -> Pages:
        """Of each row of `rows`: pages that no other row reads, private ones among them; 0 is no page."""
        alone = self._state.take(rows.astype(_ID)) >= _READ_ONCE
        alone &= rows != 0
        counts: Pages = np.add.reduce(alone, axis=1, dtype=_ID)
        return counts

    def idle_among(self, run: Run) -> bytes:
        """A byte per page: 1 where it is of the tree and no row reads it; 0 is no page."""
        idle: NDArray[np.bool_] = self._state[np.frombuffer(run, _ID)] == _TREE
        return idle.tobytes()

    def unreferenced(self, pages: Pages) -> int:
        """How many of `pages` no row reads; 0 is no page."""
        return len(pages) - int(_count_nonzero(self._state[pages]))

    def is_of_tree(self, page: int) -> bool:
        assert 0 < page <= self.capacity, (self.name, page)
        return bool(self._state[page] <= TREE)

    def owners(self) -> NDArray[np.int32]:
        """A copy: owner of each page, [capacity + 1]."""
        owners: NDArray[np.int32] = np.maximum(self._state, TREE)
        return owners

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
        assert TREE < owner < FREE and count >= 0, (owner, count)
        if count > self.free:
            raise NoSpace(self.name, count, self.free)
        pages = self._free[self.free - count : self.free][::-1].copy()
        assert self._all_are(pages, FREE), (self.name, pages)
        self._journal.log(self._untake, pages, self.untouched)
        self.free -= count
        if self.untouched > self.free:
            self.untouched = self.free
        self._state[pages] = owner
        return pages

    def give(self, pages: ArrayLike, owner: int) -> None:
        """Takes the private pages of `owner` back."""
        index = as_pages(pages)
        assert TREE < owner < FREE, (owner, index)
        self._require(index, owner)
        self._journal.log(self._pop, index, owner)
        self._push(index)

    # ---------------------------------------------------------------- private <-> tree

    def adopt(self, pages: ArrayLike, owner: int) -> None:
        """Private pages of `owner` become the tree's, each read by one row: the giver's."""
        index = as_pages(pages)
        assert TREE < owner < FREE, (owner, index)
        self._require(index, owner)
        self._journal.log(self._disown, index, owner)
        self._state[index] = TREE - 1
        self.tree += len(index)

    def release(self, pages: ArrayLike) -> None:
        """Unreferenced pages of the tree become free."""
        index = as_pages(pages)
        self._require(index, TREE)
        self._journal.log(self._unrelease, index)
        self._push(index)
        self.tree -= len(index)
        self.idle -= len(index)

    # ---------------------------------------------------------------- references

    def reference(self, pages: ArrayLike) -> None:
        """One more row reads each of `pages`, distinct pages of the tree."""
        index = as_pages(pages)
        if not len(index):
            return
        state = self._state[index]
        fewest = TREE - state.item(state.argmax())
        assert fewest >= 0, (self.name, "not the tree's", index, state)
        self._journal.log(self._end_read, index)
        self._state[index] = state - _ONE
        if not fewest:
            self.idle -= len(index) - int(_count_nonzero(state))

    def unreference(self, pages: ArrayLike) -> None:
        """One row less reads each of `pages`, distinct pages of the tree."""
        index = as_pages(pages)
        if not len(index):
            return
        state = self._state[index]
        fewest = TREE - state.item(state.argmax())
        assert fewest > 0, (self.name, "read by nobody", index, state)
        self._journal.log(self._begin_read, index)
        state += _ONE
        self._state[index] = state
        if fewest == 1:
            self.idle += len(index) - int(_count_nonzero(state))

    # ---------------------------------------------------------------- inverses

    def _require(self, pages: Pages, state: int) -> None:
        """All of `pages` are in `state`, none named twice: marks written to each are there when read back."""
        assert self._all_are(pages, state), (self.name, state, pages, self._state[pages])
        count = len(pages)
        if count > 1:
            marks = _MARKS[:count] if count <= len(_MARKS) else np.arange(count, dtype=np.int32)
            self._marked[pages] = marks
            assert self._marked[pages].tobytes() == marks.tobytes(), (self.name, "named twice", pages)

    def _all_are(self, pages: Pages, state: int) -> bool:
        """Compared as bytes, which takes a third of the time of a reduction."""
        return self._state[pages].tobytes() == state.to_bytes(4, byteorder, signed=True) * len(pages)

    def _untake(self, pages: Pages, untouched: int) -> None:
        assert untouched <= self.free + len(pages), (self.name, untouched, self.free, pages)
        self._push(pages)
        self.untouched = untouched

    def _push(self, pages: Pages) -> None:
        # Reversed, so that undoing a take restores the stack to the entry.
        free = self.free + len(pages)
        assert free <= self.capacity, (self.name, self.free, pages)
        self._free[self.free : free] = pages[::-1]
        self.free = free
        self._state[pages] = FREE

    def _pop(self, pages: Pages, state: int) -> None:
        self.free -= len(pages)
        assert self.untouched <= self.free, (self.name, self.untouched, self.free)
        lying = self._free[self.free : self.free + len(pages)]
        assert lying.tobytes() == pages[::-1].tobytes(), (self.name, pages)
        self._state[pages] = state

    def _disown(self, pages: Pages, owner: int) -> None:
        assert self._all_are(pages, TREE - 1), (self.name, pages, self._state[pages])
        self._state[pages] = owner
        self.tree -= len(pages)

    def _unrelease(self, pages: Pages) -> None:
        self._pop(pages, TREE)
        self.tree += len(pages)
        self.idle += len(pages)
        assert self.idle <= self.tree <= self.capacity - self.free, (self.name, self.idle, self.tree)

    def _begin_read(self, pages: Pages) -> None:
        self.idle -= self.unreferenced(pages)
        assert self.idle >= 0, (self.name, self.idle, pages)
        self._state[pages] -= _ONE

    def _end_read(self, pages: Pages) -> None:
        self._state[pages] += _ONE
        self.idle += self.unreferenced(pages)
        assert self.idle <= self.tree, (self.name, self.idle, self.tree, pages)

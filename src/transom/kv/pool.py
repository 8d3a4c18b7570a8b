"""Page pools: the owner of each page of one component, and the number of rows that read it.

One int32 per page holds both, so that each transition is one gather and one scatter over the pages it names:

    FREE                 free
    row + 1 (> TREE)     private to the holding in that row
    TREE - n (<= TREE)   in the radix tree, read by n rows
"""

from inspect import unwrap
from sys import byteorder
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from transom.errors import NoSpace
from transom.kv.journal import Journal

Pages = NDArray[np.int64]
"""Page ids, in the index type that numpy indexes with; other types would be converted at every use."""

Run = bytes
"""Page ids as immutable bytes (int64): cheaper to slice, join and keep for rollback than arrays."""

ID_BYTES: Final = 8

TREE: Final = 0
"""0, so that a page of the tree is referenced exactly if its state is not 0."""
FREE: Final = 0x7FFF_FFFF
"""Larger than the owner of any row."""


def owner_of(row: int) -> int:
    """The owner of private pages of the holding in `row`."""
    assert row >= 0, row
    return row + 1


def as_pages(pages: ArrayLike) -> Pages:
    """Any integer array or list in the index type. The pools' public methods convert here, once."""
    # `is`, because comparing dtypes by value takes longer. `asarray` handles equal dtypes, without a copy.
    if type(pages) is np.ndarray and pages.dtype is _ID:
        return pages
    return np.asarray(pages, _ID)


def pages_of(run: Run) -> Pages:
    """A read-only view."""
    return np.frombuffer(run, _ID)


def present(entries: Pages) -> Pages:
    """`entries` without zeros. Mostly there is no zero, and then no copy is made."""
    return entries if _count_nonzero(entries) == len(entries) else entries[entries != 0]


def without_holes(run: Run) -> Run:
    """`present` for a run."""
    return present(pages_of(run)).tobytes() if run else run


_count_nonzero = unwrap(np.count_nonzero)
"""numpy's function without its dispatch to other array types, which takes longer than the counting."""
_ID = np.dtype(np.int64)
_ONE, _TREE = np.array(1, np.int32), np.array(TREE, np.int32)
"""As arrays: numpy takes twice as long to compute with Python numbers."""
_MARKS = np.arange(1 << 12, dtype=np.int32)
"""Marks for `_require`, prepared for all but the longest lists of pages."""


class PagePool:
    """Owns pages 1..capacity; page 0 is the null page. Mutable. Every call is O(pages named).

        allocate                adopt                  free_evicted
    free ------> private to a row ------> in the tree ------> free
                 |                        reference, unreference
                 +-- free_private --> free

    Freeing a page twice, even within one call, or for the wrong owner is an assertion in every build: it
    would give one page to two requests.
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
        """Number of free pages."""
        self.tree = 0
        """Number of pages in the tree."""
        self.idle = 0
        """Number of pages in the tree that no row reads: these can be evicted."""
        self.untouched = capacity
        """Free pages that occupy no memory: never allocated, or discarded. The bottom of the free stack."""
        self._free: Pages = np.arange(capacity, 0, -1, dtype=np.int64)
        self._state = np.full(capacity + 1, FREE, dtype=np.int32)
        """Per page, see the head of the file."""
        self._marked = np.zeros(capacity + 1, dtype=np.int32)
        """Scratch of `_require`."""
        self._journal = journal

    @property
    def available(self) -> int:
        """Pages that can be allocated now: free, or in the tree and unreferenced."""
        return self.free + self.idle

    # ---------------------------------------------------------------- queries

    def references(self, pages: ArrayLike) -> NDArray[np.int32]:
        """How many rows read each of `pages`."""
        readers: NDArray[np.int32] = np.maximum(TREE - self._state[as_pages(pages)], 0)
        return readers

    def idle_among(self, run: Run) -> bytes:
        """A byte per page of `run`: 1 where the page is in the tree and no row reads it. 0 is no page."""
        idle: NDArray[np.bool_] = self._state[np.frombuffer(run, _ID)] == _TREE
        return idle.tobytes()

    def unreferenced(self, pages: Pages) -> int:
        """How many of `pages`, all in the tree, no row reads. 0 is no page."""
        return len(pages) - int(_count_nonzero(self._state[pages]))

    def is_of_tree(self, page: int) -> bool:
        assert 0 < page <= self.capacity, (self.name, page)
        return bool(self._state[page] <= TREE)

    def owners(self) -> NDArray[np.int32]:
        """The owner of each page, [capacity + 1], a copy."""
        owners: NDArray[np.int32] = np.maximum(self._state, TREE)
        return owners

    def free_pages(self) -> Pages:
        """The free stack, a copy; the next page to be allocated is last."""
        return self._free[: self.free].copy()

    def untouched_pages(self) -> Pages:
        """The free pages that occupy no memory, a copy."""
        return self._free[: self.untouched].copy()

    # ---------------------------------------------------------------- free <-> private

    def discard(self, count: int) -> Pages:
        """Marks `count` free pages as untouched, the last ones to be allocated, and returns them."""
        assert 0 < count <= self.free - self.untouched, (self.name, count, self.free, self.untouched)
        # The lowest touched pages of the stack, which would be allocated last. Only the boundary moves.
        self._journal.assign(self, "untouched", self.untouched + count)
        return self._free[self.untouched - count : self.untouched].copy()

    def allocate(self, count: int, owner: int) -> Pages:
        """Makes `count` free pages private to `owner`. Raises NoSpace."""
        assert TREE < owner < FREE and count >= 0, (owner, count)
        if count > self.free:
            raise NoSpace(self.name, count, self.free)
        # The order in which single allocations would pop them. A copy, because frees overwrite the stack.
        pages = self._free[self.free - count : self.free][::-1].copy()
        assert self._all_are(pages, FREE), (self.name, pages)
        self._journal.log(self._undo_allocate, pages, self.untouched)
        self.free -= count
        # The stack is used from the top, so touched pages go first. Below them lie the untouched ones.
        if self.untouched > self.free:
            self.untouched = self.free
        self._state[pages] = owner
        return pages

    def free_private(self, pages: ArrayLike, owner: int) -> None:
        """Frees private pages of `owner`."""
        index = as_pages(pages)
        assert TREE < owner < FREE, (owner, index)
        self._require(index, owner)
        self._journal.log(self._pop, index, owner)
        self._push(index)

    # ---------------------------------------------------------------- private <-> tree

    def adopt(self, pages: ArrayLike, owner: int) -> None:
        """Moves private pages of `owner` into the tree. Each is then read by one row, the owner's."""
        index = as_pages(pages)
        assert TREE < owner < FREE, (owner, index)
        self._require(index, owner)
        self._journal.log(self._undo_adopt, index, owner)
        self._state[index] = TREE - 1
        self.tree += len(index)

    def free_evicted(self, pages: ArrayLike) -> None:
        """Frees unreferenced pages of the tree."""
        index = as_pages(pages)
        self._require(index, TREE)
        self._journal.log(self._undo_free_evicted, index)
        self._push(index)
        self.tree -= len(index)
        self.idle -= len(index)

    # ---------------------------------------------------------------- references

    def reference(self, pages: ArrayLike) -> None:
        """Counts one more row that reads each of `pages`, distinct pages of the tree."""
        index = as_pages(pages)
        if not len(index):
            return
        state = self._state[index]
        # The fewest readers of any page: one reduction both checks that all pages are in the tree and tells
        # whether any of them was idle.
        fewest = TREE - state.item(state.argmax())
        assert fewest >= 0, (self.name, "not in the tree", index, state)
        self._journal.log(self._undo_reference, index)
        self._state[index] = state - _ONE
        # Pages that had no reader were idle.
        if not fewest:
            self.idle -= len(index) - int(_count_nonzero(state))

    def unreference(self, pages: ArrayLike) -> None:
        """Counts one row less that reads each of `pages`, distinct pages of the tree."""
        index = as_pages(pages)
        if not len(index):
            return
        state = self._state[index]
        fewest = TREE - state.item(state.argmax())
        assert fewest > 0, (self.name, "read by no row", index, state)
        self._journal.log(self._undo_unreference, index)
        state += _ONE
        self._state[index] = state
        # Only if some page had a single reader can any page have become idle.
        if fewest == 1:
            self.idle += len(index) - int(_count_nonzero(state))

    # ---------------------------------------------------------------- primitives, and inverses for rollback

    def _require(self, pages: Pages, state: int) -> None:
        """Asserts that all of `pages` are in `state`, and that no page is named twice.

        Duplicates: each page gets a different mark, and a page named twice keeps only the second. O(pages),
        where sorting would cost more than the transition itself.
        """
        assert self._all_are(pages, state), (self.name, state, pages, self._state[pages])
        count = len(pages)
        if count > 1:
            marks = _MARKS[:count] if count <= len(_MARKS) else np.arange(count, dtype=np.int32)
            self._marked[pages] = marks
            assert self._marked[pages].tobytes() == marks.tobytes(), (self.name, "named twice", pages)

    def _all_are(self, pages: Pages, state: int) -> bool:
        """Whether all of `pages` are in `state`. Comparing bytes takes a third of the time of a reduction."""
        return self._state[pages].tobytes() == state.to_bytes(4, byteorder, signed=True) * len(pages)

    def _undo_allocate(self, pages: Pages, untouched: int) -> None:
        assert untouched <= self.free + len(pages), (self.name, untouched, self.free, pages)
        self._push(pages)
        self.untouched = untouched

    def _push(self, pages: Pages) -> None:
        # Reversed, so that undoing `allocate` restores the free stack entry by entry.
        free = self.free + len(pages)
        assert free <= self.capacity, (self.name, self.free, pages)
        self._free[self.free : free] = pages[::-1]
        self.free = free
        self._state[pages] = FREE

    def _pop(self, pages: Pages, state: int) -> None:
        """Undoes `_push`. Rollback is newest first, so the pages are on top of the stack again."""
        self.free -= len(pages)
        assert self.untouched <= self.free, (self.name, self.untouched, self.free)
        lying = self._free[self.free : self.free + len(pages)]
        assert lying.tobytes() == pages[::-1].tobytes(), (self.name, pages)
        self._state[pages] = state

    def _undo_adopt(self, pages: Pages, owner: int) -> None:
        assert self._all_are(pages, TREE - 1), (self.name, pages, self._state[pages])
        self._state[pages] = owner
        self.tree -= len(pages)

    def _undo_free_evicted(self, pages: Pages) -> None:
        self._pop(pages, TREE)
        self.tree += len(pages)
        self.idle += len(pages)
        assert self.idle <= self.tree <= self.capacity - self.free, (self.name, self.idle, self.tree)

    def _undo_unreference(self, pages: Pages) -> None:
        self.idle -= self.unreferenced(pages)
        assert self.idle >= 0, (self.name, self.idle, pages)
        self._state[pages] -= _ONE

    def _undo_reference(self, pages: Pages) -> None:
        self._state[pages] += _ONE
        self.idle += self.unreferenced(pages)
        assert self.idle <= self.tree, (self.name, self.idle, self.tree, pages)

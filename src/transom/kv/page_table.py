"""Page tables: per component, which page holds which positions of which request. Kernels read them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from transom.kv.journal import Journal
from transom.kv.pool import Pages, present

_NONE = np.array(0, np.int32)


class PageTable:
    """Owns the table of one component. `table`: int32 [rows, pages per row], 0 = no page; written only here.

    A row belongs to one holding. Entry i has the page for positions [i * page_size, (i + 1) * page_size). The
    array is never reallocated, so kernels may keep a pointer to it.
    """

    __slots__ = ("_journal", "table")

    def __init__(self, rows: int, pages_per_row: int, journal: Journal) -> None:
        assert rows > 0 and pages_per_row > 0, (rows, pages_per_row)
        # int32, because kernels read it; the pools' index type would double the memory traffic.
        self.table: NDArray[np.int32] = np.zeros((rows, pages_per_row), dtype=np.int32)
        self._journal = journal

    def read(self, row: int, start: int, end: int) -> Pages:
        """Entries [start, end), a copy in the index type."""
        assert 0 <= start <= end <= self.table.shape[1], (start, end, self.table.shape)
        entries: Pages = self.table[row, start:end].astype(np.int64)
        return entries

    def write(self, row: int, start: int, pages: Pages) -> None:
        """Sets the entries from `start` on to `pages`."""
        assert start >= 0, (row, start)
        entries = self._entries(row, start, start + len(pages))
        self._journal.log(self._restore, row, start, entries.copy())
        entries[...] = pages

    def clear(self, row: int, start: int, end: int) -> Pages:
        """Sets entries [start, end) to 0. Returns the pages that they named, without zeros."""
        assert start <= end, (row, start, end)
        entries = self._entries(row, start, end)
        before = entries.astype(np.int64)  # a copy, and in the type that the pools take
        self._journal.log(self._restore, row, start, before)
        entries[...] = _NONE
        return present(before)

    def _entries(self, row: int, start: int, end: int) -> NDArray[np.int32]:
        """Entries [start, end), a view to write to. A slice past the table would silently be shorter."""
        entries = self.table[row, start:end]
        assert len(entries) == end - start, (start, end, self.table.shape)
        return entries

    def _restore(self, row: int, start: int, before: NDArray[np.integer[Any]]) -> None:
        self.table[row, start : start + len(before)] = before

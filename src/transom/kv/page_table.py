"""Rows: which page of one component holds which positions of which request. Kernels read the table."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from transom.kv.journal import Journal
from transom.kv.pool import Pages, present

_NONE = np.array(0, np.int32)


class PageTable:
    """Owns one component's rows. `table`, int32 [rows, pages per row], 0 = none, changes only here."""

    __slots__ = ("_journal", "table")

    def __init__(self, rows: int, pages_per_row: int, journal: Journal) -> None:
        assert rows > 0 and pages_per_row > 0, (rows, pages_per_row)
        self.table: NDArray[np.int32] = np.zeros((rows, pages_per_row), dtype=np.int32)
        self._journal = journal

    def read(self, row: int, start: int, end: int) -> Pages:
        """A copy of entries [start, end), in the index type."""
        assert 0 <= start <= end <= self.table.shape[1], (start, end, self.table.shape)
        entries: Pages = self.table[row, start:end].astype(np.int64)
        return entries

    def write(self, row: int, start: int, pages: Pages) -> None:
        """Entries from `start` on become `pages`."""
        assert start >= 0, (row, start)
        entries = self._entries(row, start, start + len(pages))
        self._journal.log(self._restore, row, start, entries.copy())
        entries[...] = pages

    def clear(self, row: int, start: int, end: int) -> Pages:
        """Entries [start, end) become 0. Returns the pages, none of them 0, that they named."""
        assert start <= end, (row, start, end)
        entries = self._entries(row, start, end)
        before = entries.astype(np.int64)
        self._journal.log(self._restore, row, start, before)
        entries[...] = _NONE
        return present(before)

    def _entries(self, row: int, start: int, end: int) -> NDArray[np.int32]:
        """Entries [start, end) to be written to."""
        entries = self.table[row, start:end]
        assert len(entries) == end - start, (start, end, self.table.shape)
        return entries

    def _restore(self, row: int, start: int, before: NDArray[np.integer[Any]]) -> None:
        self.table[row, start : start + len(before)] = before

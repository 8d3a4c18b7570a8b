"""Rows: which page of one component holds which positions of which request. Kernels read the table."""

import numpy as np
from numpy.typing import NDArray

from transom.kv.journal import Journal
from transom.kv.pool import Pages, present


class RowTable:
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

    def held(self, row: int, start: int, end: int) -> Pages:
        """The pages, none of them 0, named by entries [start, end)."""
        return present(self.read(row, start, end))

    def write(self, row: int, start: int, pages: Pages) -> None:
        """Entries from `start` on become `pages`."""
        self._fill(row, start, start + len(pages), pages)

    def clear(self, row: int, start: int, end: int) -> None:
        """Entries [start, end) become 0."""
        self._fill(row, start, max(start, end), 0)

    def _fill(self, row: int, start: int, end: int, pages: Pages | int) -> None:
        entries = self.table[row, start:end]
        assert len(entries) == end - start, (start, end, self.table.shape)
        self._journal.log(self._restore, row, start, entries.copy())
        entries[:] = pages

    def _restore(self, row: int, start: int, before: NDArray[np.int32]) -> None:
        self.table[row, start : start + len(before)] = before

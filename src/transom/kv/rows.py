"""Rows: which page of one component holds which positions of which request. Kernels read the table."""

import numpy as np
from numpy.typing import NDArray

from transom.kv.journal import Journal
from transom.kv.pool import Pages


class RowTable:
    """Owns one component's rows. `table` is int32 [rows, pages per row], 0 = none; mutable, changed only here."""

    __slots__ = ("_journal", "table")

    def __init__(self, rows: int, pages_per_row: int, journal: Journal) -> None:
        self.table: NDArray[np.int32] = np.zeros((rows, pages_per_row), dtype=np.int32)
        self._journal = journal

    def read(self, row: int, start: int, end: int) -> Pages:
        """A copy of entries [start, end), in the index type."""
        assert 0 <= start <= end <= self.table.shape[1], (start, end, self.table.shape)
        return self.table[row, start:end].astype(np.int64)

    def write(self, row: int, start: int, pages: Pages | int) -> None:
        """Entries from `start` on become `pages`."""
        raise NotImplementedError

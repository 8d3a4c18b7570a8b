"""How many pages come to be had when holdings end. A query on rows and reference counts."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from transom.kv.cache import Holding, HybridCache
from transom.kv.room import Pages
from transom.sched.running import ALLOCATED, FULL_UNTIL, ROW, Columns


def releases(cache: HybridCache, holdings: Sequence[Holding]) -> Pages:
    """Pages per component that only `holdings` hold: private, or of the tree and read by no other row."""
    return tuple(_released(cache, component, holdings) for component in range(len(cache.rows)))


def held_alone(cache: HybridCache, columns: Columns) -> NDArray[np.int64]:
    """Pages that only one row holds, per component and request of `columns`: `releases` of each alone."""
    allocated = columns[ALLOCATED]
    if not len(allocated):
        return np.zeros((len(cache.rows), 0), np.int64)
    longest = int(np.maximum(allocated, columns[FULL_UNTIL]).max())
    # What is computed may lie up to a page before what is allocated, and nobody keeps less than its window.
    least = max(0, int(allocated.min()) - cache.layout.page_size)
    return np.stack(
        [
            pool.alone(rows.table[columns[ROW], rule.first_entry(least) : rule.entries(longest)])
            for pool, rows, rule in zip(cache.pools, cache.rows, cache.rules, strict=True)
        ]
    )


def _released(cache: HybridCache, component: int, holdings: Sequence[Holding]) -> int:
    if not holdings:
        return 0
    rows = cache.rows[component].table[[holding.row for holding in holdings]]
    pages, readers = np.unique(rows[rows != 0], return_counts=True)
    return int(np.count_nonzero(cache.pools[component].references(pages) <= readers))

"""How many pages come to be had when holdings end. A query on rows and reference counts."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from transom.kv.cache import Holding, HybridCache
from transom.sched.spans import Pages


def releases(cache: HybridCache, holdings: Sequence[Holding]) -> Pages:
    """Pages per component that only `holdings` hold: private, or of the tree and read by no other row."""
    return tuple(_released(cache, component, holdings) for component in range(len(cache.rows)))


def held_alone(cache: HybridCache, holdings: Sequence[Holding]) -> NDArray[np.int64]:
    """Pages that only one row holds, per component and holding: `releases` of each alone."""
    longest = max([max(holding.allocated, holding.full_until) for holding in holdings], default=0)
    chosen = np.array([holding.row for holding in holdings], np.int64)
    alone = np.zeros((len(cache.rows), len(holdings)), np.int64)
    for component, grid in enumerate(cache.grids):
        first = min([holding.kept[component] for holding in holdings], default=0)
        pages = cache.rows[component].table[chosen, first : grid.entries(longest)]
        single = (cache.pools[component].references(pages) <= 1) & (pages != 0)
        alone[component] = np.count_nonzero(single, axis=1)
    return alone


def _released(cache: HybridCache, component: int, holdings: Sequence[Holding]) -> int:
    if not holdings:
        return 0
    rows = cache.rows[component].table[[holding.row for holding in holdings]]
    pages, readers = np.unique(rows[rows != 0], return_counts=True)
    return int(np.count_nonzero(cache.pools[component].references(pages) <= readers))

"""The smallest budget, and pages whose memory is returned to the operating system."""

import numpy as np
import pytest

from transom.errors import ConfigError
from transom.kv.cache import CacheLayout, HybridCache
from transom.kv.component_specs import Full, Window
from transom.kv.layout import address_space, bytes_alone
from transom.ops.store import KVStore, KVType, PageShape, runs


def test_pages_are_discarded_in_runs() -> None:
    assert runs([3, 1, 2, 7, 9, 8]) == [(1, 3), (7, 3)]
    assert runs([]) == []


def test_discarded_pages_read_as_zeros_and_other_pages_are_untouched() -> None:
    shape = PageShape(layers=1, page_size=16, kv_heads=1, head_dim=64, type=KVType.FLOAT32)
    store = KVStore((shape,), (6,))
    store.fill(1.0)
    store.discard(0, (2, 3, 5))
    filled = [bool((store.view(0)[page] == 1).all()) for page in range(7)]
    assert filled == [True, True, False, False, True, False, True]
    assert not store.view(0)[2].any() and np.isfinite(store.view(0)).all()


def test_the_smallest_budget_works_and_one_byte_less_is_refused() -> None:
    sizes = (4096, 20480)
    kinds = (Full(), Window(512))

    def cache(budget: int) -> HybridCache:
        pages = address_space(budget, sizes)
        return HybridCache(CacheLayout(kinds, pages, 16, 4, 1024, budget=budget, page_bytes=sizes))

    least = bytes_alone(cache(1 << 20).layout, 2, 1)
    assert cache(least).longest_alone(1) == 16
    with pytest.raises(ConfigError, match=f"at least {least} are needed"):
        cache(least - 1)

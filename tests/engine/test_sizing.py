"""The smallest budget, and pages whose memory is returned to the operating system."""

from pathlib import Path

import numpy as np
import pytest

from transom.engine.memory import check_pools, memory_available
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


@pytest.mark.parametrize(
    ("files", "available"),
    [
        ({"meminfo": "MemTotal: 9 kB\nMemAvailable:    5 kB\n"}, 5 << 10),
        ({"meminfo": "MemAvailable: 5 kB\n", "memory.max": "max\n", "memory.current": "7\n"}, 5 << 10),
        ({"meminfo": "MemAvailable: 5 kB\n", "memory.max": "4000\n", "memory.current": "1000\n"}, 3000),
        ({"memory.max": "4000\n", "memory.current": "5000\n"}, 0),
        ({}, None),
    ],
)
def test_the_available_memory_is_the_least_that_the_system_names(
    tmp_path: Path, files: dict[str, str], available: int | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert memory_available(tmp_path, tmp_path / "meminfo") == available


def test_pools_beyond_the_available_memory_are_refused_and_near_it_are_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    check_pools(80 << 20, 100 << 20)
    check_pools(1 << 60, None)
    assert not caplog.messages
    check_pools(81 << 20, 100 << 20)
    assert "81 of 100 MiB" in caplog.text
    with pytest.raises(ConfigError, match=r"101 MiB, and 100 MiB .* --kv-bytes"):
        check_pools(101 << 20, 100 << 20)

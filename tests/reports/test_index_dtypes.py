"""Report B: one device's index type was a special case. This cache converts to int32 at its interface."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.kv.world import PAGE_SIZES, WINDOWS, World, components

from transom.kv.check import check, inside
from transom.kv.journal import Journal
from transom.kv.pool import PagePool
from transom.values import RequestId

REQUEST = RequestId(99)


def strided(values: Any) -> Any:
    return np.repeat(np.asarray(values, dtype=np.int32), 3)[::3]


def read_only(values: Any) -> Any:
    array = np.array(values, dtype=np.int32)
    array.flags.writeable = False
    return array


KINDS: dict[str, Callable[[Any], Any]] = {
    "int32": lambda values: np.array(values, dtype=np.int32),
    "int64": lambda values: np.array(values, dtype=np.int64),
    "strided": strided,
    "read-only": read_only,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_index_dtypes(page_size: int, window: int, kind: str) -> None:
    """Arrays of any kind hit tokens that int32 arrays published, and the reverse."""
    world = World(components("FW", window), (80, 80), page_size)
    tokens = list(range(1, 33))
    world.serve(tokens)
    namespace = world.cache.namespace(REQUEST, "")
    for array in (KINDS[kind](tokens), KINDS[kind]([*tokens[:17], *range(50, 70)])):
        offer = world.cache.offer(namespace, array)
        assert offer.begin.start == world.longest_hit(namespace, array.tolist())
        holding = world.cache.admit(REQUEST, namespace, array, offer)
        world.cache.extend(holding, len(array))
        world.cache.copies_done()
        world.cache.advance(holding, len(array))
        world.cache.publish(holding, array)
        check(world.cache)
        world.cache.drop(holding)
        assert world.offer([*array.tolist(), 9])[1].begin.start >= len(array) // page_size * page_size
    assert all(rows.table.dtype == np.int32 for rows in inside(world.cache).tables)


@pytest.mark.parametrize("kind", KINDS)
def test_a_pool_accepts_page_numbers_of_any_integer_type(kind: str) -> None:
    journal = Journal()
    pool = PagePool("full", 9, journal)
    with journal.transaction():
        first, second = pool.allocate(4, owner=1), pool.allocate(3, owner=2)
        pool.adopt(KINDS[kind](first), owner=1)
        pool.reference(KINDS[kind](first[:2]))
        pool.unreference(KINDS[kind](first))
        pool.unreference(KINDS[kind](first[:2]))
        pool.free_evicted(KINDS[kind](first))
        pool.free_private(KINDS[kind](second), owner=2)
    assert sorted(pool.free_pages().tolist()) == list(range(1, 10))

"""Evicting from several victims at a time evicts the same pages as one by one."""

from collections.abc import Callable

import numpy as np
import pytest
from tests.kv.world import World

from transom.kv.check import evict, inside
from transom.kv.component_specs import Chunked, Full, Window
from transom.kv.eviction import evict_for
from transom.kv.layout import address_space


def prompt(number: int, length: int = 40) -> list[int]:
    return [1000 * number + index for index in range(1, length + 1)]


def filled(*, budget: bool) -> World:
    """Prompts with many unneeded window pages. One is read, one has holes, one was hit again, two branch."""
    kinds = (Full(), Window(8), Chunked(6))
    size = (1, 1, 1) if budget else ()
    pages = address_space(900, size) if budget else (900, 900, 900)
    world = World(kinds, pages, 2, context=128, budget=900 if budget else None, page_bytes=size)
    for number in range(8):
        world.serve(prompt(number, 30 + number))
    world.serve(prompt(5, 20) + prompt(6, 20))
    world.serve([*prompt(2, 32), 7])
    world.prefill(world.admit([*prompt(3, 33), 7, 8]))
    with world.cache.transaction():
        (holed,) = [node for _, tokens, node in world.nodes() if tokens == tuple(prompt(4, 34))]
        inside(world.cache).tree.evict_pages(holed, 1, np.array([2]))
    return world


def events_of(world: World, since: int) -> list[tuple[str, bytes]]:
    return [(event.component, event.digest) for event in world.cache.events(since).events]


def by_pages(component: int, world: World, count: int) -> None:
    evict(world.cache, component, count)


def by_bytes(component: int, world: World, count: int) -> None:
    cache = world.cache
    need = [0] * len(inside(cache).pools)
    need[component] = (
        inside(cache).budget.available.bytes - sum(pool.idle for pool in inside(cache).pools) + count
    )
    evict_for(inside(cache).tree, inside(cache).budget, inside(cache).counters, need)


@pytest.mark.parametrize(
    ("evict_by", "component", "pages"), [(by_pages, 1, 70), (by_pages, 2, 70), (by_bytes, 1, 140)]
)
@pytest.mark.parametrize("least", [1, 7, 1000])
def test_unneeded_pages_are_evicted_in_the_same_order_one_by_one_and_in_batches(
    evict_by: Callable[[int, World, int], None], component: int, pages: int, least: int
) -> None:
    budget = evict_by is by_bytes
    one, many = filled(budget=budget), filled(budget=budget)
    since = inside(one.cache).log.next
    assert events_of(one, 0) == events_of(many, 0)
    for _ in range(pages):
        with one.cache.transaction():
            evict_by(component, one, 1)
    left = pages
    while left:
        with many.cache.transaction():
            evict_by(component, many, min(least, left))
        left -= min(least, left)
        many.audit()
    assert len(events_of(one, since)) == pages and events_of(one, since) == events_of(many, since)

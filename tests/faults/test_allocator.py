"""Allocator faults of other engines, A-01 to A-11 of docs/faults.md.

Where another engine maps a full slot to a window slot, Transom has the same index in a request's two rows or
a node's two arrays. A tombstone there is a hole here.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.faults.play import (
    FULL,
    WINDOW,
    evict_windows,
    evicted,
    free,
    hold,
    hybrid,
    readable,
    require_all_available,
    row,
    squeeze,
    up_to,
    window_lengths,
)
from tests.sched.world import World as SchedulerWorld
from tests.tiny import TinyShape, write_tiny_gguf

from transom.config import EngineConfig
from transom.engine.sizing import size_pools
from transom.errors import ConfigError, NoSpace
from transom.kv.cache import CacheLayout, HybridCache
from transom.kv.check import inside
from transom.kv.component_specs import Full, Window
from transom.models.load import load_model
from transom.values import FinishReason
from transom.weights.gguf import read_gguf
from transom_lab.worlds.cache_world import CacheWorld
from transom_lab.worlds.mixes import components


def test_a_01_reused_full_pages_bring_no_window_pages_along() -> None:
    world = hybrid(1, 2, (16, 8), context=16)
    first = hold(world, 4, "a")
    paired = set(row(world, first, WINDOW)[:4])
    world.drop(first)
    second = world.admit(up_to(4), cold=True)
    world.compute(second, 3)
    world.cache.slide(second.holding)
    world.compute(second, 4)
    assert set(row(world, second, FULL)[:4]) == {1, 2, 3, 4}, "the same full pages again"
    assert row(world, second, WINDOW)[:2] == [0, 0]
    assert set(row(world, second, WINDOW)[2:4]) <= paired
    third = hold(world, free(world)[WINDOW], "c")
    theirs = {page for page in row(world, third, WINDOW) if page}
    world.drop(second)
    assert free(world)[WINDOW] == 2
    assert theirs.isdisjoint(inside(world.cache).pools[WINDOW].free_pages().tolist())
    world.audit()
    world.drop(third)
    require_all_available(world)


def test_a_01_reused_full_pages_of_a_request_without_window_pages_bring_none_along() -> None:
    world = hybrid(1, 1, (8, 4), context=8)
    world.drop(hold(world, 4, "a"))
    second = world.admit(up_to(4), cold=True)
    world.compute(second, 4)
    world.cache.slide(second.holding)
    assert row(world, second, WINDOW) == [0] * 8 and free(world) == [4, 4]
    world.audit()


def test_a_02_a_window_page_is_freed_as_a_whole_and_once() -> None:
    """No call frees single tokens of a page: `slide` frees a page once its last token leaves the window."""
    world = hybrid(4, 2, (8, 2), context=12)
    job = world.admit(up_to(12), cold=True)
    for end in (5, 6, 7):
        world.compute(job, end)
        world.cache.slide(job.holding)
        assert row(world, job, WINDOW)[0] != 0 and free(world)[WINDOW] == 0
    first = row(world, job, WINDOW)[0]
    world.compute(job, 8)
    world.cache.slide(job.holding)
    assert row(world, job, WINDOW)[0] == 0 and free(world)[WINDOW] == 1
    other = hold(world, 1)
    assert row(world, other, WINDOW)[0] == first
    world.cache.slide(job.holding)
    world.drop(job)
    assert free(world)[WINDOW] == 1 and row(world, other, WINDOW)[0] == first
    world.audit()


def test_a_03_a_tombstone_has_no_window_pages_to_free() -> None:
    world = hybrid(1, 4, (32, 12), context=16)
    world.serve(up_to(8))
    evict_windows(world)
    assert window_lengths(world, up_to(8)) == [] and free(world)[WINDOW] == 12
    world.cache.flush()
    assert free(world) == [32, 12], "the tombstone has full pages, and no window page"


def test_a_03_no_page_is_lost_over_a_thousand_rounds_of_tombstones_and_recoveries() -> None:
    world = hybrid(1, 4, (40, 12), context=12)
    random = np.random.default_rng(27586)
    for iteration in range(1000):
        tokens = [*up_to(int(random.integers(1, 9))), *random.integers(1, 3, 3).tolist()]
        job = world.admit(tokens, cold=bool(random.integers(2)))
        try:
            world.compute(job, len(tokens))
            world.settle(job)
        except NoSpace:
            pass
        world.drop(job)
        squeeze(world, int(random.integers(1, 11)))
        for component in world.cache.stats().components:
            owned = component.free + component.referenced + component.unreferenced + component.private
            assert owned == component.capacity, (iteration, component)
    traffic = world.cache.stats().components[WINDOW]
    assert traffic.holes_filled > 500 and traffic.evicted > 1000, traffic
    require_all_available(world)


def test_a_04_a_window_page_with_two_readers_is_freed_once_after_both_have_ended() -> None:
    """Sharing is a counted reference. `check` asserts that no page is in the tree twice."""
    world = hybrid(1, 4, (40, 16), context=24)
    world.serve(up_to(8))
    first, second = world.admit(up_to(8, 50)), world.admit(up_to(8, 60))
    shared = row(world, first, WINDOW)[5:8]
    assert shared == row(world, second, WINDOW)[5:8] and 0 not in shared
    for reader in (first, second):
        squeeze(world, world.cache.available.alone()[WINDOW])
        assert set(shared).isdisjoint(inside(world.cache).pools[WINDOW].free_pages().tolist())
        world.drop(reader)
    squeeze(world, world.cache.available.alone()[WINDOW])
    pages = inside(world.cache).pools[WINDOW].free_pages().tolist()
    assert [pages.count(page) for page in shared] == [1, 1, 1]
    require_all_available(world)


@pytest.mark.parametrize("page_size", [1, 4])
def test_a_05_a_double_free_is_refused_alone_and_inside_a_transaction(page_size: int) -> None:
    world = hybrid(page_size, 4, (16, 16), context=16)
    job = hold(world, 3 * page_size)
    before = world.snapshot()
    with pytest.raises(AssertionError), world.cache.transaction():
        world.cache.drop(job.holding)
        world.cache.drop(job.holding)
    assert world.snapshot() == before, "both drops are rolled back"
    world.drop(job)
    before = world.snapshot()
    with pytest.raises(AssertionError):
        world.cache.drop(job.holding)
    assert world.snapshot() == before
    rows = [row(world, hold(world, 4 * page_size, name), component) for name in "ab" for component in (0, 1)]
    for component in (FULL, WINDOW):
        taken = [page for entries in rows[component::2] for page in entries if page]
        assert len(taken) == len(set(taken)) == 8


def test_a_06_a_page_shared_by_two_freed_ranges_is_freed_once() -> None:
    """Pages of 4, 10 tokens computed, a window that ends inside the second page; then an abort."""
    world = hybrid(4, 3, (8, 6), context=24)
    before = free(world)
    job = world.admit(up_to(20), cold=True)
    world.compute(job, 8)
    world.cache.slide(job.holding)
    world.compute(job, 10)
    assert [page != 0 for page in row(world, job, WINDOW)[:3]] == [False, True, True]
    world.drop(job)
    assert free(world) == before
    world.audit()


def test_a_06_an_abort_during_prefill_frees_every_page_and_the_next_request_is_cold() -> None:
    world = SchedulerWorld(page=4, windows=(3,), pages=(8, 6), chunk=10, context=24)
    request = world.submit(up_to(20), 2)
    world.step()
    assert world.spans(request)[-1][1] in (8, 10)
    world.abort(request)
    world.drain()
    assert world.ends[request].reason == FinishReason.ABORT
    assert world.cache.available.alone() == (8, 6)
    world.submit(up_to(20), 2)
    world.finish()


def test_a_07_pages_of_all_components_are_allocated_or_none() -> None:
    world = hybrid(1, 4, (12, 6), context=12)
    hold(world, 4)
    job = world.admit(up_to(4), cold=True)
    before, tables = free(world), [table.copy() for table in world.cache.page_tables]
    assert before == [8, 2]
    with pytest.raises(NoSpace, match="window: 4 pages needed, 2 available"):
        world.cache.extend(job.holding, 4)
    assert free(world) == before and job.holding.allocated == 0
    assert all(
        (rows.table == table).all() for rows, table in zip(inside(world.cache).tables, tables, strict=True)
    )
    world.compute(job, 1)
    world.audit()


def test_a_07_a_request_that_one_pool_cannot_hold_waits_unstarted_and_a_small_one_is_served() -> None:
    world = SchedulerWorld(page=1, windows=(4,), pages=(12, 8), chunk=16, context=12, rows=4)
    running = world.submit([30 + n for n in range(6)], 4)
    world.step()
    large, small = world.submit(up_to(10), 2), world.submit([9], 1)
    while small not in world.ends:
        world.step()
        assert world.spans(large) == [], "not started"
    assert running not in world.ends
    world.finish()


def test_a_08_window_pages_are_evicted_from_inner_nodes_and_no_full_page_is() -> None:
    world = hybrid(1, 4, (56, 16), context=16)
    world.serve(up_to(12))
    for last in (50, 60):
        world.serve(up_to(12, last, last + 1))
    assert free(world) == [40, 0]
    inner = {length for length in window_lengths(world, up_to(12)) if length <= 12}
    assert len(inner) == 12
    job = hold(world, 8)
    assert evicted(world) == [0, 8]
    assert len(window_lengths(world, up_to(12))) < 12
    assert {prefix for _, prefix in world.resident()[FULL]} >= {tuple(up_to(n)) for n in range(1, 13)}
    world.drop(job)
    world.audit()


def test_a_09_a_window_pool_too_small_for_one_request_is_refused_with_the_minimum() -> None:
    """4,096 tokens in pages of 256, a window of 128: a tenth is one page, and a request needs two."""

    def cache(pages: int) -> HybridCache:
        return HybridCache(CacheLayout((Full(), Window(128)), (16, pages), 256, 4, 4096))

    with pytest.raises(ConfigError, match=r"window: 1 pages of 256 tokens .* at least 2"):
        cache(1)
    world = CacheWorld(cache(2).layout)
    assert world.serve([5]) == 0
    assert cache(2).longest_alone(1) >= 4096


def test_a_09_the_engine_serves_what_the_window_pool_can_hold_or_refuses_to_start(tmp_path: Path) -> None:
    """With this share the engine limits the context to its one window page; a smaller one is refused."""
    spec = load_model(read_gguf(write_tiny_gguf(tmp_path / "tiny.gguf", shape=TinyShape(window=128)))).spec
    config = EngineConfig(page_size=256, max_total_tokens=4096, swa_full_tokens_ratio=0.1)
    layout = size_pools(spec, config).layout
    assert (layout.context, min(layout.pages)) == (256, 1)
    world = CacheWorld(
        CacheLayout(layout.components, layout.pages, layout.page_size, rows=4, context=layout.context)
    )
    assert world.serve([5]) == 0
    with pytest.raises(ConfigError, match="cannot hold a request of two tokens"):
        size_pools(spec, replace(config, swa_full_tokens_ratio=0.05))


@pytest.mark.parametrize("steps", [[2, *[1] * 6], [3, 3], [9, 1]])
def test_a_10_exactly_the_window_is_readable_and_kept(steps: list[int]) -> None:
    """Window 4, pages of 1: a token reads itself and the three before it, however the prompt is cut."""
    world = hybrid(1, 4, (32, 16), context=32)
    job = world.admit(up_to(sum(steps)), cold=True)
    for chunk in steps:
        start = job.holding.computed
        world.cache.extend(job.holding, start + chunk)
        stored = sum(page != 0 for page in row(world, job, WINDOW))
        assert stored <= min(start, 3) + chunk, (start, chunk, stored)
        for query in range(start, start + chunk):
            assert readable(world, job, query) == list(range(max(0, query - 3), query + 1))
        world.run(job, start + chunk)
        world.settle(job)
        assert sum(page != 0 for page in row(world, job, WINDOW)) == min(start + chunk, 3)
        world.audit()


def test_a_11_a_request_keeps_its_row_from_its_first_chunk_to_its_end() -> None:
    world = SchedulerWorld(page=4, windows=(4,), pages=(40, 40), rows=2, chunk=8, context=32)
    first = world.submit(up_to(24), 2)
    world.step()
    second = world.submit([50 + n for n in range(24)], 2)
    third = world.submit([9] * 24, 1)
    world.finish()
    rows = {
        request: {span.row for work in world.runner.steps for span in work.spans if span.request == request}
        for request in (first, second, third)
    }
    assert all(len(of_one) == 1 for of_one in rows.values()), rows
    assert rows[first].isdisjoint(rows[second])
    assert sum(end - start for start, end in world.spans(first)) == 25, "no token is computed twice"


def test_a_11_the_last_chunk_of_a_request_alone_needs_no_other_row() -> None:
    world = SchedulerWorld(page=4, windows=(4,), pages=(40, 40), rows=2, chunk=8, context=32)
    request = world.submit(up_to(24), 1)
    for _ in range(3):
        world.step()
        assert world.cache.stats().rows_used <= 1
    assert [end for _, end in world.spans(request)] == [8, 16, 24]
    world.finish()


def test_a_11_a_request_that_is_refused_a_row_changes_nothing() -> None:
    world = CacheWorld(CacheLayout(components("FW", 4), (16, 16), 4, rows=1, context=16))
    world.serve(up_to(8))
    world.admit(up_to(8, 50))
    before = world.snapshot()
    with pytest.raises(NoSpace, match="rows"):
        world.admit(up_to(6, 60))
    assert world.snapshot() == before

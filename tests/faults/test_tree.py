"""Radix tree faults of other engines, T-01 to T-20 of docs/faults.md.

A lock there is the reference count of a page here, and a tombstone there is a node with holes here.
"""

from random import Random

import numpy as np
import pytest
from tests.faults.play import (
    FULL,
    WINDOW,
    evict_windows,
    evicted,
    free,
    hit_start,
    hold,
    hybrid,
    only_full,
    referenced,
    require_all_available,
    row,
    squeeze,
    up_to,
    window_lengths,
)
from tests.sched.world import World as SchedulerWorld

from transom.errors import NoSpace
from transom.kv.check import inside
from transom.kv.pool import TREE
from transom_lab.fuzz.draw import OperationDrawer
from transom_lab.fuzz.driver import Driver
from transom_lab.fuzz.operations import Setting
from transom_lab.worlds.cache_world import CacheWorld, Job


def reader_of_a_tombstone() -> tuple[CacheWorld, Job]:
    """[1..8] is cached without its window pages, and B runs on it, with its window behind token 8."""
    world = hybrid(1, 4, (64, 24), context=32)
    world.serve(up_to(8))
    reader = world.admit(up_to(8, *range(20, 32)))
    assert reader.holding.start == 8
    world.compute(reader, 14)
    world.cache.slide(reader.holding)
    evict_windows(world)
    assert window_lengths(world, up_to(8)) == [] and referenced(world) == [8, 0]
    return world, reader


@pytest.mark.parametrize("slid_at", [0, 5])
def test_t_01_recovering_a_tombstone_leaves_the_full_pages_that_a_request_reads(slid_at: int) -> None:
    """C computes [1..8] cold. If it slides at 5, it has freed some window pages, so recovery is partial."""
    world, reader = reader_of_a_tombstone()
    before = row(world, reader, FULL)
    fresh = world.admit(up_to(8), cold=True)
    if slid_at:
        world.compute(fresh, slid_at)
        world.cache.slide(fresh.holding)
    world.compute(fresh, 8)
    own, windows, there = row(world, fresh, FULL)[:8], row(world, fresh, WINDOW)[:8], free(world)
    world.cache.publish(fresh.holding, fresh.tokens)
    assert row(world, reader, FULL) == before
    assert row(world, fresh, FULL)[:8] == before[:8], "C reads the pages of the tree now"
    assert row(world, fresh, WINDOW)[:8] == windows, "the tree took C's window pages, at the same indices"
    assert window_lengths(world, up_to(8)) == [n + 1 for n in range(8) if windows[n]]
    assert free(world) == [there[FULL] + 8, there[WINDOW]], "duplicates are freed once"
    assert set(own) <= set(inside(world.cache).pools[FULL].free_pages().tolist())
    world.drop(fresh)
    world.compute(hold(world, 12, "d"), 12)
    world.compute(reader, len(reader.tokens))
    world.expect(reader, FULL, range(len(reader.tokens)))
    world.audit()


def test_t_02_an_unfinished_request_caches_no_window_page_that_it_has_freed() -> None:
    world = hybrid(1, 4, (64, 64))
    job = world.admit(up_to(16), cold=True)
    for end in (8, 12, 16):
        world.compute(job, end)
        world.cache.slide(job.holding)
    world.cache.publish(job.holding, job.tokens)
    world.audit()
    assert window_lengths(world, up_to(16)) == [14, 15, 16]
    assert hit_start(world, up_to(8, 99)) == 0
    assert world.serve(up_to(8, 99)) == 0
    world.finish(job)
    assert hit_start(world, up_to(16, 99)) == 16


def test_t_02_finished_and_unfinished_requests_leave_the_same_tree() -> None:
    trees = []
    for ends in ((8, 16), (16,)):
        world = hybrid(4, 4, (64, 64))
        job = world.admit(up_to(16), cold=True)
        for end in (8, 16):
            world.compute(job, end)
            if end in ends:
                world.cache.publish(job.holding, job.tokens)
        world.drop(job)
        trees.append(world.resident())
    assert trees[0] == trees[1]


def test_t_03_a_page_longer_than_the_window_keeps_its_last_window_page() -> None:
    world = hybrid(8, 4, (8, 6), context=40)
    job = world.admit(up_to(20), cold=True)
    world.compute(job, 20)
    world.cache.slide(job.holding)
    world.cache.publish(job.holding, job.tokens)
    assert window_lengths(world, up_to(16)) == [16]
    world.drop(job)
    assert hit_start(world, up_to(16, 50)) == 16
    assert all(component.unreferenced >= 0 for component in world.cache.stats().components)
    squeeze(world, 40)
    require_all_available(world)
    world.cache.flush()
    assert free(world) == [8, 6]


def test_t_04_full_pages_stay_cached_where_window_pages_are_missing() -> None:
    world = hybrid(1, 4)
    job = world.admit(up_to(12), cold=True)
    for end in (8, 12):
        world.compute(job, end)
        world.cache.slide(job.holding)
    world.cache.publish(job.holding, job.tokens)
    world.drop(job)
    assert len(world.resident()[FULL]) == 12
    assert window_lengths(world, up_to(12)) == [10, 11, 12]
    assert world.serve(up_to(12, 50)) == 12
    require_all_available(world)


def test_t_05_a_key_shorter_than_a_page_hits_nothing_and_caches_nothing() -> None:
    world = hybrid(8, 4, (8, 8), context=32)
    assert hit_start(world, [1, 2, 3]) == hit_start(world, []) == 0
    world.serve([1, 2, 3])
    assert list(world.nodes()) == [] and free(world) == [8, 8]
    world.serve(up_to(11))
    assert [prefix for _, prefix, _ in world.nodes()] == [tuple(up_to(8))]
    assert free(world) == [7, 7], "the remainder of three tokens was private, and its page is free"
    assert hit_start(world, up_to(3)) == 2


def test_t_06_the_matched_node_itself_is_referenced() -> None:
    """root - [1..4] - [5..8]: a match of all eight tokens references all eight pages."""
    world = only_full(16, context=16)
    world.serve(up_to(8))
    world.serve(up_to(4, 70))
    reader = world.admit(up_to(8, 9))
    assert referenced(world) == [8]
    squeeze(world, world.cache.available.alone()[FULL])
    assert referenced(world) == [8] and len(world.resident()[FULL]) == 8
    with pytest.raises(NoSpace):
        hold(world, 9)
    world.drop(reader)
    squeeze(world, 16)
    assert free(world) == [16]


def test_t_07_a_reference_is_released_once_and_other_references_stay() -> None:
    world = only_full(16, context=16)
    world.serve(up_to(8))
    first, second = world.admit(up_to(8, 9)), world.admit(up_to(8, 10))
    world.drop(first)
    before = world.snapshot()
    with pytest.raises(AssertionError):
        world.cache.drop(first.holding)
    assert world.snapshot() == before and referenced(world) == [8]
    world.drop(second)
    assert referenced(world) == [0], "no reference is left"
    third = world.admit(up_to(8, 9))
    assert referenced(world) == [8]
    world.drop(third)
    require_all_available(world)


def test_t_08_a_node_that_two_requests_hold_is_split_and_both_hold_both_parts() -> None:
    world = hybrid(1, 4)
    world.serve(up_to(12))
    world.serve(up_to(4, 70))
    first, second = world.admit(up_to(12, 13)), world.admit(up_to(12, 14))
    assert referenced(world) == [12, 3], "full pages from the root on, window pages that the next token reads"
    world.serve(up_to(6, 90))
    keys = sorted(len(prefix) for _, prefix, _ in world.nodes())
    assert keys == [4, 5, 6, 7, 12], "[5..12] was split after 6"
    for left, pages in ((first, [12, 3]), (second, [0, 0])):
        world.audit()
        world.drop(left)
        assert referenced(world) == pages
    require_all_available(world)


def test_t_09_window_pages_are_evicted_from_a_leaf_whose_full_pages_are_referenced() -> None:
    world = hybrid(1, 4, (64, 16), context=24)
    world.serve(up_to(12))
    reader = world.admit(up_to(12, *range(20, 28)))
    world.compute(reader, 16)
    world.cache.slide(reader.holding)
    assert referenced(world) == [12, 0]
    before = row(world, reader, FULL)
    other = hold(world, world.cache.available.alone()[WINDOW] - 4)
    assert evicted(world)[WINDOW] >= 8 and evicted(world)[FULL] == 0
    assert row(world, reader, FULL) == before and referenced(world) == [12, 0]
    world.drop(other)
    world.compute(reader, len(reader.tokens))
    world.expect(reader, FULL, range(len(reader.tokens)))
    world.audit()


def test_t_10_duplicates_are_freed_only_after_the_row_points_to_the_pages_of_the_tree() -> None:
    world = hybrid(4, 16, (16, 16), context=24)
    first, second = world.admit(up_to(8, 50)), world.admit(up_to(8, 60))
    for job in (first, second):
        world.compute(job, 8)
    for job in (first, second):
        world.cache.publish(job.holding, job.tokens)
    for component in (FULL, WINDOW):
        assert row(world, second, component)[:2] == row(world, first, component)[:2]
    world.compute(hold(world, 8, "c"), 8)
    world.compute(second, 9)
    world.audit()


def test_t_11_a_match_is_referenced_before_pages_are_allocated() -> None:
    """16 pages: 8 cached, 4 free, 4 in use. 8 more do not fit, and the match does not shrink."""
    world = only_full(16, context=16)
    world.serve(up_to(8))
    hold(world, 4)
    job = world.admit(up_to(8, *range(20, 28)))
    with pytest.raises(NoSpace, match="8 pages needed, 4 available"):
        world.cache.extend(job.holding, 16)
    assert job.holding.start == 8 and len(world.resident()[FULL]) == 8
    world.audit()
    world.drop(job)
    assert referenced(world) == [0] and hit_start(world, up_to(8, 20)) == 8


def test_t_11_the_scheduler_never_admits_on_evicted_pages() -> None:
    """Another request grows from 4 to 10 of the 16 pages, beside one with a cached prefix of 8."""
    world = SchedulerWorld(page=1, windows=(), pages=(16,), chunk=16, context=16)
    world.submit(up_to(8), 1)
    world.drain()
    world.submit([30, 31, 32, 33], 6)
    world.step()
    late = world.submit(up_to(8, *range(20, 25)), 2)
    world.finish()
    assert world.scheduler.stats().retractions or world.spans(late)[0][0] <= 8


def test_t_12_a_prefix_is_as_long_as_every_component_allows() -> None:
    """Full pages for all 12 tokens, window pages for [4, 8) only: the hit is 8. Not 12, not 0."""
    world = hybrid(1, 4, (64, 20), context=24)
    job = world.admit(up_to(12), cold=True)
    world.compute(job, 7)
    world.cache.slide(job.holding)
    world.compute(job, 8)
    world.settle(job)
    world.finish(job)
    world.serve(up_to(8, 99))
    take = world.cache.stats().components[WINDOW].free + 4
    squeeze(world, take)
    assert window_lengths(world, up_to(12)) == [5, 6, 7, 8]
    assert len([prefix for _, prefix in world.resident()[FULL] if 99 not in prefix]) == 12
    assert world.serve(up_to(12, 50)) == 8


def test_t_13_the_same_prompt_again_computes_one_token() -> None:
    world = SchedulerWorld(page=1, windows=(4,), pages=(200, 200), chunk=64, context=64)
    requests = [world.submit(up_to(20), 10)]
    world.drain()
    requests.append(world.submit(up_to(20), 10))
    world.finish()
    assert [world.ends[request].usage.cached_tokens for request in requests] == [0, 19]


def test_t_14_a_prompt_that_is_wholly_cached_computes_its_last_token_in_a_page_of_its_own() -> None:
    world = SchedulerWorld(page=4, windows=(4,), pages=(40, 40), chunk=64, context=32)
    world.submit(up_to(8), 1)
    world.drain()
    contents = world.memory.contents
    pages = [np.flatnonzero(inside(world.cache).pools[c].owners() == TREE) for c in (FULL, WINDOW)]
    before = [contents.pages(c, pages[c]) for c in (FULL, WINDOW)]
    again = [world.submit(up_to(8), 1) for _ in range(2)]
    world.step()
    assert [world.last_step()[request] for request in again] == [(7, 8), (7, 8)]
    after = [contents.pages(c, pages[c]) for c in (FULL, WINDOW)]
    assert all((b == a).all() for b, a in zip(before, after, strict=True)), "a shared page was written"
    world.finish()


@pytest.mark.parametrize("neighbours", [0, 2])
def test_t_15_tokens_after_a_cached_prefix_are_computed_at_their_own_positions(neighbours: int) -> None:
    world = SchedulerWorld(page=4, windows=(4,), pages=(60, 60), chunk=64, context=32)
    world.submit(up_to(8), 1)
    world.drain()
    for number in range(neighbours):
        world.submit([30 + number] * 5, 3)
    request = world.submit(up_to(8, 40, 41, 42, 43), 2)
    world.step()
    assert world.last_step()[request] == (8, 12)
    world.step()
    assert world.last_step()[request] == (12, 13)
    world.finish()


def test_t_16_leaves_are_evicted_before_their_parents() -> None:
    """A - B - C, and D beside C. A was used longest ago, but C or D is evicted first and A last."""
    world = only_full(32, context=32)
    world.serve([1, 2])
    for tokens in ([1, 2, 3, 4, 50], [1, 2, 60], [1, 2, 3, 4, 5], [1, 2, 3, 4, 50, 51]):
        world.serve(tokens)
    gone: list[tuple[int, ...]] = []
    before = {prefix for _, prefix in world.resident()[FULL]}
    while before:
        squeeze(world, free(world)[FULL] + 1)
        after = {prefix for _, prefix in world.resident()[FULL]}
        assert all(prefix[:-1] in after or len(prefix) == 1 for prefix in after), after
        gone += before - after
        before = after
    assert len(gone) == 8 and gone[0] == (1, 2, 60)
    assert gone[1:] == [(1, 2, 3, 4, 5), *((1, 2, 3, 4, 50, 51)[:n] for n in (6, 5, 4, 3, 2, 1))]
    assert not inside(world.cache).tree.roots and world.cache.stats().components[FULL].unreferenced == 0


def test_t_16_pages_matched_by_an_admission_are_evicted_last_even_if_it_inserts_none() -> None:
    world = only_full(16, context=16)
    for first in (10, 20):
        world.serve([first, first + 1])
    world.drop(world.admit([10, 11, 12]))
    squeeze(world, 14)
    assert {prefix for _, prefix in world.resident()[FULL]} == {(10,), (10, 11)}


def test_t_18_window_pages_of_a_longer_prompt_serve_no_shorter_one() -> None:
    world = hybrid(1, 4)
    job = world.admit(up_to(12), cold=True)
    for end in (8, 12):
        world.compute(job, end)
        world.cache.slide(job.holding)
    world.cache.publish(job.holding, job.tokens)
    world.drop(job)
    assert hit_start(world, up_to(6, 77)) == 0
    assert world.serve(up_to(6, 77)) == 0
    assert world.serve(up_to(6, 77)) == 6
    world.audit()


def test_t_19_the_count_of_evictable_pages_equals_a_walk_of_the_tree() -> None:
    """Compared after each of 10,000 operations, with inserts, splits and hits that end inside a page."""
    setting = Setting(4, 7, "FW", (30, 20), 4, 40, prefix_caching=True)
    driver = Driver(setting)
    drawer = OperationDrawer(Random(35270), driver)
    for _ in range(10_000):
        driver.apply(drawer.next())
        walked = [0, 0]
        for _, _, node in driver.world.nodes():
            for component, pages in enumerate(node.pages):
                read = inside(driver.cache).pools[component].references(pages)
                walked[component] += int(np.count_nonzero((pages != 0) & (read == 0)))
        counted = [component.unreferenced for component in driver.cache.stats().components]
        assert counted == walked
    driver.end()
    assert min(driver.done[name] for name in ("Publish", "Drop", "Run")) > 500, driver.done


def test_t_20_pages_inserted_by_a_request_in_prefill_stay_referenced() -> None:
    world = only_full(24, context=24)
    job = world.admit(up_to(24))
    world.compute(job, 8)
    world.settle(job)
    before = row(world, job, FULL)
    other = hold(world, 16)
    assert free(world) == [0]
    with pytest.raises(NoSpace):
        hold(world, 8, "b")
    assert row(world, job, FULL) == before
    world.audit()
    world.drop(other)
    world.finish(job)
    require_all_available(world)


def test_t_20_a_request_in_prefill_is_unharmed_beside_one_that_needs_pages() -> None:
    world = SchedulerWorld(page=1, windows=(4,), pages=(26, 14), chunk=8, context=26)
    first = world.submit(up_to(24), 2)
    world.step()
    world.submit([40 + n for n in range(8)], 4)
    world.finish()
    assert world.spans(first)[0] == (0, 8)

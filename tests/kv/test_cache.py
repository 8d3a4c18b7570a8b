"""The cache by example: hits, publication, eviction, copies, epochs."""

import numpy as np
import pytest
from tests.kv.world import World, components, same

from transom.errors import NoSpace
from transom.kv.cache import PrefixCaching
from transom.kv.check import check, evict, inside
from transom.kv.component_specs import Full, Window
from transom.kv.page_rules import SlidingPages
from transom.values import RequestId


def hybrid(
    page_size: int, window: int, pages: tuple[int, int] = (64, 64), caching: PrefixCaching = PrefixCaching.ON
) -> World:
    return World(components("FW", window), pages, page_size, rows=4, context=64, caching=caching)


def start(world: World, tokens: list[int], salt: str = "") -> int:
    """Where a request would begin; asking changes nothing."""
    before = world.snapshot()
    namespace, offer = world.offer(tokens, salt)
    same(before, world.snapshot())
    assert offer.begin.start == world.longest_hit(namespace, tokens)
    return offer.begin.start


def up_to(end: int, *more: int) -> list[int]:
    return [*range(1, end + 1), *more]


# ---------------------------------------------------------------- hits


def test_a_hit_is_the_deepest_end_whose_window_is_resident() -> None:
    """Full [0, 12) and window [4, 8) are there, window 4: begin at 8. Not 12, not 0."""
    world = hybrid(page_size=1, window=4)
    world.serve(up_to(12))
    (node,) = [node for _, _, node in world.nodes()]
    with world.cache.transaction():
        inside(world.cache).tree.evict_pages(node, 1, np.array([0, 1, 2, 3, 8, 9, 10, 11]))
    assert start(world, up_to(12, 50)) == 8


@pytest.mark.parametrize("shared", [1, 2, 3, 4, 5, 7, 8, 11])
def test_a_hit_is_token_exact_within_a_page(shared: int) -> None:
    world = hybrid(page_size=4, window=3)
    world.serve(up_to(12))
    assert world.serve([*up_to(shared), 90, 91]) == shared


def test_at_least_one_token_is_left_to_compute() -> None:
    world = hybrid(page_size=4, window=4)
    world.serve(up_to(8))
    assert start(world, up_to(8)) == 7
    assert start(world, [1]) == 0


def test_an_end_inside_a_page_is_copied_and_the_source_keeps_its_bits() -> None:
    world = hybrid(page_size=4, window=4)
    world.serve(up_to(8))
    first, second = world.admit(up_to(8)), world.admit(up_to(6, 70, 71))
    copies = world.cache.pending_copies()
    assert [copy.tokens for copy in copies] == [3, 3, 2, 2]
    assert copies[0].source == copies[2].source and copies[0].target != copies[2].target
    check(world.cache)
    for job in (first, second):
        world.compute(job, 8)
        world.settle(job)
        world.audit()
    assert (first.holding.start, second.holding.start) == (7, 6)


def test_a_sibling_that_shares_less_serves_when_the_one_that_shares_more_has_a_hole() -> None:
    world = hybrid(page_size=4, window=4)
    world.serve([1, 2, 3, 4])
    world.serve([1, 2, 3, 9])
    (node,) = [node for _, prefix, node in world.nodes() if prefix == (1, 2, 3, 4)]
    with world.cache.transaction():
        inside(world.cache).tree.evict_pages(node, 1, np.array([0]))
    assert start(world, [1, 2, 3, 4, 5, 6]) == 3


def test_a_hit_finds_the_longest_common_part_among_many_siblings() -> None:
    world = hybrid(page_size=4, window=4, pages=(200, 200))
    random = np.random.default_rng(3)
    for _ in range(60):
        world.serve(random.integers(0, 3, 4).tolist())
    for _ in range(60):
        start(world, random.integers(0, 3, 6).tolist())


def test_a_key_shorter_than_a_page_leaves_nothing_behind() -> None:
    world = hybrid(page_size=8, window=4)
    world.serve([1, 2, 3])
    assert not inside(world.cache).tree.roots
    assert inside(world.cache).pools[0].free == 64


def test_salts_share_no_pages() -> None:
    world = hybrid(page_size=4, window=4)
    world.serve(up_to(12), "a")
    assert (start(world, up_to(12), "a"), start(world, up_to(12), "b"), start(world, up_to(12))) == (11, 0, 0)


def test_sending_the_same_prompt_again_computes_one_token() -> None:
    world = hybrid(page_size=4, window=4)
    assert [world.serve(up_to(20), chunk=8) for _ in range(3)] == [0, 19, 19]


def test_a_window_longer_than_the_context_is_never_slid() -> None:
    world = World((Full(), Window(100)), (32, 32), 4, context=64)
    job = world.admit(up_to(30))
    world.prefill(job, chunk=7)
    assert job.holding.kept == (0, 0)
    world.drop(job)
    assert start(world, up_to(30)) == 28


# ---------------------------------------------------------------- publish and slide


def test_an_unfinished_request_publishes_holes_where_it_has_slid() -> None:
    """Window 4, computed to 16 in two chunks with a slide between: nothing before the slide is filed."""
    world = hybrid(page_size=1, window=4)
    job = world.admit(up_to(16))
    world.compute(job, 8)
    world.cache.slide(job.holding)
    world.compute(job, 16)
    world.settle(job)
    world.audit()
    resident = sorted(len(prefix) for _, prefix in world.resident()[1])
    assert resident == list(range(6, 17))
    assert start(world, up_to(8, 99)) == 8 and start(world, up_to(7, 99)) == 0


def test_a_page_longer_than_the_window_keeps_its_last_page_when_published() -> None:
    world = hybrid(page_size=8, window=4)
    world.serve(up_to(20))
    assert start(world, up_to(20)) == 16


def test_two_requests_that_computed_the_same_pages_share_one_copy_after_publishing() -> None:
    world = hybrid(page_size=4, window=16)
    first, second = world.admit(up_to(9)), world.admit(up_to(9))
    for job in (first, second):
        world.compute(job, 9)
    for job in (first, second):
        world.settle(job)
        world.audit()
    tables = world.cache.page_tables
    for table in tables:
        assert (table[0, :2] == table[1, :2]).all() and table[0, 2] != table[1, 2]
    assert [pool.free for pool in inside(world.cache).pools] == [60, 60]


def test_a_page_begun_in_its_middle_without_a_copy_is_never_published() -> None:
    """Window 1 needs no key to begin, so it begins on a hole; the page lacks its first tokens."""
    world = hybrid(page_size=4, window=1)
    world.serve(up_to(8))
    evict(world.cache, 1, inside(world.cache).pools[1].idle)
    assert world.serve([*up_to(6), 60, 61, 62, 63, 64, 65]) == 6
    resident = {prefix for _, prefix in world.resident()[1]}
    assert (*up_to(6), 60, 61) not in resident and (*up_to(6), *range(60, 66)) in resident


def test_a_resumed_request_begins_at_the_boundary_it_published() -> None:
    world = hybrid(page_size=4, window=7)
    job = world.admit(up_to(30))
    world.compute(job, 19)
    world.settle(job)
    world.drop(job)
    evict(world.cache, 1, inside(world.cache).pools[1].idle - 2)
    assert start(world, up_to(30)) == 16


# ---------------------------------------------------------------- pressure


def test_a_hit_is_referenced_before_pages_are_allocated() -> None:
    """16 pages: 8 cached, 4 free, 4 elsewhere; a request over the 8 with 8 more to compute does not fit."""
    world = World((Full(),), (16,), 1, context=64)
    world.serve(up_to(8))
    world.compute(world.admit([50, 51, 52, 53]), 4)
    job = world.admit(up_to(8, *range(20, 28)))
    with pytest.raises(NoSpace) as raised:
        world.cache.extend(job.holding, 16)
    assert (raised.value.need, raised.value.have) == (8, 4)
    world.audit()
    world.drop(job)
    assert start(world, up_to(8, 20)) == 8


def test_window_pressure_leaves_full_pages_alone() -> None:
    """The window pages lie in inner nodes; taking them evicts no full token."""
    world = hybrid(page_size=1, window=4, pages=(64, 16))
    for last in (70, 71):
        world.serve(up_to(7, last))
    world.compute(world.admit(range(90, 106), salt="x"), 16)
    reclaimed = [component.evicted for component in world.cache.stats().components]
    assert reclaimed[0] == 0 < reclaimed[1]
    assert len(world.resident()[0]) == 9


def test_full_pages_are_evicted_from_leaves_and_oldest_first() -> None:
    world = World((Full(),), (16,), 1, context=16)
    world.serve([1, 2, 3, 4])
    world.serve([1, 2, 7, 8])
    world.serve([1, 2, 3, 4, 5])
    evicted: list[tuple[int, ...]] = []
    before = {prefix for _, prefix in world.resident()[0]}
    for _ in range(7):
        evict(world.cache, 0, 1)
        world.audit()
        after = {prefix for _, prefix in world.resident()[0]}
        evicted += before - after
        before = after
    assert evicted == [(1, 2, 7, 8), (1, 2, 7), (1, 2, 3, 4, 5), (1, 2, 3, 4), (1, 2, 3), (1, 2), (1,)]
    assert not inside(world.cache).tree.roots


def test_a_window_loses_its_earliest_pages_first_so_that_its_end_stays_a_hit() -> None:
    world = hybrid(page_size=1, window=4)
    world.serve(up_to(20))
    evict(world.cache, 1, 17)
    assert start(world, up_to(20, 30)) == 20


def test_a_node_that_rows_read_is_looked_at_once_and_not_at_every_eviction() -> None:
    world = World((Full(),), (64,), 1, context=32)
    world.serve(up_to(8))
    world.admit(up_to(8, 9))
    for first in range(100, 150, 10):
        world.serve(list(range(first, first + 8)))
    evict(world.cache, 0, 1)
    assert inside(world.cache).tree.queues[0].items()[-1].key == np.arange(1, 9, dtype=np.int32).tobytes()
    world.audit()


def test_an_offer_is_refused_without_a_change_when_its_hit_has_been_evicted() -> None:
    world = hybrid(page_size=4, window=4)
    world.serve(up_to(12))
    namespace, offer = world.offer(up_to(12))
    evict(world.cache, 0, 2)
    before = world.snapshot()
    with pytest.raises(NoSpace, match="prefix"):
        world.cache.admit(RequestId(99), namespace, np.array(up_to(12), np.int32), offer)
    same(before, world.snapshot())


def test_an_offer_stays_valid_when_the_tree_grows() -> None:
    world = hybrid(page_size=4, window=4)
    world.serve(up_to(8))
    namespace, offer = world.offer(up_to(16))
    world.serve(up_to(16))
    holding = world.cache.admit(RequestId(99), namespace, np.array(up_to(16), np.int32), offer)
    assert holding.start == offer.begin.start == 8
    check(world.cache)


def test_an_offer_inside_a_page_stays_valid_when_another_page_shares_more_tokens_by_now() -> None:
    world = hybrid(page_size=4, window=4)
    world.serve(up_to(5, 90, 91, 92))
    asked = up_to(9)
    namespace, offer = world.offer(asked)
    world.serve(up_to(7, 93))
    assert world.offer(asked)[1].begin.start == 7
    holding = world.cache.admit(RequestId(99), namespace, np.array(asked, np.int32), offer)
    assert holding.start == offer.begin.start == 5
    check(world.cache)


def test_only_hits_are_counted_as_hits() -> None:
    world = hybrid(page_size=4, window=4)
    for prompt, hits in ((up_to(8), 0), ([50, 51], 0), (up_to(8, 60), 1)):
        world.serve(prompt)
        assert (world.cache.stats().hits, world.cache.stats().hit_tokens) == (hits, 8 * hits)


def test_admission_without_a_free_row_raises_no_space() -> None:
    world = World((Full(),), (16,), 1, rows=1, context=8)
    world.admit([1, 2])
    with pytest.raises(NoSpace, match="rows"):
        world.admit([3, 4])


# ---------------------------------------------------------------- epochs and no prefix cache


def test_a_flush_hides_all_pages_and_frees_the_unreferenced_ones() -> None:
    world = hybrid(page_size=4, window=4)
    world.serve(up_to(12))
    job = world.admit(up_to(8, *range(40, 60)))
    world.cache.flush()
    world.audit()
    assert start(world, up_to(12)) == 0
    assert [pool.free for pool in inside(world.cache).pools] == [62, 63]
    world.finish(job)
    assert [pool.free for pool in inside(world.cache).pools] == [64, 64]
    assert not inside(world.cache).tree.roots


def test_a_flush_between_admission_and_copy_keeps_the_source_until_it_has_run() -> None:
    world = hybrid(page_size=4, window=4)
    world.serve(up_to(12))
    job = world.admit(up_to(6, 40, 41, 42))
    world.cache.flush()
    world.audit()
    world.finish(job)
    assert [pool.free for pool in inside(world.cache).pools] == [64, 64]


def test_a_request_dropped_before_its_copy_cancels_the_copy() -> None:
    world = hybrid(page_size=4, window=4)
    world.serve(up_to(12))
    world.drop(world.admit(up_to(6, 40)))
    assert world.cache.pending_copies() == ()
    world.audit()
    assert world.cache.available.alone() == (64, 64)


def test_without_prefix_caching_nothing_hits_and_pages_are_freed_at_once() -> None:
    world = hybrid(page_size=4, window=4, caching=PrefixCaching.OFF)
    job = world.admit(up_to(30))
    world.prefill(job, chunk=4)
    assert inside(world.cache).pools[1].free == 64 - 2
    assert start(world, up_to(30)) == 0
    world.drop(job)
    assert [pool.free for pool in inside(world.cache).pools] == [64, 64]


def test_matching_skips_a_long_run_of_holes_in_a_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt without any window costs one step per node, not per page."""
    world = World(components("FW", 4), (600, 600), 1, context=520)
    world.serve(range(500))
    world.serve([*range(200), 1000])
    evict(world.cache, 1, inside(world.cache).pools[1].idle)
    looks: list[int] = []
    needed = SlidingPages.needed

    def counted(self: SlidingPages, end: int) -> int:
        looks.append(end)
        return needed(self, end)

    monkeypatch.setattr(SlidingPages, "needed", counted)
    assert world.offer(range(510))[1].begin.start == 0
    assert len(looks) < 20, looks

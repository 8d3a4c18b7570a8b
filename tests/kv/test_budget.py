"""One budget of bytes for all pools: no fixed ratio between pools, and never exceeded."""

import pytest
from tests.kv.world import World

from transom.errors import ConfigError, NoSpace
from transom.kv.budget import Capacity
from transom.kv.cache import CacheLayout, HybridCache
from transom.kv.check import inside
from transom.kv.component_specs import Full, Window
from transom.kv.layout import address_space, bytes_alone, longest_alone
from transom.steps import Discard


def shared(budget: int, sizes: tuple[int, int] = (10, 30), *, page_size: int = 1, context: int = 64) -> World:
    kinds = (Full(), Window(4))
    pages = address_space(budget, sizes)
    return World(kinds, pages, page_size, context=context, budget=budget, page_bytes=sizes)


def up_to(end: int, *more: int) -> list[int]:
    return [*range(1, end + 1), *more]


def test_bytes_that_windows_do_not_need_serve_full_attention() -> None:
    """850 bytes. With a fixed half for each pool, full attention would have 42 pages; here it has more."""
    world = shared(850)
    for _ in range(2):
        world.serve(up_to(60), chunk=4)
    stats = world.cache.stats().components
    assert stats[0].unreferenced == 60 and stats[1].unreferenced <= 8
    assert world.offer(up_to(60, 99))[1].begin.start == 60


def test_more_pages_than_the_budget_raise_no_space_and_change_nothing() -> None:
    world = shared(800)
    job = world.admit(up_to(60))
    world.compute(job, 20)
    before = world.snapshot()
    with pytest.raises(NoSpace) as raised:
        world.cache.extend(job.holding, 21)
    assert (raised.value.need, raised.value.have) == (40, 0)
    assert world.snapshot() == before
    world.audit()


def test_touched_bytes_are_discarded_only_when_they_would_exceed_the_budget() -> None:
    world = shared(400)
    job = world.admit(up_to(9))
    world.compute(job, 9)
    world.drop(job)
    assert inside(world.cache).budget.touched() == 360 and world.cache.pending_discards() == ()
    wide = world.admit(range(100, 120))
    world.cache.extend(wide.holding, 10)
    assert inside(world.cache).budget.touched() == 400
    assert world.cache.pending_discards() == ()
    world.run(wide, 10)
    world.settle(wide)
    world.cache.extend(wide.holding, 13)
    discards = world.cache.pending_discards()
    assert [discard.component for discard in discards] == [1]
    assert inside(world.cache).budget.touched() <= 400
    free = set(inside(world.cache).pools[1].free_pages().tolist())
    assert set(discards[0].pages) <= free
    world.run(wide, 13)
    assert world.cache.pending_discards() == ()


def test_a_page_allocated_again_is_not_discarded() -> None:
    world = shared(400)
    pool, budget = inside(world.cache).pools[1], inside(world.cache).budget
    with world.cache.transaction():
        pages = pool.allocate(8, 1)
        pool.free_private(pages, 1)
        discarded = pool.discard(2)
        budget._discarded = (Discard(1, tuple(discarded.tolist())),)
        assert budget.discards() == (Discard(1, tuple(discarded.tolist())),)
        pool.allocate(7, 1)
    (left,) = budget.discards()
    assert len(left.pages) == 1


def test_a_budget_too_small_for_one_request_is_refused_with_the_minimum() -> None:
    sizes = (10, 30)
    layout = CacheLayout((Full(), Window(4)), address_space(39, sizes), 1, 2, 64, budget=39, page_bytes=sizes)
    with pytest.raises(ConfigError, match="39 bytes cannot hold one request; at least 80 are needed"):
        HybridCache(layout)


@pytest.mark.parametrize("budget", [80, 150, 400, 701])
@pytest.mark.parametrize("page_size", [1, 3, 4])
def test_the_longest_request_alone_fits_and_one_token_more_does_not(budget: int, page_size: int) -> None:
    """Runs the request token by token: the stated length fits, and one token more does not."""
    sizes = (10, 30)
    world = shared(budget, page_size=page_size)
    longest = world.cache.longest_alone(1)
    assert bytes_alone(world.cache.layout, longest, 1) <= budget
    job = world.admit(range(64))
    with_room = 0
    try:
        while job.holding.computed < 64:
            world.compute(job, job.holding.computed + 1)
            with_room = job.holding.computed
            world.settle(job)
    except NoSpace:
        pass
    assert with_room == longest == longest_alone(world.cache.layout, 1), sizes


def test_the_pool_with_the_less_valuable_pages_evicts() -> None:
    """Middle windows of one prompt go before anything of another's."""
    world = shared(1250)
    world.serve(up_to(20), chunk=1)
    world.serve(range(100, 140), chunk=8)
    world.serve(range(200, 215), chunk=4)
    assert world.offer(up_to(20, 99))[1].begin.start == 20
    world.audit()


def test_a_span_lacks_as_many_pages_as_its_worst_component() -> None:
    assert Capacity((2, 5), 0, (0, 0)).lacks((3, 1)) == 1
    assert Capacity((3, 1), 0, (0, 0)).lacks((3, 1)) == 0
    assert Capacity((9, 9), 0, (0, 0)).lacks((3, 1)) == 0


def test_bytes_that_a_span_lacks_are_saved_by_every_component_that_grows() -> None:
    available = Capacity((9, 9), 100, (30, 10))
    assert [available.lacks(need) for need in ((2, 4), (3, 3), (4, 4), (4, 0))] == [0, 1, 2, 1]
    assert available.covers((2, 4)) and not available.covers((3, 3))
    assert available.alone() == (3, 9)
    assert available.less((2, 2)).more((0, 1)) == Capacity((7, 8), 30, (30, 10))

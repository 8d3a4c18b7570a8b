"""Every request ends: patience, priorities, and retractions that do not go round in circles."""

import pytest
from tests.sched.world import World

from transom.sched.policy import SchedulePolicy
from transom.values import IdleReason, RequestId


def distinct(length: int, seed: int) -> list[int]:
    return [(seed * 101 + 7 * i * i + i) % 49 for i in range(length)]


def test_small_requests_pass_one_that_does_not_fit_but_not_for_ever() -> None:
    world = World(
        page=1, windows=(), pages=(64,), rows=8, chunk=32, context=64, patience=6, outputs_expected=8
    )
    world.submit(distinct(10, 0), 30)
    world.step()
    large = world.submit(distinct(50, 1), 4)
    small: list[RequestId] = []
    while not world.spans(large):
        small.append(world.submit(distinct(4, 2 + len(small)), 6))
        world.step()
        assert len(small) < 80
    assert any(world.ends.get(request) for request in small), "small requests passed it"
    world.finish()


def test_a_stream_of_new_requests_starves_no_request() -> None:
    world = World(page=4, windows=(4,), pages=(20, 12), rows=4, chunk=16, context=64, patience=4)
    first = [world.submit(distinct(40, seed), 12) for seed in range(3)]
    for seed in range(150):
        world.submit(distinct(5, seed + 10), 5)
        world.step()
    assert set(first) <= world.ends.keys()
    world.finish()


def test_priority_goes_first_and_does_not_starve_the_rest() -> None:
    world = World(page=4, windows=(4,), rows=1, chunk=16)
    low, high = world.submit(distinct(8, 1), 4), world.submit(distinct(8, 2), 4, priority=1)
    world.finish()
    order = [
        end.request for iteration in world.iterations for end in iteration.events if end.request in world.ends
    ]
    assert order.index(high) < order.index(low)


def test_an_old_request_outranks_a_young_one_of_higher_priority() -> None:
    world = World(rows=1, chunk=16)
    world.submit(distinct(8, 0), 4)
    world.step()
    old = world.submit(distinct(8, 1), 4)
    for seed in range(world.config.priority_bonus):
        world.abort(world.submit([seed % 40], 1))
    world.step()
    young = world.submit(distinct(8, 2), 4, priority=1)
    world.drain()
    ended = [
        event.request
        for iteration in world.iterations
        for event in iteration.events
        if event.request in (old, young)
    ]
    assert ended[0] == old


@pytest.mark.parametrize("outputs", [20, 40])
def test_retractions_are_bounded_by_a_logarithm_of_the_output(outputs: int) -> None:
    world = World(page=1, windows=(4,), pages=(100, 60), rows=8, chunk=32, context=64)
    for seed in range(8):
        world.submit(distinct(12, seed), outputs)
    world.finish()
    stats = world.scheduler.stats()
    assert 0 < stats.retractions <= 3 * 8
    minimum = 8 * (12 + outputs - 1)
    assert stats.computed_tokens <= 2 * minimum


def test_a_retracted_request_comes_back_with_a_hit() -> None:
    world = World(page=1, windows=(4,), pages=(100, 60), rows=8, chunk=32, context=64)
    request = world.submit(distinct(20, 1), 20)
    while len(world.texts[request]) < 8:
        world.step()
    world.retract_all()
    world.step()
    assert world.last_step() == {request: (27, 28)}
    world.finish()
    stats = world.scheduler.stats()
    assert (stats.retractions, stats.recomputed_tokens) == (1, 0)
    assert world.ends[request].usage.cached_tokens == 0


def test_the_oldest_running_request_takes_memory_from_the_junior_end() -> None:
    world = World(page=1, windows=(), pages=(40,), rows=4, chunk=16, context=40)
    senior, middle, junior = (world.submit(distinct(8, seed), 24) for seed in range(3))
    world.step()
    assert world.last_step().keys() == {senior, middle}
    world.step()
    assert world.last_step().keys() == {senior, middle, junior}
    retracted: list[RequestId] = []
    while not retracted:
        retracted = [victim.progress.id for victim in world.scheduler.plan().retract]
        world.step()
    assert retracted == [junior]
    world.finish()


def test_a_budget_smaller_than_the_decodes_serves_the_seniors() -> None:
    world = World(page=4, windows=(4,), pages=(64, 64), rows=8, chunk=2)
    requests = [world.submit(distinct(3, seed), 6) for seed in range(6)]
    world.finish()
    ends = [
        event.request
        for iteration in world.iterations
        for event in iteration.events
        if event.request in world.ends
    ]
    assert list(dict.fromkeys(ends)) == requests


def test_a_starved_senior_gets_budget_although_decodes_would_fill_it() -> None:
    world = World(page=4, windows=(4,), pages=(64, 64), rows=8, chunk=4)
    for seed in range(4):
        world.submit(distinct(1, seed), 40)
    for _ in range(4):
        world.step()
    oldest = world.submit(distinct(20, 9), 2, priority=1)
    for _ in range(world.config.patience_steps + 3):
        world.step()
    assert world.spans(oldest)[0] == (0, 1), "one token, and it is the oldest running request"
    assert len(world.last_step()) == 4
    world.finish()


def test_idle_means_that_there_is_no_work() -> None:
    world = World()
    assert world.step().idle is not None
    request = world.submit(distinct(5, 1), 2)
    assert world.step().idle is None
    world.drain()
    assert world.ends.keys() == {request}
    assert world.scheduler.stats().idle == {**dict.fromkeys(IdleReason, 0), IdleReason.NO_WORK: 2}


# ---------------------------------------------------------------- preemption


def busy_rows(world: World, rows: int, outputs: int, **fields: object) -> list[RequestId]:
    """So many running requests, with all rows taken."""
    requests = [world.submit(distinct(3, seed), outputs, **fields) for seed in range(rows)]
    for _ in range(rows):
        world.step()
    return requests


@pytest.mark.parametrize("policy", list(SchedulePolicy))
def test_a_higher_class_takes_a_row_from_the_most_junior_of_the_lowest(policy: SchedulePolicy) -> None:
    world = World(page=4, windows=(4,), pages=(200, 200), rows=3, chunk=16, context=64, policy=policy)
    busy_rows(world, 2, 40)
    lowest = world.submit(distinct(3, 7), 40, priority=-1)
    world.step()
    high = world.submit(distinct(6, 9), 3, priority=100)
    for _ in range(3):
        world.step()
    assert world.spans(high), "it starts within three steps although all rows were taken"
    assert lowest not in world.last_step()
    world.finish()
    assert world.scheduler.stats().retractions == 1


def test_a_senior_out_of_patience_takes_a_row_of_its_own_class() -> None:
    world = World(page=4, windows=(4,), pages=(200, 200), rows=1, chunk=64, context=96, patience=4)
    prompt = distinct(24, 1)
    world.submit(prompt, 1)
    world.drain()
    senior, junior = world.submit(distinct(8, 2), 3), world.submit([*prompt, 7], 60)
    world.step()
    assert junior in world.last_step(), "the longest cached prefix goes first"
    for _ in range(6):
        world.step()
    assert senior in world.last_step() and world.texts[junior], "patience is over, and the junior waits"
    world.finish()
    assert list(world.ends)[-2:] == [senior, junior]
    assert world.scheduler.stats().retractions == 1


def test_a_stream_of_a_higher_class_does_not_starve_a_lower_one() -> None:
    world = World(page=4, windows=(4,), pages=(60, 60), rows=2, chunk=16, context=64, patience=4)
    low = busy_rows(world, 2, 20)
    for seed in range(4 * world.config.priority_bonus):
        world.submit(distinct(4, seed), 4, priority=1)
        world.step()
        if set(low) <= world.ends.keys():
            break
    assert set(low) <= world.ends.keys()
    world.finish()


def test_small_requests_start_though_many_before_them_do_not_fit() -> None:
    world = World(page=1, windows=(), pages=(64,), rows=32, chunk=64, context=64, outputs_expected=8)
    world.submit(distinct(20, 0), 40)
    world.step()
    for seed in range(6):
        world.submit(distinct(50, seed + 1), 4)
    small = world.submit(distinct(4, 9), 2)
    world.step()
    assert world.spans(small), "six large requests before it do not fit"
    world.finish()

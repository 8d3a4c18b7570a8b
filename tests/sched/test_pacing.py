"""A target for the time between tokens: prefill is cut to it, and gets on all the same."""

import pytest
from tests.sched.world import World

from transom.sched.request import Span
from transom.sched.step_cost import StepCost, TimeBudget, time_left

COST = StepCost(base=2.0, per_span=1.0, per_token=1.0, per_attended=0.0)


@pytest.mark.parametrize(
    ("target", "most"),
    [
        (100.0, 64),  # the whole budget
        (40.0, 33),  # a step and two decodes take 6 seconds, a span 1, and each token 1
        (12.0, 5),
        (10.9, 4),  # a page, though it is a token too much
        (1.0, 4),  # a page, though decodes alone take longer
    ],
)
def test_a_chunk_beside_decodes_has_the_time_that_is_left_and_a_page_at_least(
    target: float, most: int
) -> None:
    assert time_left([10, 20], COST, target, floor=4).longest_chunk(0, 64) == most


def test_what_a_chunk_takes_is_gone_and_the_page_is_given_once() -> None:
    time = TimeBudget(COST, seconds=10.0, floor=4)
    assert time.longest_chunk(0, 64) == 9
    time.spend(Span(0, 6))
    assert (time.seconds, time.floor, time.longest_chunk(0, 64)) == (3.0, 0, 2)
    time.spend(Span(0, 2))
    assert time.longest_chunk(0, 64) == 0


def test_keys_read_from_far_on_cost_time() -> None:
    time = TimeBudget(StepCost(per_attended=1.0), seconds=30.0, floor=1)
    assert (time.longest_chunk(0, 64), time.longest_chunk(9, 64), time.longest_chunk(100, 64)) == (7, 2, 1)


def paced(target: float | None, cost: StepCost = COST, **fields: object) -> World:
    settings: dict[str, object] = {
        "page": 4,
        "windows": (8,),
        "pages": (400, 400),
        "context": 300,
        "chunk": 64,
    }
    world = World(**{**settings, "target_seconds": target, **fields})  # type: ignore[arg-type]
    world.runner.cost = cost
    return world


def distinct(length: int, seed: int) -> list[int]:
    return [1_000 * seed + i for i in range(length)]


def teach(world: World) -> None:
    """Prompts of several lengths, alone and beside each other, until nobody is left."""
    for seed in range(12):
        world.submit(distinct(5 + 14 * seed % 60, seed), 6)
        world.step()
    world.drain()


def test_steps_with_decodes_keep_to_the_target_once_costs_are_learned() -> None:
    world = paced(30.0)
    teach(world)
    before = len(world.runner.steps)
    world.submit(distinct(3, 30), 60)
    for seed in range(4):
        world.step()
        world.submit(distinct(150, 40 + seed), 4)
    world.finish()
    steps = world.runner.steps[before:]
    took = [COST.seconds(work) for work in steps if any(len(s.tokens) == 1 and s.start for s in work.spans)]
    assert max(took) <= 31.0, "learned to a few per cent"
    assert max(took) >= 25.0, "and not by holding prefill back"


def test_without_a_decode_the_chunk_is_whole() -> None:
    world = paced(10.0)
    teach(world)
    request = world.submit(distinct(200, 50), 1)
    world.step()
    assert world.last_step() == {request: (0, 64)}
    world.finish()


def test_without_a_target_nobody_looks_at_the_time() -> None:
    world = paced(None)
    teach(world)
    world.submit(distinct(3, 30), 60)
    world.step()
    request = world.submit(distinct(200, 50), 1)
    world.step()
    assert world.last_step()[request] == (0, 60), "the budget but for the decode, to a page boundary"
    world.finish()


def test_prefill_gets_on_by_a_page_a_step_however_long_decodes_take() -> None:
    """The bound of it: a prompt of n tokens takes at most n / page steps, whatever the target."""
    world = paced(0.5)
    teach(world)
    for seed in range(3):
        world.submit(distinct(3, 30 + seed), 80)
        world.step()
    world.step()
    request = world.submit(distinct(100, 50), 1)
    before = len(world.runner.steps)
    while request not in world.ends:
        world.step()
    assert world.spans(request) == [(start, start + 4) for start in range(0, 100, 4)]
    assert len(world.runner.steps) - before == 25
    world.finish()


def test_an_urgent_senior_gets_a_token_beside_prefill_that_uses_the_page_up() -> None:
    world = paced(0.5, patience=2)
    teach(world)
    decode = world.submit(distinct(3, 30), 90)
    world.step()
    world.submit(distinct(200, 31), 2)
    world.step()
    senior = world.submit(distinct(20, 32), 2, priority=9)
    for _ in range(world.limits.patience_steps + 2):
        world.step()
    assert world.spans(senior) and decode in world.last_step()
    world.finish()

"""The target for the time between tokens: prefill chunks are cut to it, and still make progress."""

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
def test_a_chunk_next_to_decodes_gets_the_time_that_is_left_and_at_least_a_page(
    target: float, most: int
) -> None:
    assert time_left([10, 20], COST, target, floor=4).longest_chunk(0, 64) == most


def test_a_chunk_uses_up_its_time_and_the_guaranteed_page() -> None:
    time = TimeBudget(COST, seconds=10.0, floor=4)
    assert time.longest_chunk(0, 64) == 9
    time.spend(Span(0, 6))
    assert (time.seconds, time.floor, time.longest_chunk(0, 64)) == (3.0, 0, 2)
    time.spend(Span(0, 2))
    assert time.longest_chunk(0, 64) == 0


def test_keys_of_a_late_chunk_cost_time() -> None:
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


def learn_costs(world: World) -> None:
    """Runs prompts of several lengths, alone and together, until all have ended."""
    for seed in range(12):
        world.submit(distinct(5 + 14 * seed % 60, seed), 6)
        world.step()
    world.drain()


def test_steps_with_decodes_keep_to_the_target_once_costs_are_learned() -> None:
    world = paced(30.0)
    learn_costs(world)
    before = len(world.runner.steps)
    world.submit(distinct(3, 30), 60)
    for seed in range(4):
        world.step()
        world.submit(distinct(150, 40 + seed), 4)
    world.finish()
    steps = world.runner.steps[before:]
    took = [COST.seconds(work) for work in steps if any(len(s.tokens) == 1 and s.start for s in work.spans)]
    assert max(took) <= 31.0, "costs are learned to a few per cent"
    assert max(took) >= 25.0, "prefill is not held back more than needed"


def test_without_a_decode_the_chunk_is_whole() -> None:
    world = paced(10.0)
    learn_costs(world)
    request = world.submit(distinct(200, 50), 1)
    world.step()
    assert world.last_step() == {request: (0, 64)}
    world.finish()


def test_without_a_target_chunks_take_the_whole_budget() -> None:
    world = paced(None)
    learn_costs(world)
    world.submit(distinct(3, 30), 60)
    world.step()
    request = world.submit(distinct(200, 50), 1)
    world.step()
    assert world.last_step()[request] == (0, 60), "the budget without the decode, to a page boundary"
    world.finish()


def test_prefill_advances_a_page_per_step_however_long_decodes_take() -> None:
    """A prompt of n tokens takes at most n / page steps, however low the target is."""
    world = paced(0.5)
    learn_costs(world)
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


def test_a_starved_senior_gets_a_token_though_prefill_uses_up_the_page() -> None:
    world = paced(0.5, patience=2)
    learn_costs(world)
    decode = world.submit(distinct(3, 30), 90)
    world.step()
    world.submit(distinct(200, 31), 2)
    world.step()
    senior = world.submit(distinct(20, 32), 2, priority=9)
    for _ in range(world.config.patience_steps + 2):
        world.step()
    assert world.spans(senior) and decode in world.last_step()
    world.finish()

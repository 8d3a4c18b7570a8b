"""Random worlds: every text is that of a request alone, for all disturbances of the requests around it."""

import random

import pytest
from tests.sched.world import World, minimum

from transom.kv.component_specs import Chunked, ComponentSpec, Full, State, Window
from transom.kv.layout import PrefixCaching
from transom.sched.policy import SchedulePolicy
from transom.sched.step_cost import StepCost

PAGES = (1, 3, 4, 16)
WINDOWS = (1, 2, 4, 7, 16)
SEEDS = [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 16))]


def random_world(random: random.Random, page: int, window: int) -> World:
    context = random.choice([17, 32, 48])
    windows = (window,) if random.random() < 0.7 else (window, random.choice(WINDOWS))
    more: tuple[ComponentSpec, ...] = random.choice(
        [(), (), (State(4),), (Chunked(7),), (Chunked(6), State(6))]
    )
    components: tuple[ComponentSpec, ...] = (Full(), *map(Window, windows), *more)
    least = minimum(components, page, context)
    full_more, window_more = random.choice([(0, 0), (0.2, 8), (1, 8), (1, 8), (4, 1), (4, 3)])
    sizes = tuple(random.randint(1, 9) for _ in components) if random.random() < 0.4 else ()
    return World(
        page=page,
        page_bytes=sizes,
        windows=windows,
        more=more,
        pages=[int(least[0] * (1 + full_more)), *(int(pages * (1 + window_more)) for pages in least[1:])],
        rows=random.choice([1, 2, 4, 8, 8]),
        chunk=random.choice([1, 3, 8, 20, 20]),
        context=context,
        caching=random.choice([PrefixCaching.ON, PrefixCaching.ON, PrefixCaching.OFF]),
        patience=random.choice([0, 3, 20]),
        outputs_expected=random.choice([1, 4, 20]),
        prefix_gain_min=random.choice([1, 4]),
        policy=random.choice(list(SchedulePolicy)),
        skipped_max=random.choice([1, 4, 256]),
        target_seconds=random.choice([None, 4.0]),
    )


def submit_random(random: random.Random, world: World, stems: list[list[int]]) -> None:
    stem = random.choice(stems)
    shared = stem[: random.randint(0, len(stem))]
    own = [random.randrange(50) for _ in range(random.randint(0, 12))]
    prompt = (shared + own or [7])[: world.context]
    room = world.context - len(prompt)
    world.submit(
        prompt,
        min(room, random.choice([0, 1, 5, 12, 40, 40])),
        priority=random.choice([0, 0, 0, 1, -1]),
        salt=random.choice(["", "", "tenant"]),
        tenant=random.choice(["", "", "one", "other"]),
        stop_ids=frozenset(random.sample(range(50), random.choice([0, 0, 2]))),
    )


def disturb(random: random.Random, world: World) -> None:
    chance = random.random()
    if chance < 0.04:
        world.flush()
    elif chance < 0.10:
        world.abort(random.choice(list(world.requests)))
    elif chance < 0.13:
        world.fail_next_step()


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("seed", SEEDS)
def test_every_text_is_the_cold_text_and_every_request_ends_once(seed: int, page: int, window: int) -> None:
    rng = random.Random(f"{seed} {page} {window}")
    world = random_world(rng, page, window)
    world.runner.cost = StepCost(base=1.0, per_span=0.5, per_token=0.25)
    stems = [[rng.randrange(50) for _ in range(rng.randint(4, 30))] for _ in range(2)]
    for _ in range(rng.randint(5, 14)):
        submit_random(rng, world, stems)
        for _ in range(rng.choice([0, 0, 1, 4])):
            world.step()
            disturb(rng, world)
    work = sum(len(r.prompt) + r.max_tokens for r in world.requests.values())
    world.drain(iterations_max=3 * work + 50)
    world.runner.failure = None
    world.require_all_cold()
    world.require_empty()


@pytest.mark.parametrize("worlds", [25, pytest.param(100, marks=pytest.mark.slow)])
def test_random_worlds_hit_copy_retract_and_recompute(worlds: int) -> None:
    """Otherwise the tests above would compare texts of requests that never met."""
    played = [played_world(seed) for seed in range(100 - worlds, 100)]
    stats = [world.scheduler.stats() for world in played]
    assert sum(s.cached_tokens > 0 for s in stats) >= worlds / 10
    assert sum(s.retractions > 0 for s in stats) >= worlds / 20
    assert sum(s.recomputed_tokens > 0 for s in stats) >= worlds / 20
    assert sum(any(work.copies for work in world.runner.steps) for world in played) >= worlds / 20


def played_world(seed: int) -> World:
    rng = random.Random(seed)
    world = random_world(rng, rng.choice(PAGES), rng.choice(WINDOWS))
    stems = [[rng.randrange(50) for _ in range(rng.randint(4, 30))] for _ in range(2)]
    for _ in range(10):
        submit_random(rng, world, stems)
    world.step()
    disturb(rng, world)
    world.drain()
    return world

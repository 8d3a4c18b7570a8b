"""Worlds with repairs: texts stay the cold ones, and admission starts where it computes least."""

import random

import pytest
from tests.sched.test_worlds import PAGES, disturb, submit_random
from tests.sched.world import World, minimum

from transom.kv.check import inside
from transom.kv.component_specs import ComponentSpec, Full, Window


def world_with(page: int, window: int, layers: tuple[int, ...], **fields: object) -> World:
    return World(page=page, windows=(window,), layers=layers, **fields)  # type: ignore[arg-type]


def lose_windows(world: World, share: float = 1.0) -> None:
    """Evicts a share of the window pages that no request reads."""
    world.evict(1, int(inside(world.cache).pools[1].idle * share))


def prompt(length: int, seed: int = 0) -> list[int]:
    return [(seed * 37 + i * i + 3 * i) % 41 for i in range(length)]


def test_a_prompt_whose_windows_are_gone_is_repaired_and_the_next_one_hits() -> None:
    world = world_with(4, 4, (1, 0, 1), pages=(64, 32), chunk=64)
    first = world.submit(prompt(40), 1)
    world.finish()
    lose_windows(world)
    second = world.submit([*prompt(40), 7], 1)
    world.finish()
    third = world.submit([*prompt(40), 8], 1)
    world.finish()
    assert [world.spans(request)[0] for request in (first, second, third)] == [(0, 40), (33, 41), (40, 41)]
    assert [world.ends[request].usage.cached_tokens for request in (second, third)] == [33, 40]
    assert world.scheduler.stats().repaired_tokens == 7
    assert world.cache.stats().repairs == 1
    assert world.runner.inexact_tokens > 0


def test_a_repair_takes_no_full_page_before_the_full_pages_end() -> None:
    """The pool has full pages for one request of 48 tokens, all cached; the repair is admitted at once."""
    world = world_with(4, 4, (1, 0, 1), pages=(12, 16), chunk=8, context=48)
    world.submit(prompt(44), 1)
    world.finish()
    lose_windows(world)
    assert inside(world.cache).pools[0].free == 1
    second = world.submit([*prompt(44), 7], 2)
    world.finish()
    assert world.spans(second)[0][0] == 37
    assert world.cache.stats().components[0].evicted == 0


def test_a_repair_retracted_halfway_frees_its_pages_and_is_repaired_again() -> None:
    world = world_with(4, 8, (1, 1, 1, 0), pages=(64, 32), chunk=4)
    world.submit(prompt(48), 1)
    world.finish()
    lose_windows(world)
    second = world.submit([*prompt(48), 7], 2)
    world.step()
    assert world.cache.stats().components[1].private > 0
    world.retract_all()
    stats = world.cache.stats().components[1]
    assert (stats.private, stats.referenced, stats.unreferenced) == (0, 0, 0)
    world.finish()
    starts = [start for start, _ in world.spans(second)]
    assert starts[0] == starts[1] == 48 - 8 - 7 - 7
    assert world.cache.stats().repairs == 2


def test_a_request_that_shares_a_prefix_under_repair_waits_for_it() -> None:
    world = world_with(4, 8, (1, 1, 1, 0), pages=(64, 32), chunk=8)
    world.submit(prompt(48), 1)
    world.finish()
    lose_windows(world)
    second, third = world.submit([*prompt(48), 7], 1), world.submit([*prompt(48), 8], 1)
    world.finish()
    assert world.spans(second)[0][0] == 26
    assert world.spans(third)[0][0] == 48
    assert world.cache.stats().repairs == 1


def test_pools_with_room_for_one_request_serve_repairs_too() -> None:
    world = world_with(4, 4, (1, 0, 1), chunk=8, context=48, patience=0)
    for seed in range(3):
        world.submit(prompt(30, seed), 4)
    world.finish()
    lose_windows(world)
    for seed in range(3):
        world.submit([*prompt(28, seed), 9], 8)
    world.finish()


def random_world(rng: random.Random, page: int, window: int) -> World:
    context = rng.choice([32, 48, 64])
    components: tuple[ComponentSpec, ...] = (Full(), Window(window))
    least = minimum(components, page, context)
    full_more, window_more = rng.choice([(0, 0), (0.2, 8), (0.5, 1), (1, 1), (4, 0.5), (4, 3)])
    return world_with(
        page,
        window,
        rng.choice([(0, 1), (1, 0), (1, 0, 1), (1, 1, 0, 1)]),
        page_bytes=rng.choice([(), (), (3, 5)]),
        pages=[int(least[0] * (1 + full_more)), int(least[1] * (1 + window_more))],
        rows=rng.choice([1, 2, 4, 8]),
        chunk=rng.choice([1, 3, 8, 20]),
        context=context,
        patience=rng.choice([0, 3, 20]),
        outputs_expected=rng.choice([1, 4, 20]),
        prefix_gain_min=rng.choice([1, 4]),
    )


def play(rng: random.Random, page: int, window: int) -> World:
    world = random_world(rng, page, window)
    stems = [[rng.randrange(50) for _ in range(rng.randint(16, 40))] for _ in range(2)]
    for _ in range(rng.randint(6, 14)):
        submit_random(rng, world, stems)
        for _ in range(rng.choice([0, 0, 1, 4, 12])):
            world.step()
            disturb(rng, world)
            if rng.random() < 0.2:
                lose_windows(world, rng.random())
    work = sum(len(r.prompt) + r.max_tokens for r in world.requests.values())
    world.drain(iterations_max=3 * work + 50)
    world.runner.failure = None
    world.require_all_cold()
    world.require_empty()
    return world


@pytest.mark.parametrize("window", [2, 4, 7, 16])
@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 12))]
)
def test_with_repairs_every_text_is_the_cold_text(seed: int, page: int, window: int) -> None:
    play(random.Random(f"repair {seed} {page} {window}"), page, window)


@pytest.mark.parametrize("worlds", [15, pytest.param(40, marks=pytest.mark.slow)])
def test_random_worlds_repair_and_retract(worlds: int) -> None:
    pages = [random.Random(seed).choice([1, 3, 4]) for seed in range(worlds)]
    played = [play(random.Random(f"shown {seed}"), page, 4) for seed, page in enumerate(pages)]
    assert sum(world.cache.stats().repairs > 0 for world in played) >= 0.35 * worlds
    assert sum(world.scheduler.stats().retractions > 0 for world in played) >= 0.075 * worlds

"""Repair: where it starts, by example and by brute force; which pages it stores, publishes and frees."""

from itertools import product

import numpy as np
import pytest
from tests.kv.test_fork import fork
from tests.kv.test_machine import CONTEXT, CacheMachine, one_operation
from tests.kv.world import World, components, same

from transom.errors import ConfigError, NoSpace
from transom.kv.cache import CacheLayout, HybridCache, StartPoint
from transom.kv.check import evict, inside
from transom.kv.component_specs import Full, State, Window
from transom.kv.layout import pages_alone
from transom.kv.match import repair_start
from transom.values import RequestId
from transom_lab.worlds.repair_oracle import is_enough, latest_start

MODELS = (
    ("FW", (0, 1)),
    ("FW", (1, 0)),
    ("FW", (1, 1, 0, 1)),
    ("FWV", (1, 2, 0)),
    ("FWV", (2, 0, 1, 1)),
    ("WLF", (0, 1, 2, 0)),
    ("FC", (1, 1, 0, 1)),
    ("CFW", (0, 2, 1, 0, 2)),
)
"""Mixes of components, and stacks of layers on them."""


def up_to(end: int, *more: int) -> list[int]:
    return [*range(1, end + 1), *more]


def hybrid(page_size: int, window: int, layers: tuple[int, ...], pages: int = 64) -> World:
    return World(components("FW", window), (pages, pages), page_size, layers=layers)


def lose_windows(world: World) -> None:
    evict(world.cache, 1, inside(world.cache).pools[1].idle)


# ---------------------------------------------------------------- starts


@pytest.mark.parametrize(("mix", "layers"), MODELS)
@pytest.mark.parametrize("page_size", [1, 3, 4, 16])
def test_a_repair_starts_as_late_as_brute_force_over_all_starts_allows(
    page_size: int, mix: str, layers: tuple[int, ...]
) -> None:
    for window, pages in product((1, 2, 4, 7), range(1, 48 // page_size)):
        kinds, context = components(mix, window), 64
        layout = CacheLayout(kinds, (64,) * len(kinds), page_size, 1, context, layers=layers)
        until = pages * page_size
        stack = tuple(kinds[component] for component in layers)
        start = repair_start(layout.rules(), layers, until)
        assert start == latest_start(stack, page_size, context, until), (window, until)
        later = range(start + 1, until + 1)
        assert not any(is_enough(stack, page_size, context, until, s) for s in later), (window, until)


@pytest.mark.parametrize(
    ("window", "layers", "distance"),
    [
        (128, (1, 0) * 12, 1524),  # gpt-oss-20b: 12 windows of 128
        (512, (1, 1, 1, 1, 1, 0) * 3, 7665),  # Gemma 3 270M: 15 of 512
    ],
)
def test_n_equal_windows_cost_n_times_the_window_less_one(
    window: int, layers: tuple[int, ...], distance: int
) -> None:
    layout = CacheLayout((Full(), Window(window)), (2048, 2048), 16, 1, 32_768, layers=layers)
    for until in range(9008, 9008 + 320, 16):
        rebuilt = until - repair_start(layout.rules(), layers, until)
        assert distance <= rebuilt < distance + 16, (until, rebuilt)


def test_a_start_near_the_beginning_is_the_beginning() -> None:
    layout = CacheLayout((Full(), Window(4)), (64, 64), 4, 1, 64, layers=(1, 1, 0))
    assert [repair_start(layout.rules(), (1, 1, 0), until) for until in (0, 4, 8, 12)] == [0, 0, 1, 5]


# ---------------------------------------------------------------- offers


def test_without_any_window_a_repair_is_offered_before_a_cold_start() -> None:
    world = hybrid(page_size=4, window=4, layers=(1, 0, 1))
    world.serve(up_to(24))
    lose_windows(world)
    namespace = world.cache.namespace(RequestId(99), "")
    offers = world.cache.offers(namespace, np.array(up_to(24, 50), np.int32))
    assert [offer.begin for offer in offers] == [
        StartPoint(17, 24, 20, clip=17),
        StartPoint(0, 24, 0),
        StartPoint(0, 0, 0),
    ]
    assert [(offer.takes, offer.pins) for offer in offers] == [
        ((0, 1), (6, 0)),
        ((0, 0), (6, 0)),
        ((0, 0), (0, 0)),
    ]


def test_a_hit_that_leaves_less_to_compute_is_offered_before_a_repair() -> None:
    """Windows of [12, 16) are left: begin at 16, not at 14, though full pages reach 24."""
    world = hybrid(page_size=4, window=4, layers=(1, 1, 1, 0))
    world.serve(up_to(24))
    (node,) = [node for _, _, node in world.nodes()]
    with world.cache.transaction():
        inside(world.cache).tree.evict_pages(node, 1, np.array([0, 1, 2, 4, 5]))
    namespace, offer = world.offer(up_to(24, 50))
    assert offer.begin == StartPoint(16, 24, 16)
    assert world.latest_repair(namespace, up_to(24, 50)) == 14


@pytest.mark.parametrize(("mix", "layers"), [("F", ()), ("FW", (1, 0, 1))])
def test_no_offer_starts_after_latest_so_that_prompt_logprobs_can_be_computed(
    mix: str, layers: tuple[int, ...]
) -> None:
    """However much is cached. With full attention alone, the start is exactly `latest`."""
    world = World(components(mix, 4), (64,) * len(mix), 4, layers=layers)
    world.serve(up_to(24))
    namespace, tokens = world.cache.namespace(RequestId(99), ""), np.array(up_to(24, 50), np.int32)
    for latest in range(24):
        starts = [offer.begin.start for offer in world.cache.offers(namespace, tokens, latest)]
        assert max(starts) <= latest, (latest, starts)
        assert mix == "FW" or starts[0] == latest, (latest, starts)


def test_without_layers_no_repair_is_offered() -> None:
    world = World(components("FW", 4), (64, 64), 4)
    world.serve(up_to(24))
    evict(world.cache, 1, inside(world.cache).pools[1].idle)
    assert world.offer(up_to(24, 50))[1].begin == StartPoint(0, 24, 0)


def test_layers_name_every_component() -> None:
    with pytest.raises(ConfigError, match="layers"):
        HybridCache(CacheLayout((Full(), Window(4)), (64, 64), 4, 4, 64, layers=(0, 0)))


# ---------------------------------------------------------------- running repairs


@pytest.mark.parametrize("chunk", [1, 3, 4, 7, 100])
def test_a_repair_rebuilds_the_boundary_stores_no_full_page_twice_and_the_next_request_hits(
    chunk: int,
) -> None:
    world = hybrid(page_size=4, window=7, layers=(1, 0, 1, 1))
    world.serve(up_to(40))
    lose_windows(world)
    full_free = inside(world.cache).pools[0].free
    job = world.admit(up_to(40, 50, 51))
    assert (job.holding.start, job.holding.full_until, job.holding.clip) == (20, 40, 20)
    while job.holding.computed < 40:
        world.compute(job, min(40, job.holding.computed + chunk))
        world.settle(job)
        world.audit()
        assert inside(world.cache).pools[0].free == full_free
    assert sorted(len(prefix) for _, prefix in world.resident()[1]) == [36, 40]
    world.finish(job, chunk)
    assert world.offer(up_to(40, 60))[1].begin == StartPoint(40, 40, 40)
    assert world.cache.stats().repairs == 1


def test_nothing_is_published_during_a_repair_and_inexact_pages_are_freed() -> None:
    world = hybrid(page_size=4, window=7, layers=(1, 0, 1, 1))
    world.serve(up_to(40))
    lose_windows(world)
    job = world.admit(up_to(40, 50))
    world.compute(job, 36)
    world.settle(job)
    world.audit()
    assert not world.resident()[1]
    world.drop(job)
    assert world.cache.available.alone() == (64, 64) and inside(world.cache).pools[1].free == 64
    assert world.offer(up_to(40, 50))[1].begin.start == 20


def test_a_repair_dropped_before_it_began_leaves_no_trace() -> None:
    world = hybrid(page_size=4, window=7, layers=(1, 0, 1, 1))
    world.serve(up_to(40))
    lose_windows(world)
    before = world.snapshot()
    world.drop(world.admit(up_to(40, 50)))
    after = world.snapshot()
    for part in ("pools", "rows", "tree"):
        assert before[part] == after[part], part


def test_full_pages_beyond_an_island_are_read_and_not_stored_again() -> None:
    world = hybrid(page_size=4, window=4, layers=(1, 1, 1, 0))
    world.serve(up_to(24))
    (node,) = [node for _, _, node in world.nodes()]
    with world.cache.transaction():
        inside(world.cache).tree.evict_pages(node, 1, np.array([4, 5]))
    full_free = inside(world.cache).pools[0].free
    job = world.admit(up_to(24, 50))
    assert (job.holding.start, job.holding.full_until, job.holding.clip) == (16, 24, 0)
    world.compute(job, 20)
    world.settle(job)
    world.audit()
    assert inside(world.cache).pools[0].free == full_free
    assert 20 in {len(prefix) for _, prefix in world.resident()[1]}, "exact pages are published at once"
    world.finish(job)
    assert inside(world.cache).pools[0].free == full_free


@pytest.mark.parametrize("computed", [22, 36, 39])
def test_a_repair_cannot_fork_before_full_until(computed: int) -> None:
    """Its row names full pages up to 40: a child with other tokens from `computed` on would read them."""
    world = hybrid(page_size=4, window=7, layers=(1, 0, 1, 1))
    world.serve(up_to(40))
    lose_windows(world)
    job = world.admit(up_to(40, 50, 51))
    world.compute(job, computed)
    before = world.snapshot()
    with pytest.raises(AssertionError, match=rf"fork before full_until.*{computed}, 40"):
        fork(world, job)
    same(before, world.snapshot())


@pytest.mark.parametrize("computed", [40, 41])
def test_a_fork_of_a_repair_is_a_repair(computed: int) -> None:
    world = hybrid(page_size=4, window=7, layers=(1, 0, 1, 1))
    world.serve(up_to(40))
    lose_windows(world)
    job = world.admit(up_to(40, 50, 51))
    world.compute(job, computed)
    child = fork(world, job)
    world.run_copies()
    world.audit()
    assert child.holding.clip == job.holding.clip == 20
    world.finish(job, 3)
    world.finish(child, 5)
    assert world.offer(up_to(40, 60))[1].begin == StartPoint(40, 40, 40)


def test_an_explanation_says_where_a_repair_would_start() -> None:
    world = hybrid(page_size=4, window=7, layers=(1, 0, 1, 1))
    world.serve(up_to(40))
    lose_windows(world)
    tokens = np.array(up_to(40, 50), np.int32)
    why = world.cache.explain(world.cache.namespace(RequestId(99), ""), tokens)
    assert (why.start, why.lost, why.repair) == (0, 40, 20)


def test_with_a_state_no_repair_is_offered() -> None:
    """No run of tokens rebuilds a state. Full pages are hit all the same."""
    world = World((Full(), Window(4), State(4)), (64, 64, 8), 4, layers=(1, 0, 2))
    world.serve(up_to(24))
    with world.cache.transaction():
        for component in (1, 2):
            evict(world.cache, component, inside(world.cache).pools[component].idle)
    assert world.offer(up_to(24, 50))[1].begin == StartPoint(0, 24, 0)


def test_the_growth_of_an_offer_is_the_growth_of_its_holding() -> None:
    world = hybrid(page_size=4, window=7, layers=(1, 0, 1, 1))
    world.serve(up_to(40))
    lose_windows(world)
    tokens = np.array(up_to(40, *range(50, 60)), np.int32)
    namespace = world.cache.namespace(RequestId(99), "")
    for offer in world.cache.offers(namespace, tokens):
        expected = [world.cache.growth(offer.begin, end) for end in range(51)]
        job = world.admit_by(tokens, namespace, offer)
        assert expected == [world.cache.growth(job.holding, end) for end in range(51)], offer
        assert expected[40][0] == (0 if offer.begin.full_until else 10), offer
        world.drop(job)


def test_an_offered_repair_is_refused_when_its_full_pages_have_been_evicted() -> None:
    world = hybrid(page_size=4, window=4, layers=(1, 0, 1))
    world.serve(up_to(24))
    lose_windows(world)
    tokens = np.array(up_to(24, 50), np.int32)
    namespace, offer = world.offer(tokens)
    evict(world.cache, 0, 1)
    with pytest.raises(NoSpace, match="prefix"):
        world.cache.admit(RequestId(99), namespace, tokens, offer)


def test_a_repair_continues_across_a_flush() -> None:
    world = hybrid(page_size=4, window=7, layers=(1, 0, 1, 1))
    world.serve(up_to(40))
    lose_windows(world)
    job = world.admit(up_to(40, 50))
    world.compute(job, 30)
    world.cache.flush()
    world.audit()
    world.finish(job, 5)
    assert [pool.free for pool in inside(world.cache).pools] == [64, 64]


# ---------------------------------------------------------------- any order of operations


class RepairMachine(CacheMachine):
    """The same operations, with repairs offered and a runner that computes every layer."""

    def begin_with(self, page_size: int, window: int, mix: str, layers: tuple[int, ...], slack: int) -> None:
        kinds = components(mix, window)
        pages = tuple(pages_alone(kind, page_size, CONTEXT, 1) + slack for kind in kinds)
        self.world = World(kinds, pages, page_size, layers=layers, context=CONTEXT)
        self.cache = self.world.cache
        self.seen: list[list[int]] = [[0] * CONTEXT]


def walk(page_size: int, window: int, mix: str, layers: tuple[int, ...], seed: int) -> RepairMachine:
    machine = RepairMachine()
    random = np.random.default_rng([page_size, window, len(layers), seed])
    machine.begin_with(page_size, window, mix, layers, int(random.integers(0, 6)))
    for _ in range(60):
        if random.integers(0, 8) == 0:
            lose_some(machine, random)
        one_operation(machine, random)
        machine.sound()
    return machine


def lose_some(machine: RepairMachine, random: np.random.Generator) -> None:
    """Evicts some window pages that no row reads, as other requests would."""
    cache = machine.cache
    with cache.transaction():
        for component, pool in enumerate(inside(cache).pools):
            if not cache.rules[component].whole(1) and pool.idle:
                evict(cache, component, int(random.integers(0, pool.idle + 1)))


@pytest.mark.parametrize("seeds", [range(1), pytest.param(range(1, 7), marks=pytest.mark.slow)])
@pytest.mark.parametrize(("mix", "layers"), MODELS)
@pytest.mark.parametrize("window", [1, 2, 4, 7])
@pytest.mark.parametrize("page_size", [1, 3, 4, 16])
def test_random_walks_with_repairs_read_and_publish_exact_pages_only(
    page_size: int, window: int, mix: str, layers: tuple[int, ...], seeds: range
) -> None:
    for seed in seeds:
        walk(page_size, window, mix, layers, seed).teardown()


def test_the_random_walks_repair() -> None:
    walks = [
        walk(page_size, window, *model, 7) for page_size in (1, 3) for window in (2, 4) for model in MODELS
    ]
    stats = [machine.cache.stats() for machine in walks]
    assert sum(s.repairs > 0 for s in stats) >= len(stats) / 2, [s.repairs for s in stats]
    assert sum(s.hits > 0 for s in stats) >= len(stats) / 2

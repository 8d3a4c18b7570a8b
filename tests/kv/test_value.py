"""Eviction by value, compared with least recently used, when memory is short."""

import pytest
from tests.kv.world import World

from transom.kv.cache import CacheLayout
from transom.kv.check import evict, inside
from transom.kv.component_specs import Full, Window
from transom.kv.eviction_policy import CachePolicy


def prompt(number: int, length: int = 40) -> list[int]:
    return [1000 * number + place for place in range(1, length + 1)]


def cached_after_a_long_prompt(policy: CachePolicy) -> list[int]:
    """Six prompts of 40 tokens, a long one of 160; then where each of the six begins. Ratio 0.1."""
    world = World((Full(), Window(8)), (1000, 100), 1, context=256, policy=policy)
    for number in range(6):
        world.serve(prompt(number), chunk=16)
    world.serve(prompt(9, 160), chunk=16)
    return [world.offer([*prompt(number), 7])[1].begin.start for number in range(6)]


def test_the_middle_of_a_long_prompt_evicts_the_ends_of_other_prompts_by_lru_and_not_by_value() -> None:
    assert cached_after_a_long_prompt(CachePolicy.LRU) == [0] * 6
    assert cached_after_a_long_prompt(CachePolicy.VALUE) == [40] * 6


def test_the_end_of_a_prompt_stays_a_hit_while_the_answer_grows() -> None:
    world = World((Full(), Window(4)), (200, 24), 1, context=128)
    job = world.admit(prompt(1, 20))
    world.prefill(job)
    for token in range(60):
        job.tokens = __import__("numpy").append(job.tokens, 5000 + token).astype("int32")
        job._digests = job._digests[:0]
        world.compute(job, len(job.tokens))
        world.settle(job)
    world.drop(job)
    assert world.offer([*prompt(1, 20), 7])[1].begin.start == 20
    assert world.offer(prompt(1, 20))[1].begin.start == 19, "a page of slack, for the same prompt again"


def test_the_position_where_a_second_request_branched_becomes_a_boundary() -> None:
    world = World((Full(), Window(4)), (400, 60), 1, context=128)
    system = prompt(1, 20)
    world.serve(system + prompt(2, 20), chunk=8)
    world.serve(system + prompt(3, 20), chunk=8)
    for number in range(4, 12):
        world.serve(prompt(number, 30), chunk=8)
    assert world.offer([*system, 7])[1].begin.start == 20


def test_a_branching_point_stays_one_when_everything_after_it_has_been_evicted() -> None:
    """A later request does not merge the shared part and its own part into one node."""
    world = World((Full(),), (60,), 1, context=64)
    system = prompt(1, 20)
    world.serve(system + prompt(2, 15))
    world.serve(system + prompt(3, 15))
    evict(world.cache, 0, 30)
    assert {len(prefix) for _, prefix in world.resident()[0]} == set(range(1, 21))
    world.serve(system + prompt(4, 15))
    (root,) = inside(world.cache).tree.roots.values()
    (shared,) = root.children
    assert shared.size == 20 and [child.size for child in shared.children] == [15]


def test_pages_used_long_ago_are_evicted_in_the_end_when_all_attention_is_full() -> None:
    world = World((Full(),), (100,), 1, context=64)
    for number in range(2, 8):
        world.serve(prompt(1, 20) + prompt(number, 1))
    for number in range(8, 60):
        world.serve(prompt(number, 40))
    assert world.offer([*prompt(1, 20), 7])[1].begin.start == 0


def test_a_stretch_is_evicted_back_to_the_boundary_before_with_its_window() -> None:
    """Half a stretch has no window at its end, so it would be of no use."""
    world = World((Full(), Window(4)), (50, 50), 1, context=64)
    world.serve(prompt(1, 20) + prompt(2, 10))
    world.serve(prompt(1, 20) + prompt(3, 10))
    world.serve(prompt(4, 30)[:25])
    stats = world.cache.stats().components
    assert stats[0].evicted % 10 == 0 and stats[0].evicted > 0
    assert world.offer([*prompt(1, 20), 7])[1].begin.start == 20


@pytest.mark.parametrize("policy", list(CachePolicy))
def test_every_policy_serves_under_pressure(policy: CachePolicy) -> None:
    world = World((Full(), Window(4)), (60, 20), 1, context=64, policy=policy)
    for number in range(12):
        world.serve(prompt(number % 5, 20), chunk=8)
    world.audit()
    assert all(component.evicted for component in world.cache.stats().components)


def test_the_layout_names_the_policy() -> None:
    assert CacheLayout((Full(),), (8,), 1, 1, 8).policy is CachePolicy.VALUE

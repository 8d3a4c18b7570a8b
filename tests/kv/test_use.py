"""Which reads count as a use of cached pages."""

from tests.kv.world import World, components

from transom.kv.check import evict
from transom.kv.eviction_policy import CachePolicy


def test_publishing_more_pages_uses_the_pages_published_before() -> None:
    """The leaf of a request that goes on is younger than that of one which came later and ended."""
    world = World(components("F", 1), (8,), 1, policy=CachePolicy.LRU)
    first = world.admit([1, 1])
    world.compute(first, 1)
    world.settle(first)
    world.serve([2])
    world.compute(first, 2)
    world.settle(first)
    world.drop(first)
    evict(world.cache, 0, 1)
    assert {prefix for _, prefix in world.resident()[0]} == {(1,), (1, 1)}


def test_a_hit_uses_only_the_pages_that_it_reads() -> None:
    """A window lies in the last node of the path: the one before is as old as it was."""
    world = World(components("W", 2), (20,), 1, policy=CachePolicy.LRU)
    for prompt in ([1, 1, 1, 1, 3], [1, 1, 1, 1, 2, 2, 2, 2], [9, 9], [1, 1, 1, 1, 2, 2, 2, 2, 5]):
        world.serve(prompt)
    before = world.resident()[0]
    for _ in range(2):
        evict(world.cache, 0, 1)
    assert {prefix for _, prefix in before - world.resident()[0]} == {(1,), (1, 1, 1, 1, 3)}

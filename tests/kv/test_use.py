"""What counts as a use of cached pages."""

from tests.kv.world import World, components

from transom.kv.order import CachePolicy
from transom.kv.reclaim import reclaim


def test_who_publishes_more_has_used_what_it_published_before() -> None:
    """The leaf of a request that goes on is younger than that of one which came later and ended."""
    world = World(components("F", 1), (8,), 1, policy=CachePolicy.LRU)
    first = world.admit([1, 1])
    world.compute(first, 1)
    world.settle(first)
    world.serve([2])
    world.compute(first, 2)
    world.settle(first)
    world.drop(first)
    with world.cache.transaction():
        reclaim(world.cache.tree, 0, 1)
    assert {prefix for _, prefix in world.resident()[0]} == {(1,), (1, 1)}

"""RadixTree's structure: paths, splits, growth, trimming."""

import numpy as np
import pytest
from tests.kv.world import World, components

from transom.kv.check import inside
from transom.kv.component_specs import Full
from transom.kv.holding import Namespace
from transom.kv.node import shared_tokens

SPACE = Namespace(0, "", None)


def key(*tokens: int) -> bytes:
    return np.array(tokens, dtype=np.int32).tobytes()


def runs(world: World) -> list[tuple[int, ...]]:
    """The keys of all nodes."""
    return sorted(tuple(np.frombuffer(node.key, np.int32).tolist()) for _, _, node in world.nodes())


@pytest.mark.parametrize(
    ("left", "right", "shared"),
    [
        ((1, 2, 3), (1, 2, 3), 3),
        ((1, 2), (1, 2, 3), 2),
        ((1, 258), (1, 2), 1),
        ((), (1,), 0),
        ((7,), (8,), 0),
    ],
)
def test_shared_tokens_counts_whole_tokens(
    left: tuple[int, ...], right: tuple[int, ...], shared: int
) -> None:
    assert shared_tokens(key(*left), key(*right)) == shared == shared_tokens(key(*right), key(*left))


def test_a_divergence_splits_at_the_page_and_moves_no_page() -> None:
    world = World((Full(),), (16,), 2, context=16)
    world.serve([1, 2, 3, 4, 5, 6])
    before = world.resident()[0]
    (node,) = [node for _, _, node in world.nodes()]
    run = node.runs[0]
    world.serve([1, 2, 3, 9, 9, 9])
    assert runs(world) == [(1, 2), (3, 4, 5, 6), (3, 9, 9, 9)]
    assert before <= world.resident()[0]
    assert node.parent is not None and node.parent.runs[0] + node.runs[0] == run


def test_both_parts_of_a_split_keep_the_age_of_the_node() -> None:
    world = World(components("FW", 4), (32, 32), 1, context=16)
    world.serve([1, 2, 3, 4])
    world.serve([9, 9])
    (node,) = [node for _, prefix, node in world.nodes() if prefix == (1, 2, 3, 4)]
    with world.cache.transaction():
        inside(world.cache).tree.split(node, 2)
    upper = node.parent
    assert upper is not None and (upper.start, node.start) == (0, 2)
    for queue in inside(world.cache).tree.queues:
        tallies = queue.tallies
        for column in (tallies.last_used, tallies.uses, tallies.ages):
            assert column[upper.number] == column[node.number]
    world.audit()


def test_a_leaf_that_is_continued_grows_in_place() -> None:
    world = World((Full(),), (16,), 1, context=16)
    job = world.admit([1, 2, 3, 4, 5, 6, 7, 8])
    world.prefill(job, chunk=2)
    assert runs(world) == [(1, 2, 3, 4, 5, 6, 7, 8)]


def test_a_prompt_that_ends_inside_a_node_needs_no_split() -> None:
    world = World((Full(),), (16,), 1, context=16)
    world.serve([1, 2, 3, 4])
    world.serve([1, 2, 3])
    assert runs(world) == [(1, 2, 3, 4)]


def test_a_path_reads_pages_across_nodes() -> None:
    world = World((Full(),), (16,), 1, context=16)
    world.serve([1, 2, 3, 4])
    world.serve([1, 2, 8, 9])
    path = inside(world.cache).tree.walk(SPACE, key(1, 2, 3, 4, 5))
    assert (path.pages, path.starts, path.within) == (4, [0, 2], 2)
    whole = path.read(0, 0, 4).tolist()
    assert len(set(whole)) == 4 and 0 not in whole
    assert [path.read(0, a, b).tolist() for a, b in ((1, 3), (2, 4), (3, 3))] == [whole[1:3], whole[2:4], []]
    assert [path.after(pages)[1] for pages in (0, 1, 2, 3, 4)] == [0, 1, 2, 1, 2]


def test_a_leaf_that_ends_with_a_hole_is_trimmed_and_an_empty_one_removed() -> None:
    world = World(components("W", 4), (16,), 1, context=16)
    world.serve([1, 2, 3, 4, 5, 6])
    (node,) = [node for _, _, node in world.nodes()]
    for index, left in (([4, 5], [(1, 2, 3, 4)]), ([0, 1], [(1, 2, 3, 4)]), ([2, 3], [])):
        with world.cache.transaction():
            inside(world.cache).tree.evict_pages(node, 0, np.array(index))
            inside(world.cache).tree.trim(node)
        assert runs(world) == left
        world.audit()
    assert not inside(world.cache).tree.roots

"""Components kept as snapshots: copied on read, kept at cuts, evicted like other pages."""

from tests.kv.world import World

from transom.kv.check import check, inside
from transom.kv.component_specs import Chunked, Full, State
from transom.kv.pool import TREE


def up_to(end: int, *more: int) -> list[int]:
    return [*range(1, end + 1), *more]


def states(pages: int = 8, every: int = 4, page_size: int = 2) -> World:
    return World((Full(), State(every)), (64, pages), page_size)


def test_a_hit_starts_at_a_snapshot_and_copies_it() -> None:
    world = states()
    world.serve(up_to(11))
    job = world.admit(up_to(11, 50))
    assert job.holding.start == 8
    (copy,) = world.cache.pending_copies()
    assert (copy.component, copy.tokens) == (1, 1)
    assert world.cache.page_tables[1][job.holding.row, 0] == copy.target
    world.finish(job)


def test_spans_stop_where_a_snapshot_can_be_kept() -> None:
    world = World((Full(), State(6)), (64, 8), 4)
    assert [world.cache.stop(0, 5), world.cache.stop(0, 40), world.cache.stop(12, 40)] == [5, 12, 24]


def test_a_request_that_ends_at_a_cut_leaves_its_own_page_instead_of_a_copy() -> None:
    world = states()
    job = world.admit(up_to(9))
    world.compute(job, 8)
    own = int(world.cache.page_tables[1][job.holding.row, 0])
    world.settle(job)
    assert len(world.cache.pending_copies()) == 1
    world.drop(job)
    assert world.cache.pending_copies() == ()
    world.audit()
    assert inside(world.cache).pools[1].owners()[own] == TREE and inside(world.cache).pools[1].tree == 1


def test_a_copy_of_a_snapshot_not_written_yet_reads_the_page_that_takes_its_place() -> None:
    world = states()
    giver = world.admit(up_to(9))
    world.compute(giver, 8)
    world.settle(giver)
    reader = world.admit(up_to(8, 60, 61))
    assert reader.holding.start == 8
    world.drop(giver)
    world.audit()
    world.finish(reader)


def test_a_snapshot_of_a_failed_step_is_not_hit() -> None:
    world = states()
    job = world.admit(up_to(9))
    world.compute(job, 8)
    world.settle(job)
    assert world.offer(up_to(9, 50))[1].begin.start == 8
    world.cache.copies_failed()
    assert world.offer(up_to(9, 50))[1].begin.start == 0
    assert inside(world.cache).pools[1].tree == 0
    check(world.cache)
    world.drop(job)


def test_without_a_page_for_a_snapshot_none_is_kept_and_nothing_fails() -> None:
    world = states(pages=1)
    world.serve(up_to(20))
    assert inside(world.cache).pools[1].free == 1 or inside(world.cache).pools[1].tree == 1
    job = world.admit(up_to(20))
    world.compute(job, 4)
    world.settle(job)
    assert world.cache.pending_copies() == ()
    world.finish(job)


def test_an_old_snapshot_is_evicted_for_a_new_one() -> None:
    world = states(pages=2)
    world.serve(up_to(20))
    assert world.offer(up_to(21))[1].begin.start == 20


def test_a_snapshot_evicted_before_its_copy_is_not_copied() -> None:
    """Two pages: a request's own and its snapshot to come, which goes for the own page of another."""
    world = states(pages=2)
    first = world.admit(up_to(12))
    world.compute(first, 8)
    world.settle(first)
    assert len(world.cache.pending_copies()) == 1 and world.cache.available.alone()[1] == 1
    second = world.admit(range(100, 110))
    assert world.cache.pending_copies() == ()
    world.audit()
    world.compute(second, 4)
    world.compute(first, 12)
    world.finish(second)
    world.finish(first)


def test_a_chunk_reads_nothing_before_its_boundary() -> None:
    """Chunk 8, page 4: at 16 nothing of the chunked component is needed; at 15 its chunk from 8 on."""
    world = World((Full(), Chunked(8)), (64, 8), 4)
    job = world.admit(up_to(20))
    world.prefill(job, chunk=4)
    assert job.holding.kept == (0, 4)
    world.drop(job)
    with world.cache.transaction():
        inside(world.cache).tree.evict_pages(next(iter(world.nodes()))[2], 1, [0, 1, 2, 3])
    assert world.offer(up_to(16, 99))[1].begin.start == 16
    assert world.offer(up_to(15, 99))[1].begin.start == 8


def test_no_hit_ends_inside_a_missing_page_that_a_later_token_reads() -> None:
    """Chunk 6, page 4: position 6 lies in a page that is still read at 8. Without it, no hit ends at 6."""
    world = World((Full(), Chunked(6)), (64, 8), 4)
    world.serve(up_to(12))
    (node,) = [node for _, _, node in world.nodes()]
    with world.cache.transaction():
        inside(world.cache).tree.evict_pages(node, 1, [1])
    assert world.offer(up_to(7, 99))[1].begin.start == 4

"""Report B: recovery of tombstones fills holes. A resident page, locked or not, is never replaced."""

import numpy as np
import pytest
from tests.kv.test_machine import walk
from tests.kv.world import PAGE_SIZES, WINDOWS, Fault, Job, World, components, same

from transom.kv.check import evict, inside
from transom.kv.node import Node

FULL, WINDOW = 0, 1
TOKENS = np.arange(100, 148, dtype=np.int32)

matrix = pytest.mark.parametrize(
    ("page_size", "window"), [(page_size, window) for page_size in PAGE_SIZES for window in WINDOWS]
)


def hybrid(page_size: int, window: int) -> World:
    """A world with one full and one window component, and pages for more than four requests of all tokens."""
    pages = 5 * (len(TOKENS) // page_size + 2)
    return World(components("FW", window), (pages, pages), page_size, context=64)


def tombstone(world: World) -> None:
    """Evicts every window page without references. Full pages stay cached."""
    evict(world.cache, WINDOW, inside(world.cache).pools[WINDOW].idle)
    world.audit()


def only_node(world: World) -> Node:
    (node,) = [node for _, _, node in world.nodes()]
    return node


def row(world: World, job: Job, component: int) -> list[int]:
    return [int(page) for page in world.cache.page_tables[component][job.holding.row]]


@matrix
def test_recovery_of_a_whole_node(page_size: int, window: int) -> None:
    """The recomputed window is complete: every hole is filled, full pages stay, duplicates are freed once."""
    world = hybrid(page_size, window)
    world.serve(TOKENS)
    tombstone(world)
    full = only_node(world).pages[FULL].tolist()
    fresh = world.admit(TOKENS, cold=True)
    world.compute(fresh, len(TOKENS))
    computed = row(world, fresh, WINDOW)[: len(full)]
    free = inside(world.cache).pools[FULL].free
    world.cache.publish(fresh.holding, TOKENS)
    world.audit()
    node = only_node(world)
    assert node.pages[FULL].tolist() == full == row(world, fresh, FULL)[: len(full)]
    assert node.pages[WINDOW].tolist() == computed == row(world, fresh, WINDOW)[: len(full)]
    assert inside(world.cache).pools[FULL].free == free + len(full)
    counted = world.cache.stats().components
    assert (counted[FULL].duplicates_returned, counted[WINDOW].holes_filled) == (len(full), len(full))
    world.drop(fresh)
    assert world.serve(TOKENS) == len(TOKENS) - 1


@matrix
def test_recovery_of_part_of_a_node(page_size: int, window: int) -> None:
    """The drop line (where the kept window begins) lies inside the node.

    Holes after the line are filled; before it the node stays a tombstone. The node is not split.
    """
    world = hybrid(page_size, window)
    world.serve(TOKENS)
    tombstone(world)
    full = only_node(world).pages[FULL].tolist()
    fresh = world.admit(TOKENS, cold=True)
    world.compute(fresh, len(TOKENS) - page_size)
    world.cache.slide(fresh.holding)
    world.compute(fresh, len(TOKENS))
    kept = row(world, fresh, WINDOW)[: len(full)]
    assert kept[0] == 0 and kept[-1] != 0, "the drop line must lie inside the node"
    world.cache.publish(fresh.holding, TOKENS)
    world.audit()
    node = only_node(world)
    assert node.pages[FULL].tolist() == full
    assert node.pages[WINDOW].tolist() == kept
    world.drop(fresh)
    assert world.serve(TOKENS) == len(TOKENS) - 1


def locked(page_size: int, window: int) -> tuple[World, Job, Job]:
    """The report's requests B and C.

    B (the reader) references the full pages of the tombstoned prefix and runs beyond it. C (`fresh`) has
    computed the same tokens again and has not yet published them.
    """
    world = hybrid(page_size, window)
    world.serve(TOKENS)
    reader = world.admit(np.append(TOKENS, np.arange(10, dtype=np.int32)))
    world.compute(reader, len(TOKENS) + 4)
    tombstone(world)
    fresh = world.admit(TOKENS, cold=True)
    world.compute(fresh, len(TOKENS))
    return world, reader, fresh


def require_intact_reader(world: World, reader: Job, fresh: Job) -> None:
    """Requires that B still reads its own contents after C has ended and C's pages have been reused."""
    world.audit()
    world.drop(fresh)
    other = world.admit(TOKENS[::-1])
    world.compute(other, len(TOKENS))
    world.compute(reader, len(reader.tokens))
    for position in range(len(reader.tokens)):
        world.expect(reader, FULL, range(position, position + 1))
    world.audit()


@matrix
def test_locked_full_survives_recovery(page_size: int, window: int) -> None:
    world, reader, fresh = locked(page_size, window)
    before = row(world, reader, FULL)
    world.cache.publish(fresh.holding, TOKENS)
    assert row(world, reader, FULL) == before
    whole = fresh.holding.published
    assert row(world, fresh, FULL)[:whole] == before[:whole]
    require_intact_reader(world, reader, fresh)


@matrix
def test_locked_full_survives_recovery_that_fails_at_any_primitive(page_size: int, window: int) -> None:
    world, reader, fresh = locked(page_size, window)
    before = row(world, reader, FULL)
    faults = 0
    while publish_fails(world, fresh, fuse=faults):
        faults += 1
    assert faults > 5 and fresh.holding.published == len(TOKENS) // page_size
    assert row(world, reader, FULL) == before
    require_intact_reader(world, reader, fresh)


def publish_fails(world: World, job: Job, fuse: int) -> bool:
    """Whether a publication meets the fault placed after `fuse` primitives; then it must change nothing."""
    before = world.snapshot()
    world.set_fuse(fuse)
    try:
        world.cache.publish(job.holding, job.tokens)
    except Fault:
        same(before, world.snapshot())
        world.audit()
        return True
    finally:
        world.set_fuse(None)
    return False


@matrix
def test_pairing_is_injective(page_size: int, window: int) -> None:
    """Each full page pairs with at most one window page, and the reverse.

    The pairs are read from all nodes and rows, independently of the cache's own accounting.
    """
    machine = walk(page_size, window, "FW", seed=7, steps=60)
    pairs: set[tuple[int, int]] = set()
    for _, _, node in machine.world.nodes():
        pairs.update(zip(node.pages[FULL].tolist(), node.pages[WINDOW].tolist(), strict=True))
    for job in machine.running():
        tables = [machine.cache.page_tables[c][job.holding.row] for c in (FULL, WINDOW)]
        pairs.update(zip(tables[FULL].tolist(), tables[WINDOW].tolist(), strict=True))
    whole = [pair for pair in pairs if pair[FULL] and pair[WINDOW]]
    assert whole
    assert len({full for full, _ in whole}) == len(whole) == len({window_page for _, window_page in whole}), (
        whole
    )
    assert all(full for full, window_page in pairs if window_page), "a window page without a full page"
    machine.teardown()


@matrix
def test_publish_never_accepts_what_match_rejects(page_size: int, window: int) -> None:
    """With random holes in the tree, a prompt just published is a hit up to its last whole page."""
    random = np.random.default_rng([page_size, window])
    world = hybrid(page_size, window)
    for _ in range(12):
        tokens = np.concatenate([TOKENS[: random.integers(1, 40)], random.integers(0, 2, 6, dtype=np.int32)])
        job = world.admit(tokens, cold=bool(random.integers(2)))
        while job.holding.computed < len(tokens):
            world.compute(job, min(len(tokens), job.holding.computed + int(random.integers(1, 9))))
            world.settle(job)
            require_hit(world, job)
        world.drop(job)
        evict(world.cache, WINDOW, int(random.integers(inside(world.cache).pools[WINDOW].idle + 1)))


def require_hit(world: World, job: Job) -> None:
    """Requires a hit on the published tokens, and a row that names the pages of the tree."""
    done = job.tokens[: job.holding.computed].tolist()
    namespace, offer = world.offer([*done, 7])
    whole = len(done) - len(done) % world.page_size
    assert offer.begin.start == world.longest_hit(namespace, [*done, 7]) >= whole, (done, offer)
    path = inside(world.cache).tree.walk(namespace, np.array(done, dtype=np.int32).tobytes())
    for component in (FULL, WINDOW):
        ours = inside(world.cache).tables[component].read(job.holding.row, 0, job.holding.published)
        theirs = path.read(component, 0, job.holding.published)
        assert ((ours == theirs) | (ours == 0)).all(), (component, ours, theirs)
    world.audit()

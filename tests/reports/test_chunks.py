"""Report A on the cache, with the report's numbers: row 4 of 8, context 64, prefix 8, prompt 32.

Each test runs with and without prefix caching.
"""

import numpy as np
import pytest
from tests.kv.world import PAGE_SIZES, WINDOWS, Job, World, components

from transom.errors import NoSpace
from transom.kv.cache import PrefixCaching
from transom.kv.check import inside

PROMPT = np.arange(200, 232, dtype=np.int32)
PREFIX, ROW, ROWS, CONTEXT = 8, 4, 8, 64

matrix = pytest.mark.parametrize(
    ("page_size", "window", "caching"),
    [(p, w, caching) for p in PAGE_SIZES for w in WINDOWS for caching in PrefixCaching],
)


def chunked(page_size: int, window: int, caching: PrefixCaching) -> tuple[World, Job]:
    """A world with rows 0 to 3 in use, and the job in row 4 with a prefix of 8 tokens.

    The prefix is cached; without prefix caching it is computed as the first chunk.
    """
    pages = 3 * CONTEXT // page_size + 2
    world = World(
        components("FW", window), (2 * pages, pages), page_size, rows=ROWS, context=CONTEXT, caching=caching
    )
    world.serve([*PROMPT[:PREFIX].tolist(), *range(24)])
    for other in range(ROW):
        world.admit([other], cold=True)
    job = world.admit(PROMPT)
    assert job.holding.start == (PREFIX if caching is PrefixCaching.ON else 0)
    if caching is PrefixCaching.OFF:
        world.compute(job, PREFIX)
        world.settle(job)
    assert (job.holding.row, job.holding.computed) == (ROW, PREFIX)
    return world, job


def use_up_windows(world: World) -> None:
    """The requests in rows 0 to 3 allocate until the window pool is empty."""
    for other in world.jobs[:ROW]:
        while other.holding.allocated < CONTEXT:
            try:
                world.cache.extend(other.holding, other.holding.allocated + 1)
            except NoSpace:
                return


@matrix
def test_deferred_chunk_keeps_its_prefix(page_size: int, window: int, caching: PrefixCaching) -> None:
    """Without pages for the next chunk the prefix stays 8, with the same pages and contents each time."""
    world, job = chunked(page_size, window, caching)
    tables = [rows.table[ROW].tolist() for rows in inside(world.cache).tables]
    use_up_windows(world)
    for _ in range(3):
        with pytest.raises(NoSpace):
            world.cache.extend(job.holding, len(PROMPT))
        world.settle(job)
        assert (job.holding.computed, job.holding.allocated) == (PREFIX, PREFIX)
        assert [rows.table[ROW].tolist() for rows in inside(world.cache).tables] == tables
        world.audit()
    namespace, _ = world.offer(PROMPT)
    assert world.longest_hit(namespace, PROMPT.tolist()) <= PREFIX, (
        "tokens that were never computed are cached"
    )


@matrix
def test_scheduled_chunk_advances(page_size: int, window: int, caching: PrefixCaching) -> None:
    """With enough pages the prefix becomes 32. Exactly the computed tokens can be hit."""
    world, job = chunked(page_size, window, caching)
    world.cache.extend(job.holding, len(PROMPT))
    world.settle(job)
    namespace, _ = world.offer(PROMPT)
    assert world.longest_hit(namespace, PROMPT.tolist()) <= PREFIX, (
        "allocated tokens that were never computed are cached"
    )
    world.run(job, len(PROMPT))
    world.settle(job)
    world.audit()
    assert (job.holding.row, job.holding.computed) == (ROW, len(PROMPT))
    start = world.offer([*PROMPT.tolist(), 1])[1].begin.start
    whole = len(PROMPT) // page_size * page_size
    assert start == (whole if caching is PrefixCaching.ON else 0)
    for other in list(world.jobs):
        world.drop(other)
    world.audit()
    assert world.cache.available.alone() == world.cache.layout.pages

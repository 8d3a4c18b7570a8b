"""Report A on the scheduler: a deferred chunk was cached as if it had been computed.

Source: sgl-project/sglang pull request 24318. The setting is that of the report: row 4 of 8, prefix 8,
prompt 32, context 64, with and without prefix caching; here on every page size and window. The prefix ends at
a page boundary (9 with pages of 3, 16 with pages of 16): inside a page, the next chunk could use the rest of
the page, and would not be deferred for lack of pages.
"""

from collections.abc import Callable

import numpy as np
import pytest
from tests.sched.world import World, minimum

from transom.kv.cache import Holding
from transom.kv.check import check
from transom.kv.component_specs import Full, Window
from transom.kv.layout import PrefixCaching
from transom.sched.request import Idle
from transom.sched.scheduler import Scheduler
from transom.values import IdleReason, RequestId

PROMPT = [(7 * i * i + i) % 43 for i in range(32)]
CONTEXT, ROWS, ROW = 64, 8, 4
PREFIX = {1: 8, 3: 9, 4: 8, 16: 16}

matrix = [
    pytest.mark.parametrize("caching", PrefixCaching),
    pytest.mark.parametrize("window", [1, 2, 4, 7, 16]),
    pytest.mark.parametrize("page", [1, 3, 4, 16]),
]


Test = Callable[[int, int, PrefixCaching], None]


def every_layout(test: Test) -> Test:
    """Runs the test for every page size, window and kind of prefix caching."""
    for mark in matrix:
        test = mark(test)
    return test


def with_prefix_computed(
    page: int, window: int, caching: PrefixCaching
) -> tuple[World, RequestId, list[Holding]]:
    """A world with rows 0 to 3 in use, and a request in row 4 that has computed its prefix.

    Also returns the holdings in rows 0 to 3, which can grow to use up the pools.
    """
    world = World(
        page=page,
        windows=(window,),
        pages=(200, min(60, 3 * -(-CONTEXT // page))),
        rows=ROWS,
        chunk=PREFIX[page],
        context=CONTEXT,
        caching=caching,
    )
    ballast = world.ballast(ROW)
    request = world.submit(PROMPT, 4)
    world.step()
    assert world.runner.steps[-1].spans[0].row == ROW
    assert world.spans(request) == [(0, PREFIX[page])]
    return world, request, ballast


def contents(world: World) -> list[tuple[list[int], list[list[int]]]]:
    """The pages of row 4 and the contents of these pages, by component."""
    rows = [table[ROW].copy() for table in world.cache.page_tables]
    return [(row.tolist(), world.memory.contents.pages(c, row).tolist()) for c, row in enumerate(rows)]


@every_layout
def test_deferred_chunk_keeps_its_prefix(page: int, window: int, caching: PrefixCaching) -> None:
    world, request, ballast = with_prefix_computed(page, window, caching)
    before = contents(world)
    world.swell(ballast)
    for _ in range(10):
        plan = Scheduler.plan(world.scheduler)
        assert world.scheduler.commit(plan) == Idle(IdleReason.NO_ROOM)
        check(world.cache)
        running = world.scheduler._requests.running.find(request)
        assert running is not None
        assert running.holding.computed == running.holding.allocated == PREFIX[page]
        assert contents(world) == before
    world.shrink(ballast)
    world.no_room_expected = world.scheduler.stats().idle[IdleReason.NO_ROOM]
    world.set_chunk(CONTEXT)
    world.step()
    assert world.spans(request)[-1] == (PREFIX[page], 32)
    world.finish()


@every_layout
def test_scheduled_chunk_advances(page: int, window: int, caching: PrefixCaching) -> None:
    world, request, ballast = with_prefix_computed(page, window, caching)
    world.set_chunk(CONTEXT)
    world.step()
    assert world.last_step() == {request: (PREFIX[page], 32)}
    running = world.scheduler._requests.running.find(request)
    assert running is not None
    assert running.holding.computed == 32
    world.shrink(ballast)
    world.finish()


@every_layout
def test_ratio_0_1_under_retraction(page: int, window: int, caching: PrefixCaching) -> None:
    """The window pool has a tenth of the full pool's pages, and chunked prompts arrive faster than it drains.

    Requests are retracted, and every text equals a cold run.
    """
    context, outputs, lengths = CONTEXT, 30, [2, 3, 20, 2, 32, 2, 3, 24, 2, 2, 28, 3]
    # A window of one token in a page of 16 needs one page and never grows, so the full pool has to run short.
    if (page, window) == (16, 1):
        context, outputs, lengths = 256, 200, [2, 3, 20]
    full_least, window_least = minimum((Full(), Window(window)), page, context)
    window_pages = max(2 * window_least, -(-full_least // 10))
    world = World(
        page=page,
        windows=(window,),
        pages=(10 * window_pages, window_pages),
        rows=ROWS,
        chunk=16,
        context=context,
        caching=caching,
        patience=2,
    )
    rng = np.random.default_rng(page * 100 + window)
    for _ in range(8):  # short requests first, so that the scheduler underestimates the next outputs
        world.submit([int(rng.integers(0, 50))], 1)
    world.finish()
    for length in lengths:
        world.submit(rng.integers(0, 50, length).tolist(), outputs)
    for length in (20, 3, 32):  # requests of higher priority arrive late and take the pages that they need
        world.step()
        world.submit(rng.integers(0, 50, length).tolist(), 30, priority=1)
    world.finish()
    assert world.scheduler.stats().retractions > 0

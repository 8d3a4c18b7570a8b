"""Commit is one transaction: a span without pages is left out, a bug undoes all of it."""

from collections.abc import Callable

import pytest
from tests.sched.world import World

from transom.errors import NoSpace
from transom.kv.cache import Holding
from transom.kv.check import check, inside
from transom.kv.component_specs import State
from transom.sched.request import Idle, Step
from transom.sched.scheduler import Scheduler
from transom.values import RequestId


def breaking(world: World, error: Exception, request: RequestId) -> Callable[[Holding, int], None]:
    """An `extend` that fails for one request: a bug after it has allocated, a lack of pages before."""
    extend = world.cache.extend

    def broken(holding: Holding, end: int) -> None:
        if holding.request != request or not isinstance(error, NoSpace):
            extend(holding, end)
        if holding.request == request:
            raise error

    return broken


def world_with_two(page: int = 4) -> tuple[World, RequestId, RequestId]:
    world = World(page=page, windows=(4,), pages=(64, 64), chunk=8)
    world.scheduler = Scheduler(world.cache, world.config)  # type: ignore[assignment]
    return world, world.submit([5] * 4, 8), world.submit([6] * 4, 8)


@pytest.mark.parametrize("steps_before", [0, 1])
def test_a_span_that_finds_no_page_is_left_out_of_the_step_and_its_request_is_untouched(
    steps_before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the first step the span is an admission, later a decode at a page boundary."""
    world, lucky, unlucky = world_with_two()
    for _ in range(steps_before):
        world.step()
    with monkeypatch.context() as patch:
        patch.setattr(world.cache, "extend", breaking(world, NoSpace("full", 1, 0), unlucky))
        before = world.spans(unlucky)
        world.step()
    assert world.last_step().keys() == {lucky}
    assert world.spans(unlucky) == before
    assert world.scheduler.stats().deferred_spans == 1
    assert world.cache.stats().rows_used == 1 + steps_before
    world.finish()


def test_a_step_in_which_no_span_finds_a_page_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(page=4, windows=(4,))
    scheduler = Scheduler(world.cache, world.config)
    request = world.submit([5] * 4, 8)
    scheduler.submit(world.requests[request])
    with monkeypatch.context() as patch:
        patch.setattr(world.cache, "extend", breaking(world, NoSpace("full", 1, 0), request))
        assert isinstance(scheduler.commit(scheduler.plan()), Idle)
    check(world.cache)
    world.require_empty()
    assert isinstance(scheduler.commit(scheduler.plan()), Step)


def test_a_bug_in_commit_leaves_everything_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    world, _, second = world_with_two()
    world.step()
    plan = world.scheduler.plan()
    with monkeypatch.context() as patch:
        patch.setattr(world.cache, "extend", breaking(world, ZeroDivisionError(), second))
        with pytest.raises(ZeroDivisionError):
            world.scheduler.commit(plan)
    check(world.cache)
    assert world.scheduler.plan() == plan
    world.finish()


def test_a_failed_retraction_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(page=1, windows=(), pages=(40,), rows=4, chunk=16, context=40)
    first = world.submit([5] * 8, 24)
    world.submit([6] * 8, 24)
    world.step()
    while not world.scheduler.plan().retract:
        world.step()
    plan = world.scheduler.plan()
    with monkeypatch.context() as patch:
        patch.setattr(world.cache, "extend", breaking(world, ZeroDivisionError(), first))
        with pytest.raises(ZeroDivisionError):
            world.scheduler.commit(plan)
    check(world.cache)
    assert world.scheduler.stats().retractions == 0
    assert world.scheduler.plan() == plan
    world.finish()


def test_the_cache_gets_a_request_s_priority() -> None:
    world = World(page=4, windows=(4,), pages=(64, 64), chunk=8)
    world.submit([5] * 4, 8, priority=3)
    world.step()
    assert [holding.priority for holding in inside(world.cache).holdings if holding] == [3]
    world.finish()


def test_a_failed_step_leaves_no_snapshot_that_was_never_written() -> None:
    """The state after 8 tokens was to be copied before the failed step, so no request may hit that page."""
    world = World(page=4, windows=(4,), more=(State(every=8),), pages=(64, 64, 16), chunk=32)
    world.submit(list(range(20)), 4)
    world.step()
    world.fail_next_step()
    world.step()
    world.submit(list(range(20)), 4)
    world.drain()
    world.require_all_cold()
    world.require_empty()

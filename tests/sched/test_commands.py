"""Commands at any moment: waiting, between chunks, running, while a step is in flight."""

import pytest
from tests.sched.world import World

from transom.sched.commands import Drained, WeightsRefused, WeightsUpdated
from transom.sched.request import Idle, Step
from transom.values import FinishReason, IdleReason, PauseMode, RequestId, UpdateMode
from transom.wire import AbortAll, Drain, Pause, Resume, UpdateWeights
from transom_lab.worlds.scheduler_world import MISSING, UNFIT


def prompt(length: int, seed: int = 0) -> list[int]:
    return [(seed * 37 + i * i + 3 * i) % 41 for i in range(length)]


def busy(requests: int = 3, rows: int = 2) -> tuple[World, list[RequestId]]:
    """A world with a decode, a prompt between two chunks, and a request without a row."""
    world = World(page=4, windows=(4,), pages=(64, 32), rows=rows, chunk=8)
    first = world.submit(prompt(6), 20)
    world.step()
    others = [world.submit(prompt(30, seed), 12) for seed in range(1, requests)]
    world.step()
    world.step()
    assert len(world.texts[first]) == 3 and not any(world.texts[other] for other in others)
    return world, [first, *others]


def launch(world: World) -> Step:
    """Commits a step and leaves it in flight."""
    outcome = world.scheduler.commit(world.scheduler.plan())
    assert isinstance(outcome, Step)
    return outcome


# ---------------------------------------------------------------- abort


def test_all_requests_are_aborted_at_once() -> None:
    world, requests = busy()
    world.send(AbortAll())
    world.drain()
    assert {world.ends[request].reason for request in requests} == {FinishReason.ABORT}
    assert world.scheduler.stats().aborted == 3
    world.require_all_cold()
    world.require_empty()


def test_a_request_aborted_in_flight_ends_at_once_and_frees_its_pages_after_the_step() -> None:
    world, (decoding, prefill, _) = busy()
    step = launch(world)
    used = world.cache.stats().rows_used
    ends = [*world.scheduler.abort(decoding), *world.scheduler.abort(prefill)]
    assert [end.reason for end in ends] == [FinishReason.ABORT] * 2
    assert world.scheduler.abort(decoding) == ()
    assert world.cache.stats().rows_used == used, "the step still writes there"
    events = world.scheduler.apply(step, world.runner.run(step.work))
    assert events == ()
    assert world.cache.stats().rows_used == 0
    for end in ends:
        world.ends[end.request] = end
    world.finish()


def test_a_step_that_fails_after_an_abort_ends_only_the_remaining_requests() -> None:
    world, (decoding, prefill, waiting) = busy()
    step = launch(world)
    (end,) = world.scheduler.abort(decoding)
    failed = world.scheduler.fail(step, "broken")
    assert [(e.request, e.reason) for e in failed] == [(prefill, FinishReason.ERROR)]
    for ended in (end, *failed):
        world.ends[ended.request] = ended
    world.finish()
    assert world.ends[waiting].reason is FinishReason.LENGTH


# ---------------------------------------------------------------- deadlines


def test_requests_in_any_state_end_at_their_deadlines_with_the_tokens_that_they_have() -> None:
    world = World(page=4, windows=(4,), pages=(64, 32), rows=2, chunk=8)
    decoding = world.submit(prompt(6), 20, deadline=5.0)
    world.step()
    prefill = world.submit(prompt(30, 1), 12, deadline=5.5)
    waiting = world.submit(prompt(30, 2), 12, deadline=4.0)
    patient = world.submit(prompt(9, 3), 5, deadline=1e9)
    world.step()
    world.clock = 4.0
    world.step()
    assert set(world.ends) == {waiting}, "a deadline has passed when it is reached"
    world.clock = 6.0
    world.step()
    assert set(world.ends) == {waiting, decoding, prefill}
    assert len(world.texts[decoding]) == 3
    assert {end.reason for end in world.ends.values()} == {FinishReason.DEADLINE}
    assert world.scheduler.stats().expired == 3
    world.finish()
    assert world.ends[patient].reason is FinishReason.LENGTH


def test_a_clock_that_jumps_back_ends_no_request() -> None:
    world = World()
    request = world.submit(prompt(6), 9, deadline=50.0)
    for world.clock in (40.0, -1e9, 49.0, 0.0):
        world.step()
    assert not world.ends
    world.finish()
    assert world.ends[request].reason is FinishReason.LENGTH


# ---------------------------------------------------------------- pause


@pytest.mark.parametrize("mode", [PauseMode.IN_PLACE, PauseMode.RETRACT])
def test_a_pause_stops_steps_and_nothing_else(mode: PauseMode) -> None:
    world, requests = busy()
    before = {request: world.texts[request].copy() for request in requests}
    world.send(Pause(mode))
    late = world.submit(prompt(5, 7), 3, deadline=9.0)
    doomed = world.submit(prompt(5, 8), 3)
    iteration = world.step()
    assert iteration.idle == Idle(IdleReason.PAUSED, until=9.0)
    world.abort(doomed)
    for _ in range(3):
        assert world.step().idle is not None
    assert {request: world.texts[request] for request in requests} == before
    assert world.cache.stats().rows_used == (2 if mode is PauseMode.IN_PLACE else 0)
    world.clock = 9.0
    world.step()
    assert (
        world.ends[late].reason is FinishReason.DEADLINE and world.ends[doomed].reason is FinishReason.ABORT
    )
    assert world.scheduler.stats().idle[IdleReason.PAUSED] == 5
    world.send(Resume())
    world.finish()


def test_a_pause_can_abort_all_requests() -> None:
    world, requests = busy()
    world.send(Pause(PauseMode.ABORT))
    world.step()
    assert {world.ends[request].reason for request in requests} == {FinishReason.ABORT}
    world.require_empty()
    world.send(Resume())
    world.submit(prompt(5), 3)
    world.finish()


# ---------------------------------------------------------------- drain


def test_a_drained_engine_finishes_its_requests_and_refuses_new_ones() -> None:
    world, _ = busy()
    world.send(Drain(7))
    late = world.submit(prompt(4))
    iteration = world.step()
    assert [(r.request, r.error.code) for r in iteration.rejected] == [(late, "shutting_down")]
    assert iteration.done == ()
    del world.requests[late]
    world.finish()
    assert world.iterations[-1].done == (Drained(7),)
    assert sum(bool(iteration.done) for iteration in world.iterations) == 1
    assert {end.reason for end in world.ends.values()} == {FinishReason.LENGTH}


# ---------------------------------------------------------------- weights


def done_in(world: World, iterations: int = 200) -> tuple[list[object], int]:
    """The outcomes of the first iteration that has any, and the number of steps before it."""
    for _ in range(iterations):
        steps = len(world.runner.steps)
        if done := world.step().done:
            return list(done), steps
    raise AssertionError("nothing came of it")


@pytest.mark.parametrize("mode", UpdateMode)
def test_nothing_computed_with_old_weights_is_read_with_new_ones(mode: UpdateMode) -> None:
    world, requests = busy(4)
    world.send(UpdateWeights(3, "new", mode))
    done, steps = done_in(world)
    assert done == [WeightsUpdated(3, 1)]
    assert world.weights.loaded == ["new"] and world.cache.epoch == 1
    world.drain()
    spans = [span for work in world.runner.steps[steps:] for span in work.spans]
    for request in requests:
        mine = [span for span in spans if span.request == request]
        assert not mine or mine[0].start == 0, "cold: no prefix of the old weights is found"
    world.require_all_cold()
    world.require_empty()
    ended = {world.ends[request].reason for request in requests}
    assert ended == {FinishReason.ABORT if mode is UpdateMode.ABORT else FinishReason.LENGTH}


def test_before_a_drained_update_only_requests_that_have_begun_finish_even_if_retracted() -> None:
    world, (decoding, prefill, waiting) = busy()
    world.retract_all()
    world.send(UpdateWeights(1, "new", UpdateMode.DRAIN))
    assert done_in(world)[0] == [WeightsUpdated(1, 1)]
    assert set(world.ends) == {decoding, prefill} and not world.spans(waiting)[1:]
    world.finish()


def test_a_second_update_and_one_that_a_pause_would_block_are_refused() -> None:
    world, _ = busy()
    world.send(UpdateWeights(1, "new", UpdateMode.DRAIN))
    world.step()
    world.send(UpdateWeights(2, "newer", UpdateMode.RETRACT))
    (refused,) = world.step().done
    assert isinstance(refused, WeightsRefused) and refused.error.code == "update_under_way"
    world.drain()
    world.submit(prompt(9), 9)
    world.step()
    world.send(Pause())
    world.send(UpdateWeights(3, "newest", UpdateMode.DRAIN))
    (refused,) = world.step().done
    assert isinstance(refused, WeightsRefused) and refused.error.code == "paused"
    world.send(UpdateWeights(4, "newest", UpdateMode.RETRACT))
    assert world.step().done == (WeightsUpdated(4, 2),)
    world.send(Resume())
    world.finish()


def test_weights_that_do_not_fit_change_nothing_and_weights_that_do_not_load_only_retract() -> None:
    world, requests = busy()
    world.send(UpdateWeights(1, UNFIT, UpdateMode.ABORT))
    world.send(UpdateWeights(2, MISSING, UpdateMode.RETRACT))
    refused = world.step().done
    assert [(r.number, type(r)) for r in refused] == [(1, WeightsRefused), (2, WeightsRefused)]
    assert world.cache.epoch == 0
    world.finish()
    assert {world.ends[request].reason for request in requests} == {FinishReason.LENGTH}


# ---------------------------------------------------------------- counters


def test_time_in_the_queue_is_counted_until_each_admission() -> None:
    world = World(page=4, windows=(4,), pages=(64, 32), rows=1, chunk=8)
    world.submit(prompt(4), 2)
    world.submit(prompt(4, 1), 2)
    for second in range(10):
        world.clock = float(second)
        world.step()
    stats = world.scheduler.stats()
    assert stats.admissions == 2
    assert stats.queue_seconds == 2.0, "the second request waited for the two steps of the first"


def test_a_request_reports_how_long_it_waited_for_its_first_step_or_its_end() -> None:
    world = World(page=4, windows=(4,), pages=(64, 32), rows=1, chunk=8)
    world.clock = 10.0
    first, second, doomed = world.submit(prompt(4), 3), world.submit(prompt(4, 1), 2), world.submit([5], 9)
    world.step()
    world.clock = 12.0
    world.retract_all()
    world.step()
    world.clock = 14.0
    world.abort(doomed)
    world.step()
    world.clock = 15.0
    world.finish()
    assert [world.ends[one].queue_seconds for one in (first, second, doomed)] == [0.0, 5.0, 4.0]

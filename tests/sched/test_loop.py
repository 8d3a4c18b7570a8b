"""One iteration of the loop: commands, failures, results."""

import numpy as np
import pytest
from tests.sched.world import World

from transom.errors import BadRequest
from transom.kv.check import check
from transom.sched.loop import iterate
from transom.sched.scheduler import Scheduler
from transom.steps import StepResult, StepWork
from transom.values import Ended, FinishReason, Request, RequestId, SampledToken, Sampling, TokenSampled
from transom.wire import Submit
from transom_lab.worlds.runner import RunnerFailed


def test_a_broken_step_ends_only_its_own_requests() -> None:
    world = World(page=4, windows=(4,), pages=(64, 64), rows=1)
    broken, fine = world.submit([1, 2, 3], 4), world.submit([4, 5], 4)
    world.fail_next_step()
    iteration = world.step()
    assert isinstance(iteration.failure, RunnerFailed)
    assert iteration.events == (
        Ended(broken, FinishReason.ERROR, world.ends[broken].usage, "RunnerFailed: half way"),
    )
    world.finish()
    assert world.ends[fine].reason is FinishReason.LENGTH
    assert world.scheduler.stats().failed_steps == 1


@pytest.mark.parametrize("steps_before", [0, 1, 2, 5])
def test_the_next_step_finds_no_page_of_a_broken_step(steps_before: int) -> None:
    """The runner overwrote the pages of the step before it failed."""
    world = World(page=4, windows=(4,), pages=(64, 64), chunk=8)
    prompt = [(i * i) % 31 for i in range(20)]
    world.submit(prompt, 8)
    for _ in range(steps_before):
        world.step()
    world.fail_next_step()
    world.step()
    again = world.submit(prompt, 8)
    world.finish()
    assert world.ends[again].reason is FinishReason.LENGTH


def test_a_broken_step_with_a_pending_copy_leaks_nothing() -> None:
    world = World(page=4, windows=(4,), pages=(64, 64), chunk=32)
    prompt = list(range(14))
    world.submit(prompt, 4)
    world.drain()
    world.submit([*prompt[:10], 40], 2)
    world.fail_next_step()
    world.step()
    assert world.runner.steps[-1].copies
    world.finish()


def test_a_result_that_does_not_answer_the_step_is_a_failure_of_the_runner() -> None:
    class Mute:
        def run(self, work: StepWork) -> StepResult:
            return StepResult((None,) * len(work.spans))

    world = World()
    request = Request(RequestId(1), np.array([1, 2], np.int32), 2)
    iteration = iterate(world.scheduler, [Submit(request)], Mute())
    assert isinstance(iteration.failure, ValueError)
    assert [type(event) for event in iteration.events] == [Ended]
    check(world.cache)
    world.require_empty()


def test_tokens_come_before_the_end_they_belong_to() -> None:
    world = World()
    request = world.submit([1, 2, 3], 1)
    events = world.step().events
    assert [type(event) for event in events] == [TokenSampled, Ended]
    assert events[1].request == request


def test_a_stop_token_is_delivered_and_ends_the_request() -> None:
    world = World()
    plain = world.submit([1, 2, 3], 6)
    world.drain()
    stop = world.texts[plain][2]
    request = world.submit([1, 2, 3], 6, stop_ids=frozenset({stop}))
    world.finish()
    assert world.texts[request][-1] == stop
    assert world.ends[request].reason is FinishReason.STOP


def test_only_the_span_that_reaches_the_end_samples() -> None:
    world = World(page=4, windows=(4,), pages=(64, 64), chunk=8)
    sampling = Sampling(temperature=0.5, seed=7)
    world.submit(list(range(20)), 2, sampling=sampling)
    world.finish()
    wanted = [span.sampling for work in world.runner.steps for span in work.spans]
    assert wanted == [None, None, sampling, sampling]


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "param"),
    [([], 1, "prompt"), ([1], -1, "max_tokens"), ([1] * 65, 1, "prompt"), ([1] * 64, 1, "prompt")],
)
def test_a_request_that_can_never_run_is_refused_and_leaves_no_trace(
    prompt: list[int], max_tokens: int, param: str
) -> None:
    world = World(context=64)
    refused = world.submit(prompt, max_tokens) if prompt else None
    if refused is None:
        with pytest.raises(BadRequest) as caught:
            world.scheduler.submit(Request(RequestId(9), np.zeros(0, np.int32), 1))
        error: BadRequest = caught.value
    else:
        error = world.step().rejected[0].error
    assert error.param == param
    assert not world.scheduler.has_work
    assert world.scheduler.stats().requests_finished == 0


def test_an_id_in_use_is_refused_and_the_first_request_continues() -> None:
    world = World()
    request = world.submit([1, 2, 3], 4)
    world.inbox.append(Submit(world.requests[request]))
    assert [r.request for r in world.step().rejected] == [request]
    world.finish()


def test_max_tokens_is_cut_to_the_context() -> None:
    world = World(context=16)
    request = world.submit([1] * 10, 1_000_000)
    world.finish()
    assert len(world.texts[request]) == 6
    assert world.ends[request].reason is FinishReason.LENGTH


@pytest.mark.parametrize("length", [1, 15, 63])
@pytest.mark.parametrize("max_tokens", [0, 1])
def test_the_shortest_outputs(length: int, max_tokens: int) -> None:
    world = World(context=64)
    request = world.submit([3] * length, max_tokens)
    world.finish()
    assert len(world.texts[request]) == max_tokens
    assert world.spans(request)[-1][1] == length


def test_an_output_longer_than_its_first_buffer_is_whole() -> None:
    world = World(page=16, windows=(4,), context=700, chunk=64)
    request = world.submit([5, 6], 690)
    world.finish()
    assert len(world.texts[request]) == 690


def test_tokens_handed_to_the_runner_do_not_change_afterwards() -> None:
    world = World(page=16, windows=(4,), context=600)
    world.submit(list(range(40)), 500)
    world.step()
    span = world.runner.steps[0].spans[0]
    before = span.tokens.tolist()
    world.finish()
    assert span.tokens.tolist() == before


def test_unfinished_lists_the_requests_that_have_not_ended() -> None:
    world = World(rows=1)
    first, second = world.submit([1, 2], 3), world.submit([3], 1)
    world.step()
    assert world.scheduler.unfinished() == (first, second)
    for request in world.scheduler.unfinished():
        world.abort(request)
    world.finish()
    assert world.scheduler.unfinished() == ()


def test_counters_add_up() -> None:
    world = World(page=4, windows=(4,), pages=(64, 64), chunk=16)
    world.submit([1] * 10, 5)
    world.drain()
    world.submit([1] * 10, 5)
    world.finish()
    stats = world.scheduler.stats()
    assert (stats.requests_finished, stats.running, stats.waiting) == (2, 0, 0)
    assert (stats.prompt_tokens, stats.cached_tokens, stats.generated_tokens) == (20, 9, 10)
    assert stats.computed_tokens == 2 * 14 - 9
    assert stats.steps == len(world.runner.steps)


def test_a_step_is_computed_once_only() -> None:
    """A step cannot be applied twice: its spans no longer start at the end of the computed tokens."""
    world = World()
    world.submit([1, 2, 3], 4)
    world.step()
    scheduler: Scheduler = world.scheduler
    step = scheduler.commit(scheduler.plan())
    result = StepResult((SampledToken(1, 0.0),))
    scheduler.apply(step, result)  # type: ignore[arg-type]
    with pytest.raises(AssertionError):
        scheduler.apply(step, result)  # type: ignore[arg-type]

"""Several outputs of one prompt: computed once and forked, with each output that of a request alone."""

import pytest
from tests.sched.world import World

from transom.errors import BadRequest
from transom.kv.component_specs import Chunked, State
from transom.kv.layout import PrefixCaching
from transom.values import FinishReason, RequestId


def prompt(length: int, seed: int = 0) -> list[int]:
    return [(seed * 37 + i * i + 3 * i) % 41 for i in range(length)]


def output_ids(first: RequestId, count: int) -> list[RequestId]:
    return [RequestId(first + number) for number in range(count)]


@pytest.mark.parametrize("caching", PrefixCaching)
@pytest.mark.parametrize("length", [1, 7, 8, 21])
def test_the_prompt_is_computed_once_and_only_its_last_page_is_copied(
    length: int, caching: PrefixCaching
) -> None:
    world = World(page=4, windows=(4,), pages=(64, 64), chunk=16, caching=caching)
    first = world.submit(prompt(length), 9, siblings=3)
    world.finish()
    others = output_ids(first, 4)[1:]
    assert {world.spans(other)[0] for other in others} == {(length, length + 1)}
    copies = [copy for work in world.runner.steps for copy in work.copies]
    assert len(copies) == (3 * 2 if length % 4 else 0)
    stats = world.scheduler.stats()
    assert (stats.forks, stats.forks_put_off, stats.prompt_tokens) == (3, 0, length)
    assert stats.computed_tokens == length + 4 * 8


@pytest.mark.parametrize("more", [(State(every=8),), (Chunked(8),)])
def test_states_and_chunks_fork_too(more: tuple[State | Chunked, ...]) -> None:
    world = World(page=4, windows=(4,), more=more, pages=(64, 64, 32), chunk=16)
    world.submit(prompt(13), 9, siblings=2)
    world.finish()
    assert world.scheduler.stats().forks == 2


def test_siblings_without_a_row_wait_with_their_first_token_and_hit_the_prompt_later() -> None:
    world = World(page=4, windows=(4,), pages=(64, 64), rows=2, chunk=16)
    first = world.submit(prompt(12), 6, siblings=3)
    world.step()
    assert [len(world.texts[one]) for one in output_ids(first, 4)] == [1, 1, 1, 1]
    world.finish()
    stats = world.scheduler.stats()
    assert (stats.forks, stats.forks_put_off) == (1, 2)
    assert world.spans(output_ids(first, 4)[3])[0] == (12, 13), "a hit of the whole prompt"


def test_siblings_without_a_page_wait_and_everything_is_cold() -> None:
    world = World(page=4, windows=(4,), pages=(8, 8), rows=8, chunk=16, context=24)
    world.submit(prompt(13), 9, siblings=7)
    world.finish()
    assert world.scheduler.stats().forks_put_off > 0


def test_outputs_that_end_with_their_first_token_are_never_forked() -> None:
    world = World(page=4, windows=(4,), pages=(64, 64))
    first = world.submit(prompt(6), 1, siblings=3)
    world.finish()
    assert world.scheduler.stats().forks == 0
    assert {world.ends[one].reason for one in output_ids(first, 4)} == {FinishReason.LENGTH}


def test_the_first_output_may_end_at_once_while_its_siblings_continue() -> None:
    world = World(page=4, windows=(4,), pages=(64, 64))
    probe = world.submit(prompt(6), 1)
    world.finish()
    stop = frozenset(world.texts[probe])
    first = world.submit(prompt(6), 9, siblings=2, stop_ids=stop)
    world.finish()
    assert world.ends[first].reason is FinishReason.STOP
    assert len(world.texts[RequestId(first + 1)]) > 1


@pytest.mark.parametrize("steps_before", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("victim", [0, 1, 2])
def test_after_an_abort_of_any_output_its_siblings_continue(victim: int, steps_before: int) -> None:
    world = World(page=4, windows=(4,), pages=(64, 64), chunk=8)
    first = world.submit(prompt(20), 6, siblings=2)
    for _ in range(steps_before):
        world.step()
    world.abort(RequestId(first + victim))
    world.finish()
    reasons = [world.ends[one].reason for one in output_ids(first, 3)]
    assert reasons.count(FinishReason.LENGTH) == 2
    assert reasons[victim] is FinishReason.ABORT


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_an_abort_in_flight_ends_only_one_output(victim: int) -> None:
    world = World(page=4, windows=(4,), pages=(64, 64), chunk=32)
    first = world.submit(prompt(20), 6, siblings=2)
    commands, world.inbox = world.inbox, []
    for command in commands:
        world.scheduler.submit(command.request)  # type: ignore[union-attr]
    step = world.scheduler.commit(world.scheduler.plan())
    (end,) = world.scheduler.abort(RequestId(first + victim))
    for event in world.scheduler.apply(step, world.runner.run(step.work)):  # type: ignore[union-attr, arg-type]
        world.record(event)
    world.record(end)
    world.finish()


def test_a_retraction_during_the_prompt_keeps_the_siblings_together() -> None:
    world = World(page=4, windows=(4,), pages=(64, 64), chunk=8)
    first = world.submit(prompt(20), 6, siblings=2)
    world.step()
    world.retract_all()
    world.finish()
    assert world.scheduler.stats().forks == 2
    assert {world.ends[one].usage.cached_tokens for one in output_ids(first, 3)} == {0}


def test_a_failed_step_ends_the_output_that_it_computes_and_all_its_siblings() -> None:
    world = World(page=4, windows=(4,), pages=(64, 64), chunk=32)
    first = world.submit(prompt(20), 6, siblings=2)
    world.fail_next_step()
    world.drain()
    assert {world.ends[one].reason for one in output_ids(first, 3)} == {FinishReason.ERROR}
    world.submit(prompt(20), 6, siblings=2)
    world.finish()


@pytest.mark.parametrize("more", [(), (State(every=8),)])
def test_a_step_that_fails_before_the_copies_of_forks_ran_ends_the_forks(
    more: tuple[State, ...],
) -> None:
    world = World(page=4, windows=(4,), more=more, pages=(64, 64, 16)[: 2 + len(more)], chunk=32)
    world.submit(prompt(18), 9, siblings=2)
    while world.scheduler.stats().forks < 2:
        world.step()
    world.set_chunk(1)
    world.fail_next_step()
    world.step()
    world.set_chunk(32)
    world.drain()
    assert [end.reason for end in world.ends.values()] == [FinishReason.ERROR] * 3
    world.submit(prompt(18), 9)
    world.drain()
    world.require_all_cold()


def test_several_outputs_of_no_tokens_are_all_refused() -> None:
    world = World()
    first = world.submit(prompt(4), 0, siblings=2)
    rejected = world.step().rejected
    assert [r.request for r in rejected] == output_ids(first, 3)
    assert all(isinstance(r.error, BadRequest) and r.error.param == "n" for r in rejected)

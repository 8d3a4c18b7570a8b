"""Scheduler faults of other engines, S-01 to S-19 of docs/faults.md."""

from itertools import pairwise

import numpy as np
import pytest
from tests.sched.world import World

from transom.errors import ConfigError, RequestTooLarge
from transom.kv.cache import HybridCache
from transom.kv.check import check
from transom.kv.component_specs import Full, Window
from transom.kv.layout import CacheLayout, PrefixCaching
from transom.sched.config import SchedulerConfig
from transom.sched.request import Idle, Span, Step
from transom.sched.scheduler import Scheduler
from transom.steps import SpanWork, StepWork
from transom.values import FinishReason, IdleReason, RequestId, Usage

CACHING = pytest.mark.parametrize("caching", PrefixCaching)


def prompt(length: int, seed: int = 0) -> list[int]:
    return [(seed * 37 + i * i + 3 * i) % 41 for i in range(length)]


def launch(world: World) -> Step:
    """Plans and commits a step, and leaves it in flight."""
    outcome = world.scheduler.commit(world.scheduler.plan())
    assert isinstance(outcome, Step)
    return outcome


def computed(world: World, request: RequestId) -> int:
    return max(end for _, end in world.spans(request))


@CACHING
def test_s_01_ten_deferrals_change_nothing(caching: PrefixCaching) -> None:
    world = World(page=1, windows=(4,), pages=(80, 20), chunk=8, caching=caching)
    ballast = world.ballast(2)
    request = world.submit(prompt(32))
    world.step()
    world.swell(ballast)
    for _ in range(10):
        assert world.scheduler.commit(Scheduler.plan(world.scheduler)) == Idle(IdleReason.NO_ROOM)
        check(world.cache)
    world.shrink(ballast)
    world.no_room_expected = 10
    world.step()
    assert world.spans(request) == [(0, 8), (8, 16)]
    world.finish()


def test_s_02_no_step_and_no_span_is_empty() -> None:
    """The types ensure it; here under pressure that leaves a lone request one page at a time."""
    world = World(page=1, windows=(4,), chunk=16, context=32)
    for seed in range(4):
        world.submit(prompt(20, seed), 8)
    world.finish()
    assert all(len(s.tokens) > 0 for work in world.runner.steps for s in work.spans)


def test_s_02_a_step_without_spans_and_a_span_without_tokens_cannot_be_built() -> None:
    with pytest.raises(AssertionError):
        StepWork((), ())
    with pytest.raises(AssertionError):
        StepWork((SpanWork(RequestId(1), 0, 0, np.empty(0, np.int32), None),), ())
    with pytest.raises(AssertionError):
        Span(3, 3)


def test_s_03_a_chunk_without_pages_waits_until_a_running_request_ends() -> None:
    """All 32 pages are in use when the next chunk is due: the request waits, or resumes from a hit."""
    world = World(page=1, windows=(), pages=(32,), chunk=4, context=32, rows=2)
    first = world.submit(prompt(8), 20, priority=1)
    second = world.submit(prompt(19, 1), 2)
    waited = 0
    while first not in world.ends:
        world.step()
        at = computed(world, second) if world.spans(second) else 0
        waited += at < 19 and second not in world.last_step() and world.cache.stats().rows_used == 2
    world.finish()
    assert waited or world.scheduler.stats().retractions
    assert world.scheduler.stats().failed_steps == 0
    assert all(start <= end for (_, end), (start, _) in pairwise(world.spans(second)))


def test_s_04_the_last_request_always_gets_its_page() -> None:
    """A context that does not fit alone is refused at start. One that fits never starves."""
    layout = CacheLayout((Full(), Window(4)), pages=(8, 2), page_size=4, rows=2, context=64)
    cache = HybridCache(layout)
    with pytest.raises(
        ConfigError, match=f"64 tokens does not fit in the cache; {cache.longest_alone(1)} do"
    ):
        Scheduler(cache, SchedulerConfig(max_running=2, chunk_tokens=8, context=64))
    world = World(page=4, windows=(4,), context=32)
    world.submit(prompt(5), 27)
    world.finish()
    world.submit(prompt(4, 3), 4)
    world.finish()


def test_s_05_a_prompt_that_can_never_fit_is_refused_with_numbers_and_blocks_no_other() -> None:
    world = World(page=4, windows=(4,), context=32)
    too_long, fine = world.submit(prompt(40)), world.submit(prompt(4))
    rejected = world.step().rejected
    assert [r.request for r in rejected] == [too_long]
    assert isinstance(rejected[0].error, RequestTooLarge)
    assert "40 tokens" in rejected[0].error.message and "32 tokens" in rejected[0].error.message
    world.drain()
    world.require_cold(fine)
    world.require_empty()


def test_s_05_a_window_that_can_never_fit_is_refused_before_anything_runs() -> None:
    with pytest.raises(ConfigError, match="window"):
        HybridCache(CacheLayout((Full(), Window(16)), pages=(16, 2), page_size=4, rows=2, context=64))


def test_s_06_output_beyond_the_context_ends_with_length_and_nothing_is_computed_twice() -> None:
    world = World(page=4, windows=(4,), context=32)
    request = world.submit(prompt(28), 10)
    world.finish()
    assert len(world.texts[request]) == 4
    assert world.ends[request].reason is FinishReason.LENGTH
    stats = world.scheduler.stats()
    assert (stats.recomputed_tokens, stats.admissions) == (0, 1)


def test_s_07_the_queue_moves_when_a_row_is_free() -> None:
    world = World(page=4, windows=(4,), pages=(64, 64), rows=2, chunk=64)
    first = [world.submit(prompt(6, seed), 0) for seed in range(3)]
    world.step()
    assert set(world.last_step()) == set(first[:2])
    world.step()
    assert set(world.last_step()) == {first[2]}


def test_s_07_four_chunked_prompts_run_side_by_side() -> None:
    world = World(page=4, windows=(4,), pages=(64, 64), rows=4, chunk=20, outputs_expected=8)
    requests = [world.submit(prompt(10, seed), 20) for seed in range(4)]
    for _ in range(4):
        world.step()
    assert set(world.last_step()) == set(requests)


@CACHING
@pytest.mark.parametrize("steps_before", [0, 1, 2, 3, 4])
def test_s_08_an_abort_between_chunks_ends_the_request_once_and_leaves_nothing(
    steps_before: int, caching: PrefixCaching
) -> None:
    world = World(page=4, windows=(4,), chunk=8, caching=caching)
    request = world.submit(prompt(24), 6)
    for _ in range(steps_before):
        world.step()
    world.abort(request)
    spans = world.spans(request)
    world.drain()
    assert world.ends[request].reason is FinishReason.ABORT
    assert world.spans(request) == spans
    world.require_all_cold()
    world.require_empty()


@pytest.mark.parametrize("steps_before", [0, 1, 2])
def test_s_08_no_request_survives_an_abort_of_all_while_a_chunk_is_computed(steps_before: int) -> None:
    world = World(page=4, windows=(4,), chunk=8)
    request, other = world.submit(prompt(24), 6), world.submit(prompt(20, 1), 6)
    world.step()
    for _ in range(steps_before):
        world.step()
    step = launch(world)
    for end in world.scheduler.abort_all():
        world.ends[end.request] = end
    assert world.scheduler.apply(step, world.runner.run(step.work)) == ()
    spans = len(world.spans(request)) + len(world.spans(other))
    world.finish()
    assert len(world.spans(request)) + len(world.spans(other)) == spans
    assert {end.reason for end in world.ends.values()} == {FinishReason.ABORT}


def test_s_09_an_abort_while_the_last_chunk_is_computed_streams_no_token() -> None:
    world = World(page=4, windows=(4,), pages=(64, 64), chunk=8)
    request = world.submit(prompt(16), 6)
    world.step()
    step = launch(world)
    (span,) = step.work.spans
    assert span.end == 16 and span.sampling is not None
    (world.ends[request],) = world.scheduler.abort(request)
    assert world.scheduler.apply(step, world.runner.run(step.work)) == ()
    assert world.ends[request].usage.completion_tokens == 0 == len(world.texts[request])
    world.finish()


def test_s_09_an_abort_of_an_ended_or_unknown_request_is_ignored() -> None:
    world = World()
    request = world.submit(prompt(4), 1)
    world.drain()
    world.abort(request)
    world.abort(RequestId(77))
    world.finish()


def test_s_10_a_stream_continues_after_a_retraction_with_the_next_token() -> None:
    """`World.record` checks each token and its log-probability.

    A request cannot be retracted before the result of its prefill: no plan is made while a step is in flight.
    """
    world = World(page=4, windows=(4,), pages=(64, 64), chunk=16)
    request = world.submit(prompt(10), 12)
    for outputs in (1, 5, 6):
        while len(world.texts[request]) < outputs:
            world.step()
        before = world.texts[request].copy()
        world.retract_all()
        world.step()
        assert world.texts[request][:-1] == before
    world.finish()
    assert len(world.texts[request]) == 12


@pytest.mark.parametrize("cached", [0, 8])
def test_s_11_usage_after_a_retraction_is_that_of_the_first_admission(cached: int) -> None:
    world = World(page=4, windows=(4,), pages=(64, 64), chunk=16)
    if cached:
        world.submit(prompt(cached), 0)
        world.drain()
    request = world.submit(prompt(10), 12)
    while len(world.texts[request]) < 6:
        world.step()
    world.retract_all()
    world.finish()
    assert world.ends[request].usage == Usage(10, 12, cached)
    assert world.scheduler.stats().cached_tokens == cached


def test_s_12_a_resumed_request_is_computed_in_chunks_and_samples_only_at_its_end() -> None:
    world = World(page=4, windows=(4,), pages=(64, 16), chunk=8, caching=PrefixCaching.OFF)
    request = world.submit(prompt(10), 12)
    while len(world.texts[request]) < 6:
        world.step()
    world.retract_all()
    before = len(world.spans(request))
    world.finish()
    assert world.spans(request)[before : before + 3] == [(0, 8), (8, 16), (16, 17)]
    assert world.scheduler.stats().recomputed_tokens == 15


def test_s_13_every_span_starts_where_the_last_one_ended() -> None:
    world = World(page=4, windows=(4,), pages=(16, 8), chunk=8)
    requests = [world.submit(prompt(12, seed % 2), 9) for seed in range(5)]
    world.finish()
    for request in requests:
        for (_, end), (start, _) in zip(world.spans(request), world.spans(request)[1:], strict=False):
            assert start <= end


def test_s_13_the_rest_of_a_prompt_is_planned_after_the_match() -> None:
    world = World(page=4, windows=(4,), pages=(16, 16), chunk=16)
    request = world.submit(prompt(8), 9)
    while len(world.texts[request]) < 3:
        world.step()
    world.retract_all()
    world.step()
    assert world.spans(request)[-1] == (8, 11), "8 of 11 tokens hit, the rest is computed"
    world.finish()


def test_s_14_two_long_requests_do_not_retract_each_other_in_turn() -> None:
    world = World(page=1, windows=(), pages=(48,), chunk=16, context=48)
    requests = [world.submit(prompt(16, seed), 30) for seed in range(2)]
    world.finish()
    stats = world.scheduler.stats()
    assert stats.retractions <= 3
    assert stats.computed_tokens <= 3 * sum(16 + 29 for _ in requests)


def test_s_15_a_victim_is_not_in_the_step_that_retracts_it() -> None:
    world = World(page=1, windows=(4,), pages=(40, 40), chunk=16, context=32)
    for seed, priority in ((0, 0), (1, 1), (2, 2)):
        world.submit(prompt(8, seed), 20, priority=priority)
    world.step()
    retractions = 0
    while world.scheduler.has_work:
        victims = {victim.progress.id for victim in world.scheduler.plan().retract}
        retractions += len(victims)
        world.step()
        assert victims.isdisjoint(world.last_step())
    assert retractions > 0
    world.finish()


def test_s_16_a_chunked_request_does_not_block_itself() -> None:
    world = World(page=4, windows=(4,), pages=(16, 4), rows=1, chunk=8)
    request = world.submit(prompt(20), 1)
    world.finish()
    assert world.spans(request) == [(0, 8), (8, 16), (16, 20)]


@pytest.mark.parametrize("page", [1, 4, 16])
def test_s_17_lengths_at_the_limit(page: int) -> None:
    world = World(page=page, windows=(4,), context=16)
    fits = world.submit(prompt(15), 1)
    no_place = world.submit(prompt(16), 1)
    prefill_only = world.submit(prompt(16, 1), 0)
    too_long = world.submit(prompt(17), 0)
    rejected = world.step().rejected
    assert [r.request for r in rejected] == [no_place, too_long]
    assert all(isinstance(r.error, RequestTooLarge) for r in rejected)
    world.drain()
    world.require_cold(fits)
    world.require_cold(prefill_only)
    assert world.texts[prefill_only] == []
    assert world.ends[prefill_only].reason is FinishReason.LENGTH
    world.require_empty()


def test_s_18_chunks_return_to_page_boundaries() -> None:
    world = World(page=4, windows=(4,), pages=(64, 64), chunk=10)
    world.submit(prompt(4, 1), 3)
    world.step()
    request = world.submit(prompt(30), 1)
    world.finish()
    ends = [end for _, end in world.spans(request)]
    assert ends[-1] == 30
    assert all(end % 4 == 0 for end in ends[:-1])


def test_s_19_a_window_page_is_kept_until_the_step_that_reads_it_has_ended() -> None:
    """Position 158 reads keys from 31 on, so page 0 is kept while it is computed."""
    world = World(page=32, windows=(128,), pages=(8, 8), chunk=256, context=256)
    request = world.submit(prompt(150), 60)
    world.step()
    for at in range(150, 180):
        step = launch(world)
        assert [(span.start, span.end) for span in step.work.spans] == [(at, at + 1)]
        table = world.cache.page_tables[1][step.work.spans[0].row].copy()
        assert table[(at - 127) // 32 : at // 32 + 1].all()
        free = world.cache.stats().components[1].free
        result = world.runner.run(step.work)
        assert world.cache.stats().components[1].free == free
        for event in world.scheduler.apply(step, result):
            world.record(event)
        gone = int(world.cache.page_tables[1][step.work.spans[0].row][0] == 0)
        assert gone == (at + 1 >= 160), "counted after the step: 160 tokens read back to 33"
    world.finish()
    assert world.ends[request].usage.completion_tokens == 60


def test_s_19_the_window_is_cut_from_the_start_of_the_chunk_in_flight() -> None:
    world = World(page=32, windows=(128,), pages=(200, 200), chunk=4096, context=5700)
    world.submit(prompt(5632), 1)
    world.step()
    step = launch(world)
    (span,) = step.work.spans
    assert (span.start, span.end) == (4096, 5632), "the chunk has 1536 tokens, not 4096"
    table = world.cache.page_tables[1][span.row]
    assert int(np.flatnonzero(table)[0]) == (4096 - 127) // 32
    for event in world.scheduler.apply(step, world.runner.run(step.work)):
        world.record(event)
    world.finish()

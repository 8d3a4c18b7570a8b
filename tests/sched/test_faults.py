"""Sequences of other engines' fault reports, S-01 to S-18, played on the scheduler."""

import pytest
from tests.sched.world import World

from transom.errors import ConfigError, RequestTooLarge
from transom.kv.cache import HybridCache
from transom.kv.layout import CacheLayout, PrefixCaching
from transom.sched.limits import Limits
from transom.sched.scheduler import Scheduler
from transom.sched.states import Idle, IdleReason
from transom.values import FinishReason, Full, RequestId, Window

CACHING = pytest.mark.parametrize("caching", PrefixCaching)


def prompt(length: int, seed: int = 0) -> list[int]:
    return [(seed * 37 + i * i + 3 * i) % 41 for i in range(length)]


def computed(world: World, request: RequestId) -> int:
    return max(end for _, end in world.spans(request))


@CACHING
def test_s01_ten_deferrals_change_nothing(caching: PrefixCaching) -> None:
    world = World(page=1, windows=(4,), pages=(80, 20), chunk=8, caching=caching)
    ballast = world.ballast(2)
    request = world.submit(prompt(32))
    world.step()
    world.swell(ballast)
    for _ in range(10):
        assert world.scheduler.commit(Scheduler.plan(world.scheduler)) == Idle(IdleReason.NO_ROOM)
        world.cache.check()
    world.shrink(ballast)
    world.scheduler._counters.idle[IdleReason.NO_ROOM] = 0
    world.step()
    assert world.spans(request) == [(0, 8), (8, 16)]
    world.finish()


def test_s02_no_step_is_empty_and_no_span_is() -> None:
    """The types say it; here under pressure that leaves a lone request with one page at a time."""
    world = World(page=1, windows=(4,), chunk=16, context=32)
    for seed in range(4):
        world.submit(prompt(20, seed), 8)
    world.finish()
    assert all(len(s.tokens) > 0 for work in world.runner.steps for s in work.spans)


def test_s03_a_chunk_without_room_is_parked_and_goes_on_when_a_runner_ends() -> None:
    world = World(page=1, windows=(), pages=(32,), chunk=8, context=32)
    runner = world.submit(prompt(8), 12)
    world.step()
    parked = world.submit(prompt(20, 1), 2)
    world.drain()
    world.require_all_cold()
    assert world.scheduler.stats().failed_steps == 0
    assert {runner, parked} == set(world.ends)


def test_s04_the_last_request_always_gets_its_page() -> None:
    """A context that does not fit alone is refused before anything runs; one that does never starves."""
    layout = CacheLayout((Full(), Window(4)), pages=(8, 2), page_size=4, rows=2, context=64)
    cache = HybridCache(layout)
    with pytest.raises(
        ConfigError, match=f"64 tokens does not fit in the cache; {cache.longest_alone(1)} do"
    ):
        Scheduler(cache, Limits(max_running=2, chunk_tokens=8, context=64))
    world = World(page=4, windows=(4,), context=32)
    world.submit(prompt(5), 27)
    world.finish()
    world.submit(prompt(4, 3), 4)
    world.finish()


def test_s05_a_prompt_that_can_never_fit_is_refused_with_the_numbers_and_blocks_nobody() -> None:
    world = World(page=4, windows=(4,), context=32)
    too_long, fine = world.submit(prompt(40)), world.submit(prompt(4))
    rejected = world.step().rejected
    assert [r.request for r in rejected] == [too_long]
    assert isinstance(rejected[0].error, RequestTooLarge)
    assert "40 tokens" in rejected[0].error.message and "32 tokens" in rejected[0].error.message
    world.drain()
    world.require_cold(fine)
    world.require_empty()


def test_s06_output_beyond_the_context_ends_with_length_and_nothing_is_computed_twice() -> None:
    world = World(page=4, windows=(4,), context=32)
    request = world.submit(prompt(28), 10)
    world.finish()
    assert len(world.texts[request]) == 4
    assert world.ends[request].reason is FinishReason.LENGTH
    assert world.scheduler.stats().recomputed_tokens == 0


def test_s07_the_queue_moves_when_a_row_is_free() -> None:
    world = World(page=4, windows=(4,), pages=(64, 64), rows=2, chunk=64)
    first = [world.submit(prompt(6, seed), 0) for seed in range(3)]
    world.step()
    assert set(world.last_step()) == set(first[:2])
    world.step()
    assert set(world.last_step()) == {first[2]}


def test_s07_four_chunked_prompts_run_side_by_side() -> None:
    world = World(page=4, windows=(4,), pages=(64, 64), rows=4, chunk=20, outputs_expected=8)
    requests = [world.submit(prompt(10, seed), 20) for seed in range(4)]
    for _ in range(4):
        world.step()
    assert set(world.last_step()) == set(requests)


@CACHING
@pytest.mark.parametrize("steps_before", [0, 1, 2, 3, 4])
def test_s08_an_abort_between_chunks_ends_the_request_once_and_leaves_nothing(
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


def test_s09_an_abort_of_what_has_ended_or_never_was_is_ignored() -> None:
    world = World()
    request = world.submit(prompt(4), 1)
    world.drain()
    world.abort(request)
    world.abort(RequestId(77))
    world.finish()


def test_s10_s11_retraction_repeats_nothing_and_keeps_usage() -> None:
    world = World(page=1, windows=(4,), pages=(32, 32), chunk=16, context=32)
    requests = [world.submit(prompt(10, seed), 12) for seed in range(3)]
    world.finish()
    assert world.scheduler.stats().retractions > 0
    for request in requests:
        usage = world.ends[request].usage
        assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (10, 12, 0)


def test_s12_a_resumed_request_is_computed_in_chunks_and_samples_only_at_its_end() -> None:
    world = World(page=4, windows=(4,), pages=(64, 16), chunk=8, caching=PrefixCaching.OFF)
    request = world.submit(prompt(10), 12)
    while len(world.texts[request]) < 6:
        world.step()
    world.retract_all()
    before = len(world.spans(request))
    world.finish()
    assert world.spans(request)[before : before + 3] == [(0, 8), (8, 16), (16, 17)]
    assert world.scheduler.stats().recomputed_tokens == 15


def test_s13_every_span_starts_where_the_last_one_ended() -> None:
    world = World(page=4, windows=(4,), pages=(16, 8), chunk=8)
    requests = [world.submit(prompt(12, seed % 2), 9) for seed in range(5)]
    world.finish()
    for request in requests:
        for (_, end), (start, _) in zip(world.spans(request), world.spans(request)[1:], strict=False):
            assert start <= end


def test_s14_two_long_requests_do_not_throw_each_other_out() -> None:
    world = World(page=1, windows=(), pages=(48,), chunk=16, context=48)
    requests = [world.submit(prompt(16, seed), 30) for seed in range(2)]
    world.finish()
    stats = world.scheduler.stats()
    assert stats.retractions <= 3
    assert stats.computed_tokens <= 3 * sum(16 + 29 for _ in requests)


def test_s15_a_victim_is_not_in_the_step_that_retracts_it() -> None:
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


def test_s16_a_chunked_request_does_not_block_itself() -> None:
    world = World(page=4, windows=(4,), pages=(16, 4), rows=1, chunk=8)
    request = world.submit(prompt(20), 1)
    world.finish()
    assert world.spans(request) == [(0, 8), (8, 16), (16, 20)]


@pytest.mark.parametrize("page", [1, 4, 16])
def test_s17_lengths_at_the_limit(page: int) -> None:
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


def test_s18_chunks_find_back_to_page_boundaries() -> None:
    world = World(page=4, windows=(4,), pages=(64, 64), chunk=10)
    world.submit(prompt(4, 1), 3)
    world.step()
    request = world.submit(prompt(30), 1)
    world.finish()
    ends = [end for _, end in world.spans(request)]
    assert ends[-1] == 30
    assert all(end % 4 == 0 for end in ends[:-1])

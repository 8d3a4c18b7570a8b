"""The player: time, hits and ends worked out by hand, and what holds of any workload."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from tests.lab.sim.scripts import asks, setting, tokens, trace

from transom.values import FinishReason
from transom_lab.sim.clients import Clients
from transom_lab.sim.costs import Load, MachineCost
from transom_lab.sim.player import Played, play
from transom_lab.sim.records import Cause
from transom_lab.sim.workloads import WORKLOADS, make_trace

PRICES = MachineCost(
    base=1e-3, choosing=5e-3, per_span=1e-5, per_token=1e-4, per_choice=1e-5, per_chunk_key=1e-9, window=512
)


def times(played: Played) -> list[list[float]]:
    return [list(life.token_times) for life in played.lives]


def lives_of(played: Played) -> list[tuple[object, ...]]:
    return [(v.asked_at, v.begun_at, v.cached_tokens, list(v.token_times), v.reason) for v in played.lives]


def test_a_schedule_worked_out_by_hand_takes_the_time_its_steps_cost() -> None:
    """Chunks of 4, 4 and 2 tokens at 1 s + 0.1 s a token + 0.5 s where one is chosen; then a decode."""
    cost = MachineCost(base=1.0, choosing=0.5, per_token=0.1)
    played = play(trace([asks(tokens(0, 10), 2)]), setting(cost, chunked_prefill_size=4, page_size=4))
    assert times(played) == [pytest.approx([1.4 + 1.4 + 1.7, 4.5 + 1.6])]
    assert played.ended_at == played.busy_s == pytest.approx(6.1)
    assert played.stats.steps == 4


def test_keys_are_priced_by_layer_and_by_how_they_are_read() -> None:
    """A prompt of 3 tokens reads 1 + 2 + 3 keys, 1 + 2 + 2 within a window of 2; a decode reads 4, and 2."""
    prices = MachineCost(
        per_chunk_key=1.0, per_chunk_near_key=100.0, per_decode_key=1e4, per_decode_near_key=1e6, window=2
    )
    played = play(trace([asks(tokens(0, 3), 2)]), setting(prices))
    assert times(played) == [pytest.approx([506.0, 506.0 + 2_040_000.0])]


def test_tokens_that_are_free_cost_nothing() -> None:
    load = Load(1, 10, 0, 0, 0, 0, 0, 0, 0, 0)
    assert MachineCost(per_token=1.0, tokens_free=8).of(load) == 2.0
    assert MachineCost(per_token=1.0, tokens_free=80).of(load) == 0.0


def test_outputs_of_a_request_are_born_together_and_it_ends_with_the_last() -> None:
    """The prompt is computed once; who asks next, one at a time, begins when the longest has ended."""
    prompt = tokens(0, 4)
    samples = [replace(asks(prompt, count), sample_of=0) for count in (3, 2)]
    played = play(trace([asks(prompt, 1), *samples, asks(tokens(50, 4), 1)], concurrency=1), setting())
    assert times(played) == [[1.0], [1.0, 2.0, 3.0], [1.0, 2.0], [4.0]]
    assert [life.reason for life in played.lives] == [*[FinishReason.STOP] * 3, FinishReason.LENGTH]
    assert [life.prompt_tokens for life in played.lives] == [4, 0, 0, 4]
    assert played.stats.computed_tokens == 4 + 2 + 1 + 4


def test_an_open_loop_waits_for_nobody_and_idle_time_costs_nothing() -> None:
    arrivals = [asks(tokens(0, 4), 1, at=0.0), asks(tokens(100, 4), 1, at=10.25)]
    played = play(trace(arrivals), setting())
    assert times(played) == [[1.0], [11.25]]
    assert (played.busy_s, played.ended_at) == (2.0, 11.25)


def test_who_arrives_during_a_step_waits_for_its_end() -> None:
    arrivals = [asks(tokens(0, 4), 3), asks(tokens(100, 4), 1, at=0.5)]
    second = play(trace(arrivals), setting()).lives[1]
    assert (second.asked_at, second.begun_at, list(second.token_times)) == (0.5, 1.0, [2.0])


def test_a_closed_loop_lets_the_next_ask_when_one_has_its_answer() -> None:
    arrivals = [asks(tokens(100 * i, 4), 2) for i in range(3)]
    played = play(trace(arrivals, concurrency=2), setting())
    assert [life.asked_at for life in played.lives] == [0.0, 0.0, 2.0]
    late = play(trace(arrivals, concurrency=2), replace(setting(), turnaround_s=0.25))
    assert [life.asked_at for life in late.lives] == [0.0, 0.0, 2.25]


def test_a_turn_follows_the_turn_before_after_a_pause_and_behind_who_waits_already() -> None:
    arrivals = [asks(tokens(0, 4), 1), asks(tokens(100, 4), 1), asks(tokens(200, 4), 1, at=0.0, after=0)]
    clients = Clients(trace(arrivals, concurrency=1))
    assert clients.due(0.0) == [0]
    assert clients.next_at() is None
    clients.ended(0, 1.0)
    assert clients.due(1.0) == [1]
    clients.ended(1, 2.0)
    assert clients.due(2.0) == [2]
    paused = Clients(trace([asks(tokens(0, 4), 1), asks(tokens(0, 4), 1, at=3.0, after=0)]))
    paused.due(0.0)
    paused.ended(0, 1.0)
    assert paused.next_at() == 4.0


def test_hits_of_a_small_trace_are_those_counted_by_hand() -> None:
    """40 tokens in common: the second begins at 40, within a page. Of the first and its answer 40 + 8 + 3
    tokens were computed, and 48 of them, whole pages, were published."""
    shared = tokens(0, 40)
    first = asks(np.concatenate([shared, tokens(1_000, 8)]), 4)
    second = asks(np.concatenate([shared, tokens(2_000, 8)]), 4, after=0)
    third = asks(np.concatenate([first.prompt, first.outputs, tokens(3_000, 5)]), 4, after=1)
    played = play(trace([first, second, third]), setting())
    assert [life.cached_tokens for life in played.lives] == [0, 40, 48]
    assert [life.found for life in played.lives] == [Cause.COLD, Cause.ISLAND, Cause.ISLAND]
    assert played.stats.cached_tokens == 88


@pytest.mark.parametrize("name", [name for name in WORKLOADS if name != "day"])
def test_every_arrival_ends_once_with_the_tokens_it_was_to_get(name: str) -> None:
    played = play(
        make_trace(name, 3, 2 if name == "w1" else 24),
        setting(PRICES, max_total_tokens=20_000, kv_dtype="float16"),
    )
    for life, arrival in zip(played.lives, played.trace.arrivals, strict=True):
        ended = FinishReason.STOP if name == "rollouts" else FinishReason.LENGTH
        assert life.reason is ended and not life.refused
        assert len(life.token_times) == len(arrival.outputs)
        assert life.token_times[-1] == life.ended_at
    assert played.stats.requests_finished == len(played.lives)
    assert played.stats.generated_tokens == played.trace.output_tokens
    assert played.stats.prompt_tokens == played.trace.prompt_tokens
    assert sum(played.samples[-1].tokens.values()) == played.trace.prompt_tokens
    assert (played.stats.running, played.stats.waiting) == (0, 0)
    assert sum(played.samples[-1].used_bytes) == 0


def test_the_same_trace_and_setting_are_the_same_to_the_last_time() -> None:
    def once(seed: int) -> Sequence[object]:
        played = play(make_trace("agents", seed, 16), setting(PRICES, max_total_tokens=9_000))
        return [lives_of(played), played.samples, played.stats]

    assert once(5) == once(5)
    assert once(5) != once(6)


def test_what_could_never_fit_is_refused_and_what_follows_it_still_asks() -> None:
    arrivals = [asks(tokens(0, 900), 4), asks(tokens(0, 20), 4, after=0)]
    played = play(trace(arrivals, concurrency=1), setting(max_total_tokens=128))
    assert "900 tokens" in played.lives[0].refused
    assert played.lives[1].reason is FinishReason.LENGTH

"""The player: times, hits and ends computed by hand, and invariants of all workloads."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from tests.lab.sim.traces import arrival_of, setting, tokens, trace

from transom.values import FinishReason
from transom_lab.sim.costs import MachineCost, StepLoad
from transom_lab.sim.player import Clients, Played, play
from transom_lab.sim.records import StartKind
from transom_lab.sim.workloads import WORKLOADS, make_trace

PRICES = MachineCost(
    base=1e-3, choosing=5e-3, per_span=1e-5, per_token=1e-4, per_choice=1e-5, per_chunk_key=1e-9, window=512
)


def times(played: Played) -> list[list[float]]:
    return [list(record.token_times) for record in played.records]


def fields_of(played: Played) -> list[tuple[object, ...]]:
    return [(v.sent_at, v.started_at, v.cached_tokens, list(v.token_times), v.reason) for v in played.records]


def test_a_schedule_computed_by_hand_takes_the_time_of_its_steps() -> None:
    """Chunks of 4, 4 and 2 tokens: 1 s, 0.1 s per token, and 0.5 s if a token is sampled. Then a decode."""
    cost = MachineCost(base=1.0, choosing=0.5, per_token=0.1)
    played = play(trace([arrival_of(tokens(0, 10), 2)]), setting(cost, chunked_prefill_size=4, page_size=4))
    assert times(played) == [pytest.approx([1.4 + 1.4 + 1.7, 4.5 + 1.6])]
    assert played.ended_at == played.busy_s == pytest.approx(6.1)
    assert played.stats.steps == 4


def test_keys_are_priced_by_layer_and_by_how_they_are_read() -> None:
    """A prompt of 3 tokens reads 1 + 2 + 3 keys, 1 + 2 + 2 within a window of 2; a decode reads 4, and 2."""
    prices = MachineCost(
        per_chunk_key=1.0, per_chunk_near_key=100.0, per_decode_key=1e4, per_decode_near_key=1e6, window=2
    )
    played = play(trace([arrival_of(tokens(0, 3), 2)]), setting(prices))
    assert times(played) == [pytest.approx([506.0, 506.0 + 2_040_000.0])]


def test_tokens_that_are_free_cost_nothing() -> None:
    load = StepLoad(1, 10, 0, 0, 0, 0, 0, 0, 0, 0)
    assert MachineCost(per_token=1.0, tokens_free=8).of(load) == 2.0
    assert MachineCost(per_token=1.0, tokens_free=80).of(load) == 0.0


def test_outputs_of_a_request_start_together_and_it_ends_with_the_last() -> None:
    """The prompt is computed once. The next request starts when the longest output has ended."""
    prompt = tokens(0, 4)
    samples = [replace(arrival_of(prompt, count), sample_of=0) for count in (3, 2)]
    played = play(
        trace([arrival_of(prompt, 1), *samples, arrival_of(tokens(50, 4), 1)], concurrency=1), setting()
    )
    assert times(played) == [[1.0], [1.0, 2.0, 3.0], [1.0, 2.0], [4.0]]
    assert [record.reason for record in played.records] == [*[FinishReason.STOP] * 3, FinishReason.LENGTH]
    assert [record.prompt_tokens for record in played.records] == [4, 0, 0, 4]
    assert played.stats.computed_tokens == 4 + 2 + 1 + 4


def test_an_open_loop_does_not_wait_for_answers_and_idle_time_is_skipped() -> None:
    arrivals = [arrival_of(tokens(0, 4), 1, at=0.0), arrival_of(tokens(100, 4), 1, at=10.25)]
    played = play(trace(arrivals), setting())
    assert times(played) == [[1.0], [11.25]]
    assert (played.busy_s, played.ended_at) == (2.0, 11.25)


def test_a_request_that_arrives_during_a_step_waits_for_its_end() -> None:
    arrivals = [arrival_of(tokens(0, 4), 3), arrival_of(tokens(100, 4), 1, at=0.5)]
    second = play(trace(arrivals), setting()).records[1]
    assert (second.sent_at, second.started_at, list(second.token_times)) == (0.5, 1.0, [2.0])


def test_a_closed_loop_sends_the_next_request_when_an_answer_ends() -> None:
    arrivals = [arrival_of(tokens(100 * i, 4), 2) for i in range(3)]
    played = play(trace(arrivals, concurrency=2), setting())
    assert [record.sent_at for record in played.records] == [0.0, 0.0, 2.0]
    late = play(trace(arrivals, concurrency=2), replace(setting(), turnaround_s=0.25))
    assert [record.sent_at for record in late.records] == [0.0, 0.0, 2.25]


def test_a_follow_up_is_sent_after_a_pause_and_behind_requests_that_wait_already() -> None:
    arrivals = [
        arrival_of(tokens(0, 4), 1),
        arrival_of(tokens(100, 4), 1),
        arrival_of(tokens(200, 4), 1, at=0.0, after=0),
    ]
    clients = Clients(trace(arrivals, concurrency=1))
    assert clients.due(0.0) == [0]
    assert clients.next_at() is None
    clients.ended(0, 1.0)
    assert clients.due(1.0) == [1]
    clients.ended(1, 2.0)
    assert clients.due(2.0) == [2]
    paused = Clients(trace([arrival_of(tokens(0, 4), 1), arrival_of(tokens(0, 4), 1, at=3.0, after=0)]))
    paused.due(0.0)
    paused.ended(0, 1.0)
    assert paused.next_at() == 4.0


def test_hits_of_a_small_trace_are_as_counted_by_hand() -> None:
    """40 tokens are shared, so the second request starts at 40, inside a page. The first computed 40 + 8 + 3
    tokens of its prompt and answer and published its whole pages, 48 tokens. The third finds these.
    """
    shared = tokens(0, 40)
    first = arrival_of(np.concatenate([shared, tokens(1_000, 8)]), 4)
    second = arrival_of(np.concatenate([shared, tokens(2_000, 8)]), 4, after=0)
    third = arrival_of(np.concatenate([first.prompt, first.outputs, tokens(3_000, 5)]), 4, after=1)
    played = play(trace([first, second, third]), setting())
    assert [record.cached_tokens for record in played.records] == [0, 40, 48]
    assert [record.start_kind for record in played.records] == [
        StartKind.COLD,
        StartKind.ISLAND,
        StartKind.ISLAND,
    ]
    assert played.stats.cached_tokens == 88


@pytest.mark.parametrize("name", [name for name in WORKLOADS if name != "day"])
def test_every_arrival_ends_once_with_all_its_tokens(name: str) -> None:
    played = play(
        make_trace(name, 3, 2 if name == "w1" else 24),
        setting(PRICES, max_total_tokens=20_000, kv_dtype="float16"),
    )
    for record, arrival in zip(played.records, played.trace.arrivals, strict=True):
        ended = FinishReason.STOP if name == "rollouts" else FinishReason.LENGTH
        assert record.reason is ended and not record.refused
        assert len(record.token_times) == len(arrival.outputs)
        assert record.token_times[-1] == record.ended_at
    assert played.stats.requests_finished == len(played.records)
    assert played.stats.generated_tokens == played.trace.output_tokens
    assert played.stats.prompt_tokens == played.trace.prompt_tokens
    assert sum(played.samples[-1].tokens.values()) == played.trace.prompt_tokens
    assert (played.stats.running, played.stats.waiting) == (0, 0)
    assert sum(played.samples[-1].used_bytes) == 0


def test_the_same_trace_and_setting_give_the_same_times() -> None:
    def once(seed: int) -> Sequence[object]:
        played = play(make_trace("agents", seed, 16), setting(PRICES, max_total_tokens=9_000))
        return [fields_of(played), played.samples, played.stats]

    assert once(5) == once(5)
    assert once(5) != once(6)


def test_a_request_that_can_never_fit_is_refused_and_its_follow_up_is_sent() -> None:
    arrivals = [arrival_of(tokens(0, 900), 4), arrival_of(tokens(0, 20), 4, after=0)]
    played = play(trace(arrivals, concurrency=1), setting(max_total_tokens=128))
    assert "900 tokens" in played.records[0].refused
    assert played.records[1].reason is FinishReason.LENGTH

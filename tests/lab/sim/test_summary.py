"""Figures of a simulation, computed by hand."""

from itertools import pairwise

import pytest
from tests.lab.sim.traces import arrival_of, setting, tokens, trace

from transom_lab.sim.player import play
from transom_lab.sim.records import SAMPLES_MAX, Sample, StartKind, Timeline
from transom_lab.sim.summary import spread, summary_of


def test_times_are_counted_from_the_arrival_and_in_milliseconds() -> None:
    """Steps take one second. The second request arrives at 0.5, starts at 1, gets tokens at 2 and 3, and
    finds two whole pages of the first.
    """
    arrivals = [arrival_of(tokens(0, 40), 3), arrival_of(tokens(0, 40), 2, at=0.5)]
    summary = summary_of(play(trace(arrivals), setting()))
    assert (summary.duration_s, summary.busy_s, summary.steps) == (3.0, 3.0, 3)
    assert (summary.ttft_ms.p50, summary.ttft_ms.max) == (1250.0, 1500.0)
    assert (summary.queue_ms.mean, summary.queue_ms.max) == (250.0, 500.0)
    assert (summary.itl_ms.p50, summary.itl_ms.p99) == (1000.0, 1000.0)
    assert summary.latency_ms.max == 3000.0
    assert summary.output_tokens_per_s == pytest.approx(5 / 3)
    assert summary.hit_tokens == {StartKind.ISLAND: 32, StartKind.REPAIR: 0, StartKind.COLD: 48}
    assert summary.begins == {StartKind.ISLAND: 1, StartKind.REPAIR: 0, StartKind.COLD: 1}
    assert (summary.prompt_tokens, summary.computed_tokens) == (80, 48 + 3)


def test_memory_is_counted_in_pages_of_each_component() -> None:
    """40 tokens take 3 pages. 3 layers are full, 15 have windows; 2 x 256 half floats per token and layer."""
    summary = summary_of(play(trace([arrival_of(tokens(0, 40), 3)]), setting()))
    used = {pool.name: pool.used_bytes_max for pool in summary.pools}
    assert used == {"full": 3 * 3 * 16 * 1024, "window": 3 * 15 * 16 * 1024}


def test_a_spread_of_nothing_is_zero_and_percentiles_interpolate() -> None:
    assert spread([]).max == 0.0
    assert spread([float(n) for n in range(101)]).p90 == 90.0


def test_a_timeline_stays_short_and_covers_the_whole_run() -> None:
    timeline = Timeline(1.0)
    for second in range(5_000):
        if timeline.is_due(float(second)):
            timeline.add(Sample(float(second), 0, 0, (), (), {}))
    moments = [sample.at for sample in timeline.samples]
    assert len(moments) < SAMPLES_MAX and moments[0] == 0.0 and moments[-1] > 4_900
    gaps = [later - sooner for sooner, later in pairwise(moments)]
    assert max(gaps) <= 2 * min(gaps)

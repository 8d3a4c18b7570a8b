"""Figures of a simulation worked out by hand."""

from itertools import pairwise

import pytest
from tests.lab.sim.scripts import asks, setting, tokens, trace

from transom_lab.sim.player import play
from transom_lab.sim.records import SAMPLES_MAX, Cause, Sample, Timeline
from transom_lab.sim.summary import spread, summary_of


def test_times_are_counted_from_the_arrival_and_in_milliseconds() -> None:
    """Steps of one second. The second arrives at 0.5, is begun at 1, has tokens at 2 and 3, and finds the
    first's two whole pages."""
    arrivals = [asks(tokens(0, 40), 3), asks(tokens(0, 40), 2, at=0.5)]
    summary = summary_of(play(trace(arrivals), setting()))
    assert (summary.duration_s, summary.busy_s, summary.steps) == (3.0, 3.0, 3)
    assert (summary.ttft_ms.p50, summary.ttft_ms.max) == (1250.0, 1500.0)
    assert (summary.queue_ms.mean, summary.queue_ms.max) == (250.0, 500.0)
    assert (summary.itl_ms.p50, summary.itl_ms.p99) == (1000.0, 1000.0)
    assert summary.latency_ms.max == 3000.0
    assert summary.output_tokens_per_s == pytest.approx(5 / 3)
    assert summary.hit_tokens == {Cause.ISLAND: 32, Cause.REPAIR: 0, Cause.COLD: 48}
    assert summary.begins == {Cause.ISLAND: 1, Cause.REPAIR: 0, Cause.COLD: 1}
    assert (summary.prompt_tokens, summary.computed_tokens) == (80, 48 + 3)


def test_memory_is_what_pages_of_the_components_cost() -> None:
    """40 tokens are 3 pages: 3 full layers and 15 of a window, 2 x 256 half floats a token and layer."""
    summary = summary_of(play(trace([asks(tokens(0, 40), 3)]), setting()))
    used = {pool.name: pool.used_bytes_max for pool in summary.pools}
    assert used == {"full": 3 * 3 * 16 * 1024, "window": 3 * 15 * 16 * 1024}


def test_a_spread_of_nothing_is_zero_and_percentiles_interpolate() -> None:
    assert spread([]).max == 0.0
    assert spread([float(n) for n in range(101)]).p90 == 90.0


def test_a_timeline_stays_short_and_covers_all() -> None:
    timeline = Timeline(1.0)
    for second in range(5_000):
        if timeline.wants(float(second)):
            timeline.add(Sample(float(second), 0, 0, (), (), {}))
    moments = [sample.at for sample in timeline.samples]
    assert len(moments) < SAMPLES_MAX and moments[0] == 0.0 and moments[-1] > 4_900
    gaps = [later - sooner for sooner, later in pairwise(moments)]
    assert max(gaps) <= 2 * min(gaps)

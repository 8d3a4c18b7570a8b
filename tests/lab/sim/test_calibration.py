"""Timing steps of the real engine, on a tiny model, and fitting the cost model to timed steps."""

from pathlib import Path

import numpy as np
import pytest
from tests.tiny import write_tiny_gguf

from transom.config import EngineConfig
from transom.engine.engine import load_engine
from transom_lab.sim.calibration import (
    DECODES,
    PASSES,
    Batch,
    TimedStep,
    fit,
    measure,
    non_negative,
    window_of,
)
from transom_lab.sim.costs import MachineCost, StepLoad


def test_steps_that_are_alike_are_timed_as_one_and_can_be_fitted(tmp_path: Path) -> None:
    """Two prompts of 24 tokens in steps of 32. The first step has 8 tokens left, less than a page, so the
    second prompt follows in the next step, beside a decode. Then both decode, and the second ends alone.
    """
    model = str(write_tiny_gguf(tmp_path / "tiny.gguf"))
    config = EngineConfig(model=model, chunked_prefill_size=32, threads=1)
    _, engine = load_engine(config)
    timed = measure(engine, [Batch(2, 24)], seed=1)
    loads = [step.load for step in timed]
    assert [(load.spans, load.tokens, load.choices) for load in loads] == [
        (1, 24, 1),
        (2, 25, 2),
        (2, 2, 2),
        (1, 1, 1),
    ] * PASSES
    first, last = loads[0], loads[-1]
    assert first.chunk_keys == 24 * 25 // 2
    assert last == StepLoad(
        1, 1, 1, 0, 24 + DECODES - 1, window_of(engine), 0, 0, 24 + DECODES - 1, window_of(engine)
    )
    assert all(step.seconds > 0 for step in timed)
    assert fit(timed, window_of(engine)).cost.base >= 0.0


def test_fit_recovers_the_rates_that_the_times_were_made_with() -> None:
    true = MachineCost(
        base=2e-3, choosing=8e-3, per_span=5e-5, per_token=2e-4, per_chunk_key=1e-8, tokens_free=8, window=512
    )
    generator = np.random.default_rng(0)
    steps = []
    for _ in range(400):
        spans, tokens = int(generator.integers(1, 33)), int(generator.integers(1, 600))
        choices = int(generator.integers(0, spans + 1))
        keys = [int(k) for k in generator.integers(1, 100_000, 6)]
        load = StepLoad(spans, tokens, choices, int(generator.integers(0, 3)), *keys)
        steps.append(TimedStep("", load, true.of(load)))
    found = fit(steps, 512)
    assert found.error < 1e-6
    assert found.cost.rates() == pytest.approx(true.rates(), abs=1e-9)
    assert (found.cost.tokens_free, found.cost.window) == (8, 512)


def test_no_rate_is_negative_where_unconstrained_least_squares_would_be() -> None:
    matrix = np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]])
    found = non_negative(matrix, np.array([3.0, 2.0, 1.0]))  # unbounded: 4 and -1
    assert found.tolist() == pytest.approx([2.0, 0.0])


def test_symmetric_noise_does_not_change_the_total_time() -> None:
    """Half the steps take 0.6 s, half 1.4 s. Errors relative to the measured times are least at 0.72 s."""
    load = StepLoad(4, 4, 4, 0, 0, 0, 0, 0, 0, 0)
    steps = [TimedStep("", load, seconds) for seconds in (0.6, 1.4)] * 20
    assert fit(steps, 0).cost.of(load) == pytest.approx(1.0)

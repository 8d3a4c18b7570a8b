"""Timing steps of the real engine, on a tiny model."""

from pathlib import Path

from tests.tiny import write_tiny_gguf

from transom.config import EngineConfig
from transom.engine.engine import load_engine
from transom_lab.sim.costs import Load
from transom_lab.sim.fit import fit
from transom_lab.sim.measure import DECODES, PASSES, Batch, measure, window_of


def test_steps_that_are_alike_are_timed_as_one_and_can_be_fitted(tmp_path: Path) -> None:
    """Two prompts of 24 tokens in steps of 32: 8 are no page, so the second waits for the next step, beside a
    decode; then both decode, the last alone."""
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
    assert last == Load(
        1, 1, 1, 0, 24 + DECODES - 1, window_of(engine), 0, 0, 24 + DECODES - 1, window_of(engine)
    )
    assert all(step.seconds > 0 for step in timed)
    assert fit(timed, window_of(engine)).cost.base >= 0.0

"""Small traces and settings with results that can be computed by hand."""

from collections.abc import Sequence

import numpy as np

from transom.config import EngineConfig
from transom.values import Tokens
from transom_lab.sim.costs import MachineCost
from transom_lab.sim.model_shapes import MODEL_SHAPES
from transom_lab.sim.player import Setting
from transom_lab.sim.trace import Arrival, Trace


def tokens(first: int, count: int) -> Tokens:
    return np.arange(first, first + count, dtype=np.int32)


def arrival_of(
    prompt: Tokens, outputs: int, at: float = 0.0, after: int | None = None, base: int = 90_000
) -> Arrival:
    return Arrival(at, prompt, tokens(base, outputs), after=after)


def trace(arrivals: Sequence[Arrival], concurrency: int | None = None) -> Trace:
    return Trace("by hand", tuple(arrivals), concurrency)


def setting(cost: MachineCost | None = None, shape: str = "gemma3-270m", **engine: object) -> Setting:
    """By default pages of 16 tokens, and every step takes one second."""
    config = EngineConfig(**engine)  # type: ignore[arg-type]
    return Setting(MODEL_SHAPES[shape].spec(shape), config, cost or MachineCost(base=1.0))

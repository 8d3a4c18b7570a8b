"""From steps that were timed to what a step takes: least squares of relative errors, no rate below 0."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from transom_lab.sim.costs import RATES, Load, MachineCost, terms

FREE = (0, 4, 8, 16, 32, 64)
"""Tokens whose arithmetic might be hidden behind reading weights: each is tried."""

ROUNDS = 8
"""Errors count relative to what was expected in the round before: relative to what was seen, a step that took
long by chance would weigh less than one that was quick by chance, and all rates would come out low."""
FLOOR_S = 1e-6


@dataclass(frozen=True, slots=True)
class Timed:
    """A step, or several alike: `name` says which, `seconds` is their median."""

    name: str
    load: Load
    seconds: float


@dataclass(frozen=True, slots=True)
class Fit:
    """`errors[i]` is how far the cost of step i is from what it took, relative to that."""

    cost: MachineCost
    errors: tuple[float, ...]

    @property
    def error(self) -> float:
        """Root of the mean square."""
        return float(np.sqrt(np.mean(np.square(self.errors))))


def fit(steps: Sequence[Timed], window: int) -> Fit:
    """The best of all `FREE`."""
    assert steps, "nothing was timed"
    return min((_fit(steps, window, free) for free in FREE), key=lambda found: found.error)


def _fit(steps: Sequence[Timed], window: int, tokens_free: int) -> Fit:
    seconds = np.array([step.seconds for step in steps])
    counts = np.array([terms(step.load, tokens_free) for step in steps], np.float64)
    expected = seconds
    for _ in range(ROUNDS):
        rates = non_negative(counts / expected[:, None], seconds / expected)
        expected = np.maximum(counts @ rates, FLOOR_S)
    cost = replace(
        MachineCost(tokens_free=tokens_free, window=window),
        **dict(zip(RATES, rates.tolist(), strict=True)),
    )
    return Fit(cost, tuple(cost.of(step.load) / step.seconds - 1.0 for step in steps))


def non_negative(matrix: NDArray[np.float64], wanted: NDArray[np.float64]) -> NDArray[np.float64]:
    """x >= 0 with the least |matrix x - wanted|. Lawson and Hanson, Solving Least Squares Problems (1974)."""
    scale = np.linalg.norm(matrix, axis=0)
    scale[scale == 0.0] = 1.0
    scaled = matrix / scale
    x = np.zeros(matrix.shape[1])
    used: list[int] = []
    while True:
        pull = scaled.T @ (wanted - scaled @ x)
        pull[used] = 0.0
        best = int(pull.argmax())
        if pull[best] <= 1e-9:
            break
        used.append(best)
        x, kept = _inside(scaled, wanted, x, used)
        if best not in kept:  # rounding alone: it would come and go for ever
            break
        used = kept
    result: NDArray[np.float64] = x / scale
    return result


def _inside(
    matrix: NDArray[np.float64], wanted: NDArray[np.float64], x: NDArray[np.float64], used: list[int]
) -> tuple[NDArray[np.float64], list[int]]:
    """From `x` as far towards the least squares over `used` as nothing falls below 0; what reaches 0 goes."""
    used = list(used)
    while True:
        solved = np.zeros_like(x)
        solved[used] = np.linalg.lstsq(matrix[:, used], wanted, rcond=None)[0]
        below = [number for number in used if solved[number] <= 0.0]
        if not below:
            return solved, used
        part = min(x[number] / (x[number] - solved[number]) for number in below)
        x = x + part * (solved - x)
        used = [number for number in used if x[number] > 1e-15]

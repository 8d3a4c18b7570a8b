"""Duration of a step, as rates times counts, and how the rates are learned while steps run. No clock.

The model is a sum: a part per step (weights are read once), per span, per token (arithmetic on weights), per
sampled token (the output head) and per key that a token reads. It leaves out hot caches, idle threads, and
the batch size from which on a step is bound by arithmetic and no longer by reading weights. On a machine that
has these effects, the learned rates are the closest straight line through recent steps.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from transom.sched.request import Span
from transom.steps import StepWork

DECAY = 0.98
"""Weight that an observation keeps with each later one: about fifty steps count."""

SWEEPS = 12
"""Rounds over the rates per observation. Each starts from the last rates, so few rounds are needed."""

UNITS = (1.0, 16.0, 256.0, 65536.0)
"""Units of base, spans, tokens and keys, so that the rates to solve for are of similar size."""

PRIOR_WEIGHT = 1e-6
"""Weight of a rate's previous value against one observation: a rate without evidence stays as it was."""


class StepCounts(NamedTuple):
    """Counts of one step. `attended`: keys read by all tokens; `near`: the part of them within a window."""

    spans: int
    tokens: int
    sampled: int
    attended: int
    near: int = 0


def keys_read(start: int, end: int) -> int:
    """Keys that the tokens at `[start, end)` read if each reads itself and all tokens before it."""
    return (end * (end + 1) - start * (start + 1)) // 2  # (start + 1) + ... + end


def keys_near(start: int, end: int, window: int) -> int:
    """Keys that the tokens at `[start, end)` read if each reads the last `window`, itself included."""
    full = min(max(start, window), end)
    return keys_read(start, full) + (end - full) * window


def counts_of(work: StepWork, window: int = 0) -> StepCounts:
    """The counts of a step; `near` is 0 without a window."""
    spans = work.spans
    return StepCounts(
        spans=len(spans),
        tokens=sum([len(span.tokens) for span in spans]),
        sampled=sum([span.sampling is not None for span in spans]),
        attended=sum([keys_read(span.start, span.end) for span in spans]),
        near=sum([keys_near(span.start, span.end, window) for span in spans]) if window else 0,
    )


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of a step: `base`, and a rate for each span, token, sampled token and key read.

    `per_near` is the rate of keys within `window`, which layers with a window read instead.
    """

    base: float = 0.0
    per_span: float = 0.0
    per_token: float = 0.0
    per_attended: float = 0.0
    per_sampled: float = 0.0
    per_near: float = 0.0
    window: int = 0

    def seconds(self, work: StepWork) -> float:
        return self.of(counts_of(work, self.window))

    def of(self, counts: StepCounts) -> float:
        return self.base + self._varying(counts)

    def of_span(self, start: int, end: int) -> float:
        """Seconds that one more span `[start, end)`, which samples no token, adds to a step."""
        near = keys_near(start, end, self.window) if self.window else 0
        return self._varying(StepCounts(1, end - start, 0, keys_read(start, end), near))

    def longest_span(self, start: int, tokens: int, seconds: float) -> int:
        """The most tokens, up to `tokens`, of one more span from `start` that adds at most `seconds`."""
        low, high = 0, tokens  # bisection: a longer span never costs less
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (
                (middle, high) if self.of_span(start, start + middle) <= seconds else (low, middle - 1)
            )
        return low

    def _varying(self, counts: StepCounts) -> float:
        return (
            self.per_span * counts.spans
            + self.per_token * counts.tokens
            + self.per_attended * counts.attended
            + self.per_sampled * counts.sampled
            + self.per_near * counts.near
        )


class CostLearner:
    """Owns the learned rates. Mutable; the same observations in the same order give the same rates.

    Least squares of relative errors over recent steps, with no rate below 0. An error counts relative to the
    larger of the observed and the expected duration, so that a step that took ten times as long for unrelated
    reasons moves the rates no more than a step that took a tenth longer. Sampled tokens and keys within
    windows have no rates of their own: they grow with spans and tokens, and cannot be told apart from them.
    """

    def __init__(self) -> None:
        size = len(UNITS)
        self._rates = [0.0] * size
        # Normal equations of the weighted least squares: products of counts, and of counts with durations.
        self._products = [[0.0] * size for _ in UNITS]
        self._targets = [0.0] * size

    def cost(self) -> StepCost:
        """The rates as learned so far. Before the first observation, steps cost nothing."""
        base, per_span, per_token, per_attended = (
            rate / unit for rate, unit in zip(self._rates, UNITS, strict=True)
        )
        return StepCost(base, per_span, per_token, per_attended)

    def observe(self, counts: StepCounts, seconds: float) -> None:
        """A step with these counts took `seconds`. Ignored if `seconds` is 0: its runner measures no time."""
        if seconds <= 0.0:
            return
        observed = (1.0, counts.spans, counts.tokens, counts.attended)
        scaled = [count / unit for count, unit in zip(observed, UNITS, strict=True)]
        expected = sum([count * rate for count, rate in zip(scaled, self._rates, strict=True)])
        weight = max(seconds, expected) ** -2
        for i, one in enumerate(scaled):
            row = self._products[i]
            for j, other in enumerate(scaled):
                row[j] = DECAY * row[j] + weight * one * other
            self._targets[i] = DECAY * self._targets[i] + weight * one * seconds
        self._solve(PRIOR_WEIGHT * weight)

    def _solve(self, prior: float) -> None:
        """Coordinate descent: sets each rate in turn to the best value given the other rates, at least 0."""
        rates, before = self._rates, tuple(self._rates)
        for _ in range(SWEEPS):
            for i, row in enumerate(self._products):
                error = self._targets[i] - sum([a * rate for a, rate in zip(row, rates, strict=True)])
                # The prior pulls towards the rate before this observation, and keeps the divisor above 0.
                gain = (error + prior * (before[i] - rates[i])) / (row[i] + prior)
                rates[i] = max(0.0, rates[i] + gain)


# ---------------------------------------------------------------- target for the duration of a step


@dataclass(slots=True)
class TimeBudget:
    """Owns the seconds that a step has left for prefill chunks. Mutable, lives no longer than a plan.

    The step is expected to take no longer than its target. `floor` tokens of chunks are allowed in any case,
    so that prompts make progress even where decodes alone take longer than the target.
    """

    cost: StepCost
    seconds: float
    floor: int

    def longest_chunk(self, start: int, budget: int) -> int:
        """The longest chunk from `start`, at most `budget` tokens, for which there is time."""
        return min(budget, max(self.floor, self.cost.longest_span(start, budget, self.seconds)))

    def spend(self, span: Span) -> None:
        self.floor = max(0, self.floor - len(span))
        self.seconds -= self.cost.of_span(span.start, span.end)


def time_left(decodes: Iterable[int], cost: StepCost, target_seconds: float, floor: int) -> TimeBudget:
    """The part of `target_seconds` that decodes of the tokens at positions `decodes` leave to chunks."""
    ends = [position + 1 for position in decodes]
    near = sum([keys_near(end - 1, end, cost.window) for end in ends]) if cost.window else 0
    attended = sum([keys_read(end - 1, end) for end in ends])
    taken = cost.of(StepCounts(len(ends), len(ends), len(ends), attended, near))
    return TimeBudget(cost, target_seconds - taken, floor)

"""What a step takes, as rates times counts, and how the rates are learned while steps run. No clock.

It models a machine whose steps are a sum: so much for the step (weights are read once), for each span, for
each token (arithmetic on weights), for each token chosen (the output head) and for each key that a token
reads. It does not know hot caches, threads that wait, or a batch size from which on reading weights is not
what costs: of such a machine it learns the straight line nearest to what it has seen lately.
"""

from dataclasses import dataclass
from typing import NamedTuple

from transom.steps import StepWork

FORGET = 0.98
"""Weight that an observation keeps with each one after it: fifty steps matter, more or less."""

SWEEPS = 12
"""Rounds over the rates with each observation. They go on from where the last ended."""

UNITS = (1.0, 16.0, 256.0, 65536.0)
"""Of base, spans, tokens and keys, so that the rates solved for are of one size."""

FAITH = 1e-6
"""How firmly a rate that nothing speaks for stays what it was, against one observation."""


class StepCounts(NamedTuple):
    """What is counted of a step. `attended`: keys read by all tokens; `near`: those within a window."""

    spans: int
    tokens: int
    choices: int
    attended: int
    near: int = 0


def keys_read(start: int, end: int) -> int:
    """Keys that the tokens at `[start, end)` read when each reads all before it, and itself."""
    return (end * (end + 1) - start * (start + 1)) // 2


def keys_near(start: int, end: int, window: int) -> int:
    """Keys that the tokens at `[start, end)` read when each reads the last `window`, itself included."""
    full = min(max(start, window), end)
    return keys_read(start, full) + (end - full) * window


def counts_of(work: StepWork, window: int = 0) -> StepCounts:
    """Without a window nothing is near."""
    spans = work.spans
    return StepCounts(
        spans=len(spans),
        tokens=sum([len(span.tokens) for span in spans]),
        choices=sum([span.sampling is not None for span in spans]),
        attended=sum([keys_read(span.start, span.end) for span in spans]),
        near=sum([keys_near(span.start, span.end, window) for span in spans]) if window else 0,
    )


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of a step: `base`, and a rate for each span, token, token chosen and key read.

    `per_near` is for keys within `window`, which layers with a window read instead.
    """

    base: float = 0.0
    per_span: float = 0.0
    per_token: float = 0.0
    per_attended: float = 0.0
    per_choice: float = 0.0
    per_near: float = 0.0
    window: int = 0

    def seconds(self, work: StepWork) -> float:
        return self.of(counts_of(work, self.window))

    def of(self, counts: StepCounts) -> float:
        return self.base + self._varying(counts)

    def of_span(self, start: int, end: int) -> float:
        """What one more span `[start, end)` that chooses no token adds to a step."""
        near = keys_near(start, end, self.window) if self.window else 0
        return self._varying(StepCounts(1, end - start, 0, keys_read(start, end), near))

    def longest_span(self, start: int, tokens: int, seconds: float) -> int:
        """The most tokens, up to `tokens`, of one more span from `start` that adds at most `seconds`."""
        low, high = 0, tokens
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
            + self.per_choice * counts.choices
            + self.per_near * counts.near
        )


class CostLearner:
    """Owns what was learned about steps. Mutable; the same observations, in order, give the same rates.

    Least squares of relative errors over recent steps, no rate below 0. An error counts relative to the
    larger of seen and expected, so that a step that took ten times as long for reasons of its own moves the
    rates no more than one that took a tenth longer. Tokens chosen and keys within windows are not told from
    spans and tokens, with which they grow.
    """

    def __init__(self) -> None:
        size = len(UNITS)
        self._rates = [0.0] * size
        self._products = [[0.0] * size for _ in UNITS]
        self._targets = [0.0] * size

    def cost(self) -> StepCost:
        """As learned so far; before anything was, steps cost nothing."""
        base, per_span, per_token, per_attended = (
            rate / unit for rate, unit in zip(self._rates, UNITS, strict=True)
        )
        return StepCost(base, per_span, per_token, per_attended)

    def observe(self, counts: StepCounts, seconds: float) -> None:
        """A step with these counts took `seconds`. What took no time tells nothing."""
        if seconds <= 0.0:
            return
        seen = (1.0, counts.spans, counts.tokens, counts.attended)
        scaled = [count / unit for count, unit in zip(seen, UNITS, strict=True)]
        expected = sum([count * rate for count, rate in zip(scaled, self._rates, strict=True)])
        weight = max(seconds, expected) ** -2
        for i, one in enumerate(scaled):
            row = self._products[i]
            for j, other in enumerate(scaled):
                row[j] = FORGET * row[j] + weight * one * other
            self._targets[i] = FORGET * self._targets[i] + weight * one * seconds
        self._solve(FAITH * weight)

    def _solve(self, faith: float) -> None:
        """Each rate in turn becomes the best there is beside the others, and not less than 0."""
        rates, before = self._rates, tuple(self._rates)
        for _ in range(SWEEPS):
            for i, row in enumerate(self._products):
                error = self._targets[i] - sum([a * rate for a, rate in zip(row, rates, strict=True)])
                gain = (error + faith * (before[i] - rates[i])) / (row[i] + faith)
                rates[i] = max(0.0, rates[i] + gain)

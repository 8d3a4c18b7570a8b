"""What workloads are drawn from: tokens, lengths and moments, all of one seed."""

from collections.abc import Iterator

import numpy as np

from transom.values import Tokens

BOS = 2
FIRST, LAST = 1_000, 250_000
"""Random tokens lie between these, in the vocabulary of every model the simulator knows but the smallest."""


class Draw:
    """Owns a stream of chance. Mutable; the same seed and workload, the same stream."""

    def __init__(self, seed: int, workload: str) -> None:
        self._generator = np.random.Generator(np.random.PCG64([seed, *workload.encode()]))

    def tokens(self, count: int) -> Tokens:
        return self._generator.integers(FIRST, LAST, count, dtype=np.int32)

    def begin(self, count: int) -> Tokens:
        """`count` tokens, the first of which begins every text."""
        return joined(np.array([BOS], np.int32), self.tokens(count - 1))

    def between(self, low: int, high: int) -> int:
        """A whole number, both ends included."""
        return int(self._generator.integers(low, high + 1))

    def near(self, mean: float, deviation: float, low: int) -> int:
        """A normal length, at least `low`."""
        return max(low, round(self._generator.normal(mean, deviation)))

    def skewed(self, median: float, sigma: float, low: int, high: int) -> int:
        """A length whose logarithm is normal, as lengths of answers are; at least `low`, at most `high`."""
        return min(high, max(low, round(median * float(np.exp(sigma * self._generator.standard_normal())))))

    def pause(self, mean_s: float) -> float:
        """An exponential time."""
        return float(self._generator.exponential(mean_s))

    def moments(self, mean_s: float) -> Iterator[float]:
        """Times of a Poisson process, one after `mean_s` on average; without end."""
        now = 0.0
        while True:
            now += self.pause(mean_s)
            yield now

    def chance(self, probability: float) -> bool:
        return bool(self._generator.random() < probability)


def joined(*parts: Tokens) -> Tokens:
    return np.concatenate(parts, dtype=np.int32)

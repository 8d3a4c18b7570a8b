"""How long outputs were of late, and what that lets expect of those that are not done. No chance in it.

As LightLLM's Past-Future scheduler ("Past-Future Scheduler for LLM Serving under SLA Guarantees", ASPLOS
2025): an output that has come to k tokens is one of those longer than k. Where that draws from the recent
lengths, we take their upper quartile, so that plans are the same each time.
"""

from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

MEMORY = 128
"""Ended outputs that are remembered."""

GUESSES = 4
"""Outputs that the first guess is worth: the upper quartile of a dozen others is theirs."""

Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class OutputLengths:
    """Recent lengths, ascending, at least one."""

    lengths: Counts

    def remaining(self, outputs: Counts, factor: int = 1) -> Counts:
        """Tokens still to come, at least one, of outputs so long, if all become `factor` times as long.

        The upper quartile of the recent lengths that are greater. Beyond the longest, as much again.
        """
        count = len(self.lengths)
        longer = self.lengths.searchsorted(outputs // factor, side="right")
        expected = self.lengths[_quartiles(count)[longer]] * factor - outputs
        return np.where(longer < count, expected, np.maximum(outputs, 1))

    def seeing(self, outputs: Counts) -> "OutputLengths":
        """With outputs that are not done but longer than all that are: each taken for twice as long.

        What ends first is short: else the first to end would speak for those that are still at it.
        """
        longest = self.lengths[-1]
        if outputs.max(initial=0) <= longest:
            return self
        longer = np.sort(outputs[outputs > longest])
        return OutputLengths(np.concatenate([self.lengths, 2 * longer]))

    def expected(self, outputs: int = 0, factor: int = 1) -> int:
        """The same of one output."""
        count = len(self.lengths)
        longer = int(self.lengths.searchsorted(outputs // factor, side="right"))
        if longer == count:
            return max(outputs, 1)
        return int(self.lengths[_quartiles(count)[longer]]) * factor - outputs


@lru_cache(maxsize=1024)
def _quartiles(count: int) -> Counts:
    """By the first of `count` ascending entries: where the upper quartile of it and all after it is.

    For none of them it is the last.
    """
    first = np.arange(count + 1)
    return np.asarray(np.minimum(first + (3 * (count - first) + 3) // 4, count) - 1, np.int64)


class Outputs:
    """Owns the lengths of the last outputs that ended. Mutable."""

    def __init__(self, first_expected: int) -> None:
        """`first_expected` is as good as `GUESSES` outputs, the oldest there are."""
        self._recent: deque[int] = deque([first_expected] * GUESSES)
        self._sorted: list[int] = list(self._recent)
        self._lengths = OutputLengths(np.array(self._sorted, np.int64))

    def lengths(self) -> OutputLengths:
        return self._lengths

    def ended(self, outputs: int) -> None:
        """An output of so many tokens has ended."""
        if len(self._recent) == MEMORY:
            del self._sorted[bisect_left(self._sorted, self._recent.popleft())]
        self._recent.append(outputs)
        insort(self._sorted, outputs)
        self._lengths = OutputLengths(np.array(self._sorted, np.int64))

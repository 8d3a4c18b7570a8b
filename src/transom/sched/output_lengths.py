"""Recent output lengths, used to predict how much unfinished requests will still generate. Deterministic.

After LightLLM's Past-Future scheduler ("Past-Future Scheduler for LLM Serving under SLA Guarantees", ASPLOS
2025): an output that has reached k tokens will be like the recent outputs longer than k. The paper draws a
length at random from these; we take their upper quartile, so that the same history gives the same plans.
"""

from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

HISTORY = 128
"""Ended outputs that are remembered: enough for a steady quartile, few enough to follow changing traffic."""

PRIOR_OUTPUTS = 4
"""Outputs that the configured first estimate counts for. They hold the upper quartile until a dozen shorter
outputs have ended: it is the 12th of 15 entries, and still the 12th of 16."""

Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class OutputLengths:
    """Recent lengths in ascending order; at least one."""

    lengths: Counts

    def remaining(self, outputs: Counts) -> Counts:
        """Tokens that outputs of these lengths still generate; at least one each.

        The upper quartile of the recent lengths that are greater. An output longer than all recent ones is
        expected to double.
        """
        count = len(self.lengths)
        longer = self.lengths.searchsorted(outputs, side="right")
        expected = self.lengths[_quartiles(count)[longer]] - outputs
        return np.where(longer < count, expected, np.maximum(outputs, 1))

    def remaining_of(self, outputs: int) -> int:
        """`remaining` of one output. Without arrays, as it is asked for each waiting request."""
        count = len(self.lengths)
        longer = int(self.lengths.searchsorted(outputs, side="right"))
        if longer == count:
            return max(outputs, 1)
        return int(self.lengths[_quartiles(count)[longer]]) - outputs

    def with_unfinished(self, outputs: Counts) -> "OutputLengths":
        """Adds the unfinished outputs that are longer than all ended ones, each at twice its length.

        Short outputs end first. Without this correction, the first outputs to end after a start would stand
        for the long ones that are still running.
        """
        longest = self.lengths[-1]
        if outputs.max(initial=0) <= longest:
            return self
        longer = np.sort(outputs[outputs > longest])
        return OutputLengths(np.concatenate([self.lengths, 2 * longer]))


@lru_cache(maxsize=1024)
def _quartiles(count: int) -> Counts:
    """The upper quartile of the entries from each one on, as indices into `count` ascending entries.

    One index more than entries: past the last entry, the index of the last one.
    """
    first = np.arange(count + 1)
    # Of n entries the upper quartile is the ceil(3 n / 4)-th, and `-1` makes it an index.
    return np.asarray(np.minimum(first + (3 * (count - first) + 3) // 4, count) - 1, np.int64)


class OutputHistory:
    """Owns the lengths of the last `HISTORY` outputs that ended. Mutable."""

    def __init__(self, first_expected: int) -> None:
        """`first_expected` counts for `PRIOR_OUTPUTS` outputs, the oldest ones."""
        self._recent: deque[int] = deque([first_expected] * PRIOR_OUTPUTS)
        self._sorted: list[int] = list(self._recent)
        self._lengths = OutputLengths(np.array(self._sorted, np.int64))

    def lengths(self) -> OutputLengths:
        return self._lengths

    def add(self, outputs: int) -> None:
        """Adds an output that has ended with this many tokens."""
        if len(self._recent) == HISTORY:
            del self._sorted[bisect_left(self._sorted, self._recent.popleft())]
        self._recent.append(outputs)
        insort(self._sorted, outputs)
        # A new object, because plans may still hold the old one.
        self._lengths = OutputLengths(np.array(self._sorted, np.int64))

"""Bounds on requests in flight: in all and per key, in outputs and in prompt tokens; 429 beyond.

A server that accepts everything turns an overload into memory and into waits that no client asked for. The
bounds count requests in flight, not the engine's own queue: the count is exact at any moment, also while no
engine serves.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from transom.limits import LIMITS, Limits
from transom.server.errors import Problem, Refused

RATE_ENDINGS = 256
"""The rate is that of the last endings, at most this many: it follows the load within seconds."""


@dataclass(frozen=True, slots=True)
class Load:
    """Outputs, and tokens of prompts."""

    outputs: int = 0
    tokens: int = 0

    def __add__(self, other: "Load") -> "Load":
        return Load(self.outputs + other.outputs, self.tokens + other.tokens)

    def __sub__(self, other: "Load") -> "Load":
        return Load(self.outputs - other.outputs, self.tokens - other.tokens)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most in flight, in all and of one key."""

    whole: Load
    of_key: Load

    @classmethod
    def of(cls, limits: Limits, running: int, keys: int) -> "Bounds":
        """`running`: outputs that the engine computes at the same time; only further ones wait.

        With one key, the bounds of a key are those of the server. With several, they are half of them by
        default, so that one key's flood leaves room for the others.
        """
        share = 2 if keys > 1 else 1
        outputs = limits.queued_requests_of_key or math.ceil(limits.queued_requests / share)
        tokens = limits.queued_tokens_of_key or math.ceil(limits.queued_tokens / share)
        return cls(
            Load(running + limits.queued_requests, limits.queued_tokens), Load(running + outputs, tokens)
        )


UNBOUNDED = Bounds(Load(1 << 62, 1 << 62), Load(1 << 62, 1 << 62))
"""For a batch, whose own workers bound what is in flight."""


@dataclass(slots=True)
class QueueBounds:
    """Owns the counts of what is in flight. Mutable. `clock`: monotonic seconds."""

    bounds: Bounds = UNBOUNDED
    clock: Callable[[], float] = time.monotonic
    refused: int = 0
    """Requests that were refused."""
    _whole: Load = Load()
    _of_key: dict[str, Load] = field(default_factory=dict)
    _endings: deque[tuple[float, Load]] = field(default_factory=lambda: deque(maxlen=RATE_ENDINGS))

    @contextmanager
    def hold(self, key: str, load: Load) -> Iterator[None]:
        """Counts a request of `key` inside the block; `check` has found that it fits."""
        if not self._of_key:
            # The rate counts busy time only: it begins with the first request after an idle time.
            self._endings.clear()
            self._endings.append((self.clock(), Load()))
        self._whole += load
        self._of_key[key] = self._of_key.get(key, Load()) + load
        try:
            yield
        finally:
            self._whole -= load
            left = self._of_key.pop(key) - load
            if left != Load():
                self._of_key[key] = left
            self._endings.append((self.clock(), load))

    def check(self, key: str, load: Load) -> None:
        """Refused with 429 if a request of `key` does not fit now.

        A request that would not even fit alone is admitted when its key has nothing in flight: the limits of
        one request bound it.
        """
        held = self._of_key.get(key, Load())
        for where, have, most, keys in (
            ("this API key has", held, self.bounds.of_key, len(self._of_key)),
            ("the server has", self._whole, self.bounds.whole, 1),
        ):
            excess = have + load - most
            if have != Load() and (excess.outputs > 0 or excess.tokens > 0):
                self.refused += 1
                raise _busy(where, have, most, self._seconds(excess) * max(1, keys))

    def _seconds(self, excess: Load) -> float:
        """Time until `excess` has ended at the measured rate; infinite if nothing has ended yet."""
        start = self._endings[0][0]
        elapsed = self.clock() - start
        # The first entry is where the time begins.
        ended = sum((load for _, load in list(self._endings)[1:]), Load())
        times = [
            math.inf if done == 0 else more * elapsed / done
            for more, done in ((excess.outputs, ended.outputs), (excess.tokens, ended.tokens))
            if more > 0
        ]
        return max(times)


def _busy(where: str, have: Load, most: Load, seconds: float) -> Refused:
    retry = LIMITS.retry_seconds if math.isinf(seconds) else math.ceil(seconds)
    retry = min(max(1, retry), LIMITS.retry_seconds_at_most)
    message = (
        f"{where} {have.outputs} outputs and {have.tokens} prompt tokens in flight, and with this request "
        f"it would have more than {most.outputs} or {most.tokens}; try again in {retry} s"
    )
    headers = {"retry-after": str(retry)}
    return Refused(Problem(429, message, "rate_limit_error", None, "rate_limit_exceeded", headers))

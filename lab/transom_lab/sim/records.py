"""What became of each request, and how memory was used over time: recorded while a simulation runs."""

from array import array
from dataclasses import dataclass, field
from enum import StrEnum

from transom.kv.cache import HybridCache
from transom.steps import SpanWork
from transom.values import FinishReason


class Cause(StrEnum):
    """Why prompt tokens need not be computed, or must be."""

    ISLAND = "island"
    REPAIR = "repair"
    COLD = "cold"


@dataclass(slots=True)
class Life:
    """What became of one request. Mutable, written by the player.

    Another output of a request (n > 1) has a life of its own, and no prompt: that is the first one's.
    """

    asked_at: float
    prompt_tokens: int
    begun_at: float | None = None
    found: Cause = Cause.COLD
    """How it began when first admitted, and `cached_tokens` it did not compute then."""
    cached_tokens: int = 0
    begins: int = 0
    token_times: "array[float]" = field(default_factory=lambda: array("d"))
    ended_at: float | None = None
    reason: FinishReason | None = None
    refused: str = ""

    def begin(self, span: SpanWork, now: float) -> None:
        """It is admitted, and computes `span` first."""
        self.begins += 1
        if self.begins > 1:
            return
        self.begun_at = now
        self.cached_tokens = min(span.start, self.prompt_tokens)
        if self.cached_tokens:
            self.found = Cause.REPAIR if span.clip else Cause.ISLAND


@dataclass(frozen=True, slots=True)
class Sample:
    """A moment. Bytes are per component: read or written by requests, and cached beside that."""

    at: float
    running: int
    waiting: int
    used_bytes: tuple[int, ...]
    cached_bytes: tuple[int, ...]
    tokens: dict[Cause, int]
    """Prompt tokens of all requests that have ended, by cause."""


SAMPLES_MAX = 600


class Timeline:
    """Owns samples, about evenly spaced: when there are too many, every other one goes. Mutable."""

    def __init__(self, interval_s: float = 0.01) -> None:
        self.samples: list[Sample] = []
        self._interval_s = interval_s
        self._next_at = 0.0

    def wants(self, now: float) -> bool:
        return now >= self._next_at

    def add(self, sample: Sample) -> None:
        self.samples.append(sample)
        if len(self.samples) >= SAMPLES_MAX:
            self.samples = self.samples[::2]
            self._interval_s *= 2
        self._next_at = sample.at + self._interval_s


def memory_of(cache: HybridCache, page_bytes: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Bytes used and cached, per component."""
    stats = list(zip(cache.stats().components, page_bytes, strict=True))
    used = tuple((pool.referenced + pool.private) * size for pool, size in stats)
    return used, tuple(pool.unreferenced * size for pool, size in stats)

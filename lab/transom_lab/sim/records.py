"""Records of a simulation: one per request, and samples of memory and hits over time."""

from array import array
from dataclasses import dataclass, field
from enum import StrEnum

from transom.kv.cache import HybridCache
from transom.steps import SpanWork
from transom.values import FinishReason


class StartKind(StrEnum):
    """How a request started: at a hit, at a hit with windows to recompute, or from the first token."""

    ISLAND = "island"
    REPAIR = "repair"
    COLD = "cold"


@dataclass(slots=True)
class RequestRecord:
    """One request, or one more output of a request (n > 1). Mutable; the player writes it. Times are virtual
    seconds.

    A further output has no prompt tokens: they are counted with the first output.
    """

    sent_at: float
    prompt_tokens: int
    started_at: float | None = None
    """When the step began in which the request was first admitted."""
    start_kind: StartKind = StartKind.COLD
    """Of the first admission, as `cached_tokens`, the prompt tokens that it did not compute."""
    cached_tokens: int = 0
    admissions: int = 0
    """More than one if the request was retracted."""
    token_times: "array[float]" = field(default_factory=lambda: array("d"))
    ended_at: float | None = None
    reason: FinishReason | None = None
    refused: str = ""

    def admitted(self, span: SpanWork, now: float) -> None:
        """The request is admitted, and `span` is the first that it computes."""
        self.admissions += 1
        if self.admissions > 1:
            return  # after a retraction the request finds pages that it published itself; that is no hit
        self.started_at = now
        self.cached_tokens = min(span.start, self.prompt_tokens)
        if self.cached_tokens:
            # Only a repair must not read keys before some position: its windows there do not exist.
            self.start_kind = StartKind.REPAIR if span.clip else StartKind.ISLAND


@dataclass(frozen=True, slots=True)
class Sample:
    """The state at one moment. Bytes are by component: used by requests, and cached but unused."""

    at: float
    running: int
    waiting: int
    used_bytes: tuple[int, ...]
    cached_bytes: tuple[int, ...]
    tokens: dict[StartKind, int]
    """Prompt tokens of all requests that have ended, by kind of start; `COLD` counts computed tokens."""


SAMPLES_MAX = 600
"""Between 300 and 600 points are enough for a picture, however long the trace is."""


class Timeline:
    """Owns samples at about equal distances. Mutable. When it is full, it drops every other sample."""

    def __init__(self, interval_s: float = 0.01) -> None:
        self.samples: list[Sample] = []
        self._interval_s = interval_s
        self._next_at = 0.0

    def is_due(self, now: float) -> bool:
        return now >= self._next_at

    def add(self, sample: Sample) -> None:
        self.samples.append(sample)
        if len(self.samples) >= SAMPLES_MAX:
            self.samples = self.samples[::2]
            self._interval_s *= 2
        self._next_at = sample.at + self._interval_s


def memory_of(cache: HybridCache, page_bytes: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Bytes used by requests, and bytes cached but unused, by component."""
    stats = list(zip(cache.stats().components, page_bytes, strict=True))
    used = tuple((pool.referenced + pool.private) * size for pool, size in stats)
    return used, tuple(pool.unreferenced * size for pool, size in stats)

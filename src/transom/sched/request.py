"""What a request can be: waiting, running, or scheduled in one step. Only `Scheduled` can advance.

submit -> Waiting -> Running -> Scheduled -> Running ... -> Ended
             ^          |
             +- retract +

Further outputs of a prompt are not born before it is computed: see `siblings`.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from transom.kv.cache import Holding
from transom.steps import PromptLogprobSpan, StepWork
from transom.values import Ended, FinishReason, IdleReason, Request, RequestId, Tokens, Usage

OUTPUT_RESERVE = 256
"""Output tokens a buffer has place for at first; it doubles when more come."""

Seniority = tuple[int, RequestId]
"""Smaller is senior: arrival number less a bonus for priority, ties by id."""


@dataclass(frozen=True, slots=True)
class Span:
    """Positions `[start, end)` of one request, computed in one step. Never empty."""

    start: int
    end: int

    def __post_init__(self) -> None:
        assert 0 <= self.start < self.end, (self.start, self.end)

    def __len__(self) -> int:
        return self.end - self.start


@lru_cache(maxsize=1 << 16)
def token_span(position: int) -> Span:
    """The span of one token. Hundreds are named in each step, and the same ones again."""
    return Span(position, position + 1)


@dataclass(slots=True, eq=False)
class Progress:
    """Owns the tokens of one unfinished request: prompt, then outputs, append only. Mutable.

    Positions below `length` never change, so views of them may be handed out.
    """

    request: Request
    seniority: Seniority
    limit: int
    """Most tokens it may come to: prompt + max_tokens, cut to the served context."""
    length: int = field(init=False)
    cached_tokens: int = 0
    """Prompt tokens not computed at first admission."""
    arrived: float = 0.0
    queue_seconds: float = 0.0
    """From its arrival to its first admission."""
    admissions: int = 0
    retractions: int = 0
    computed_peak: int = 0
    """Positions below were computed, or found computed, at least once."""
    scored: int = field(init=False)
    """Prompt tokens below have their log-probabilities, or none is wanted of them."""
    _buffer: Tokens = field(init=False)

    def __post_init__(self) -> None:
        self.length = len(self.request.prompt)
        first = self.request.logprobs.prompt_from
        self.scored = self.length if first is None else max(1, first)
        assert 0 < self.length <= self.limit, (self.length, self.limit)
        self._buffer = np.empty(min(self.limit, self.length + OUTPUT_RESERVE), np.int32)
        self._buffer[: self.length] = self.request.prompt

    @property
    def id(self) -> RequestId:
        return self.request.id

    @property
    def outputs(self) -> int:
        return self.length - len(self.request.prompt)

    def samples_at(self, end: int) -> bool:
        """Whether a span that ends there reaches the last known token, and another is to follow."""
        return end == self.length < self.limit

    @property
    def has_begun(self) -> bool:
        """Whether anything of it was ever computed."""
        return self.admissions > 0 or self.outputs > 0

    @property
    def start_limit(self) -> int:
        """It must begin here or before: the last known token, or the first whose logits are wanted."""
        return (self.scored if self.scored < len(self.request.prompt) else self.length) - 1

    def scoring(self, span: Span) -> PromptLogprobSpan | None:
        """What is to be said of prompt tokens from the logits of `span`."""
        if self.scored >= len(self.request.prompt):
            return None
        start, end = max(span.start, self.scored - 1), min(span.end, len(self.request.prompt) - 1)
        return PromptLogprobSpan(start, self._buffer[start + 1 : end + 1]) if start < end else None

    @property
    def kv_limit(self) -> int:
        """Most positions ever computed: the last output is only read by the client."""
        return max(len(self.request.prompt), self.limit - 1)

    def tokens(self, end: int | None = None) -> Tokens:
        """The known tokens, or the first `end` of them; a view."""
        assert end is None or end <= self.length, (end, self.length)
        return self._buffer[: self.length if end is None else end]

    def slice(self, span: Span) -> Tokens:
        assert span.end <= self.length, (span, self.length)
        return self._buffer[span.start : span.end]

    def append(self, token: int) -> None:
        assert self.length < self.limit, (self.length, self.limit)
        if self.length == len(self._buffer):
            grown = np.empty(min(self.limit, 2 * self.length), np.int32)
            grown[: self.length] = self._buffer
            self._buffer = grown
        self._buffer[self.length] = token
        self.length += 1

    def ended(self, reason: FinishReason, message: str = "") -> Ended:
        usage = Usage(len(self.request.prompt), self.outputs, self.cached_tokens)
        return Ended(self.id, reason, usage, message, self.queue_seconds)


@dataclass(frozen=True, slots=True)
class Waiting:
    """Holds nothing. `since` is the turn in which it began to wait, `clock` what the clock said then."""

    progress: Progress
    since: int
    clock: float = 0.0


@dataclass(frozen=True, slots=True)
class Running:
    """Has a row and pages; `holding.computed` tokens of it are computed."""

    progress: Progress
    holding: Holding


class Scheduled(NamedTuple):
    """Has pages for `span` and is part of the step being computed, which checks that.

    `siblings` are to be born of it: their first tokens are chosen from the same logits.
    """

    running: Running
    span: Span
    siblings: tuple[Progress, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """One step, committed: `scheduled[i]` is computed by `work.spans[i]`."""

    work: StepWork
    scheduled: tuple[Scheduled, ...]

    def __post_init__(self) -> None:
        assert len(self.scheduled) == len(self.work.spans), (len(self.scheduled), len(self.work.spans))
        for running, span, _ in self.scheduled:
            holding = running.holding
            assert span.start == holding.computed and span.end <= holding.allocated, (span, holding)


@dataclass(frozen=True, slots=True)
class Idle:
    """Nothing to compute in this turn. `until` is the next deadline, when something may happen by itself."""

    reason: IdleReason
    until: float | None = None

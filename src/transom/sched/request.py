"""States of a request: waiting, running, or scheduled in one step. Only `Scheduled` can advance.

submit -> Waiting -> Running -> Scheduled -> Running ... -> Ended
             ^          |
             +- retract +

Siblings, the further outputs of a prompt, enter these states when the prompt is computed: see
`requests.Siblings`.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from transom.kv.cache import Holding
from transom.steps import PromptLogprobSpan, StepWork
from transom.values import Ended, FinishReason, IdleReason, Request, RequestId, Tokens, Usage

OUTPUT_RESERVE = 256
"""Output tokens that a buffer has space for at first; it doubles when they are used up."""

Seniority = tuple[int, RequestId]
"""The smaller is senior: arrival number minus a bonus for priority, ties by id."""


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
    """The span of one token. Cached, because each step needs hundreds and the same ones recur."""
    return Span(position, position + 1)


@dataclass(slots=True, eq=False)
class Progress:
    """Owns the tokens of one unfinished request: prompt, then outputs, append only. Mutable.

    Positions below `length` never change, so views of them may be handed out.
    """

    request: Request
    seniority: Seniority
    limit: int
    """Most tokens of the request: prompt + max_tokens, cut to the served context."""
    length: int = field(init=False)
    """Known tokens: prompt and outputs so far."""
    cached_tokens: int = 0
    """Prompt tokens not computed at first admission."""
    arrived: float = 0.0
    queue_seconds: float = 0.0
    """From arrival to the first admission."""
    admissions: int = 0
    computed_peak: int = 0
    """Positions below it were computed, or found computed, at least once."""
    logprobs_until: int = field(init=False)
    """Prompt tokens below it have their logprobs, or were not asked for."""
    _buffer: Tokens = field(init=False)

    def __post_init__(self) -> None:
        prompt, outputs = len(self.request.prompt), len(self.request.outputs)
        self.length = prompt + outputs
        first = self.request.logprobs.prompt_from
        # The first token of a prompt follows nothing, so it never has a logprob.
        self.logprobs_until = prompt if first is None else max(1, first)
        assert prompt > 0 and self.length <= self.limit, (prompt, outputs, self.limit)
        self._buffer = np.empty(min(self.limit, self.length + OUTPUT_RESERVE), np.int32)
        self._buffer[:prompt] = self.request.prompt
        self._buffer[prompt : self.length] = self.request.outputs

    @property
    def id(self) -> RequestId:
        return self.request.id

    @property
    def outputs(self) -> int:
        return self.length - len(self.request.prompt)

    def samples_at(self, end: int) -> bool:
        """Whether a span that ends at `end` reaches the last known token, and another token is to follow."""
        return end == self.length < self.limit  # at the limit, nothing follows: max_tokens is 0

    @property
    def has_begun(self) -> bool:
        """Whether any part of it was ever computed."""
        return self.admissions > 0 or self.outputs > 0

    @property
    def start_limit(self) -> int:
        """The latest start of its computation: its last known token, or the first with logits to return."""
        prompt = len(self.request.prompt)
        return (self.logprobs_until if self.logprobs_until < prompt else self.length) - 1

    def prompt_logprobs(self, span: Span) -> PromptLogprobSpan | None:
        """The logprobs of prompt tokens that the logits of `span` are used for, if any.

        The logits at position p give the logprob of the token at p + 1.
        """
        prompt = len(self.request.prompt)
        if self.logprobs_until >= prompt:
            return None
        # The last prompt token's logits are for the first output, so they are left out.
        start, end = max(span.start, self.logprobs_until - 1), min(span.end, prompt - 1)
        return PromptLogprobSpan(start, self._buffer[start + 1 : end + 1]) if start < end else None

    @property
    def kv_limit(self) -> int:
        """Most positions ever computed: one less than `limit`, because the last output is never fed back."""
        return max(len(self.request.prompt), self.limit - 1)

    def tokens(self, end: int | None = None) -> Tokens:
        """The known tokens, or the first `end` of them; a view."""
        assert end is None or end <= self.length, (end, self.length)
        return self._buffer[: self.length if end is None else end]

    @property
    def output_tokens(self) -> Tokens:
        """The outputs so far; a view."""
        return self._buffer[len(self.request.prompt) : self.length]

    def slice(self, span: Span) -> Tokens:
        assert span.end <= self.length, (span, self.length)
        return self._buffer[span.start : span.end]

    def append(self, token: int) -> None:
        assert self.length < self.limit, (self.length, self.limit)
        if self.length == len(self._buffer):
            # A new array, not a resize in place: steps in flight hold views of the old one.
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
    """Holds no row and no page. It began to wait in iteration `since`, at time `clock`."""

    progress: Progress
    since: int
    clock: float = 0.0


@dataclass(frozen=True, slots=True)
class Running:
    """Has a row and pages; `holding.computed` of its tokens are computed."""

    progress: Progress
    holding: Holding


class Scheduled(NamedTuple):
    """Has pages for `span` and is part of the step in flight; `Step` checks that.

    `siblings` get their first tokens from the same logits.
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
    """No step in this iteration. Before `until`, the next deadline, only a command can change this."""

    reason: IdleReason
    until: float | None = None

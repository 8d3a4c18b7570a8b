"""Frozen values shared by every layer: what models, memory, scheduler and wire all mean alike."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, NewType, Protocol

import numpy as np
from numpy.typing import NDArray

RequestId = NewType("RequestId", int)
"""Engine-wide number of a request, never reused while the engine lives."""

Tokens = NDArray[np.int32]
"""Token ids, one dimension, contiguous. Holders must not write to it."""


# ---------------------------------------------------------------- components


@dataclass(frozen=True, slots=True)
class From:
    """Every position in `[start, end)` must be resident."""

    start: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state after exactly `at` tokens must be resident."""

    at: int


Need = From | Snapshot


class ComponentSpec(Protocol):
    """A kind of memory, defined by what must be resident to compute the token at position `end`."""

    @property
    def name(self) -> str: ...

    def __hash__(self) -> int: ...

    def needed(self, end: int) -> Need: ...

    def cuts(self, start: int, end: int) -> Sequence[int]:
        """Positions in `(start, end]`, ascending, where a span must stop so that a snapshot can be kept."""
        ...


@dataclass(frozen=True, slots=True)
class Full:
    """Full attention: everything before."""

    name: str = "full"

    def needed(self, end: int) -> From:
        return From(0)

    def cuts(self, start: int, end: int) -> Sequence[int]:
        return ()


@dataclass(frozen=True, slots=True)
class Window:
    """Sliding-window attention: a query at q reads keys k with q - window < k <= q, itself included."""

    window: int
    name: str = "window"

    def __post_init__(self) -> None:
        assert self.window >= 1, self.window

    def needed(self, end: int) -> From:
        return From(max(0, end - (self.window - 1)))

    def cuts(self, start: int, end: int) -> Sequence[int]:
        return ()


@dataclass(frozen=True, slots=True)
class Chunked:
    """Chunked attention (Llama 4): a query reads the keys of its own chunk of `chunk` positions."""

    chunk: int
    name: str = "chunked"

    def __post_init__(self) -> None:
        assert self.chunk >= 1, self.chunk

    def needed(self, end: int) -> From:
        return From(end - end % self.chunk)

    def cuts(self, start: int, end: int) -> Sequence[int]:
        return ()


@dataclass(frozen=True, slots=True)
class State:
    """A recurrent state: a request's own changes with every token; snapshots are kept each `every` tokens."""

    every: int = 256
    name: str = "state"

    def __post_init__(self) -> None:
        assert self.every >= 1, self.every

    def needed(self, end: int) -> Snapshot:
        return Snapshot(end)

    def cuts(self, start: int, end: int) -> Sequence[int]:
        return range(start - start % self.every + self.every, end + 1, self.every)


# ---------------------------------------------------------------- requests


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a token is chosen. `temperature` 0 is greedy; `top_k` 0, `top_p` 1 and `min_p` 0 are off."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    DEADLINE = "deadline"
    ERROR = "error"


class PauseMode(StrEnum):
    """What becomes of those who run: they keep their pages, wait without any, or end."""

    IN_PLACE = "in_place"
    RETRACT = "retract"
    ABORT = "abort"


class UpdateMode(StrEnum):
    """What becomes of those who run when weights change: they finish first, are computed anew, or end."""

    DRAIN = "drain"
    RETRACT = "retract"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Log-probabilities wanted beside those of the tokens chosen.

    top         of so many most probable tokens, at each output and at each prompt token that is asked for
    prompt_from of the prompt's tokens from this position on; None for none. The first token has none.
    """

    top: int = 0
    prompt_from: int | None = None

    def __post_init__(self) -> None:
        assert self.top >= 0 and (self.prompt_from is None or self.prompt_from >= 0), self


NO_LOGPROBS = Logprobs()
"""Those of the tokens chosen are always told."""


@dataclass(frozen=True, slots=True)
class Sibling:
    """One more output for the same prompt, with an id and a choice of its own."""

    id: RequestId
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class Request:
    """What a client asked for, checked and tokenized.

    `salt` keeps prefixes apart: requests with different ones share nothing. `tenant` is who asks, for fair
    shares. `deadline` is in seconds of the clock that turns are told. `siblings` are further outputs of one
    computation of the prompt; each has its own events.
    """

    id: RequestId
    prompt: Tokens
    max_tokens: int
    stop_ids: frozenset[int] = frozenset()
    sampling: Sampling = Sampling()
    priority: int = 0
    salt: str = ""
    tenant: str = ""
    deadline: float | None = None
    logprobs: Logprobs = NO_LOGPROBS
    siblings: tuple[Sibling, ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a request. `cached_tokens` counts prompt tokens not computed at first admission."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Alternative:
    """One of the most probable tokens at a position, the most probable first."""

    token: int
    logprob: float


class Choice(NamedTuple):
    """A token, chosen or given. `logprob` is of the model's distribution, before temperature."""

    token: int
    logprob: float
    top: tuple[Alternative, ...] = ()


@dataclass(frozen=True, slots=True)
class PromptScored:
    """What the model says of the prompt's tokens from position `first` on. Comes before any output."""

    request: RequestId
    first: int
    scores: tuple[Choice, ...]


class TokenChosen(NamedTuple):
    """One more output token of a request. `logprob` is of the model's distribution, before temperature."""

    request: RequestId
    token: int
    logprob: float
    top: tuple[Alternative, ...] = ()


@dataclass(frozen=True, slots=True)
class Ended:
    """The one terminal event of a request."""

    request: RequestId
    reason: FinishReason
    usage: Usage
    message: str = ""
    queue_seconds: float = 0.0
    """How long it waited for its first step, or for its end if it never had one."""


Event = TokenChosen | Ended | PromptScored


# ---------------------------------------------------------------- steps: scheduler to runner and back


@dataclass(frozen=True, slots=True)
class PageCopy:
    """Copy the first `tokens` slots of page `source` to page `target`, all layers of `component`.

    A snapshot's page is one slot. Copies run in order: a later one may read what an earlier one wrote.
    """

    component: int
    source: int
    target: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Discard:
    """Give the memory of `pages` back to the system: nobody owns them. They read as anything afterwards."""

    component: int
    pages: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Scoring:
    """The logits at positions from `start` on say how probable `tokens` were, each the token after it."""

    start: int
    tokens: Tokens

    def __post_init__(self) -> None:
        assert len(self.tokens) > 0, self

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)


class SpanWork(NamedTuple):
    """Compute `tokens` at positions `[start, start + len(tokens))` of row `row`.

    A tuple, as hundreds are made for a step; a step checks its spans.

    `sampling` is None when no token is to be chosen; otherwise the one after the last is, and once more for
    each of `siblings`, from the same logits. `top` alternatives are told with each token chosen or scored.
    `clip` is the first position that components which slide may read. Of the others, keys and values of the
    tokens before `store_from` exist, and are not stored again.
    """

    request: RequestId
    row: int
    start: int
    tokens: Tokens
    sampling: Sampling | None
    clip: int = 0
    store_from: int = 0
    siblings: tuple[Sampling, ...] = ()
    scoring: Scoring | None = None
    top: int = 0

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)


@dataclass(frozen=True, slots=True)
class StepWork:
    """One forward of the model: copies, in order, then discards, then all spans. Never without spans."""

    spans: tuple[SpanWork, ...]
    copies: tuple[PageCopy, ...]
    discards: tuple[Discard, ...] = ()

    def __post_init__(self) -> None:
        assert self.spans, "a step computes something"
        for span in self.spans:
            assert 0 <= span.clip <= span.start and len(span.tokens), span
            assert span.sampling is not None or not span.siblings, span
            scoring = span.scoring
            assert scoring is None or span.start <= scoring.start < scoring.end <= span.end, span


@dataclass(frozen=True, slots=True)
class StepResult:
    """One choice per span of the step, None where none was wanted. `seconds` is what it took.

    `siblings` and `scores` have an entry per span too, one choice for each that the span asked for; they may
    be left out where no span asked.
    """

    choices: tuple[Choice | None, ...]
    seconds: float = 0.0
    siblings: tuple[tuple[Choice, ...], ...] = ()
    scores: tuple[tuple[Choice, ...], ...] = ()


class Runner(Protocol):
    """Whatever computes a step: the model, a simulator's cost model, a test's fake."""

    def run(self, work: StepWork) -> StepResult: ...

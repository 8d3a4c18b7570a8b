"""Frozen values shared by every layer: what models, memory, scheduler and wire all mean alike."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, NewType

import numpy as np
from numpy.typing import NDArray

RequestId = NewType("RequestId", int)
"""Engine-wide number of a request, never reused while the engine lives."""

Tokens = NDArray[np.int32]
"""Token ids, one dimension, contiguous. Holders must not write to it."""


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


class IdleReason(StrEnum):
    """Why an iteration of the engine computed no step."""

    NO_WORK = "no_work"
    """No request is unfinished."""
    PAUSED = "paused"
    """Requests are unfinished, and generation is paused."""
    NO_ROOM = "no_room"
    """Requests are unfinished, and no page is free for any of them.

    The scheduler's liveness rules exclude it; it is counted so that a violation shows in the metrics.
    """


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
    """A validated, tokenized request: the same object from the server's input processor to the scheduler.

    `wire` sends it as it is, so a new field needs no change there. Requests with different `salt` share no
    cached prefix. `tenant` is the unit of fair scheduling. `deadline` is in seconds of the clock that
    iterations are given; between processes that is the monotonic clock, which both read alike. `siblings` are
    further outputs from one computation of the prompt; each has events of its own.
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

    @property
    def ids(self) -> tuple[RequestId, ...]:
        """Ids of all outputs: the request's own, then one per sibling."""
        return (self.id, *(sibling.id for sibling in self.siblings))


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


class SampledToken(NamedTuple):
    """A token, chosen or given. `logprob` is of the model's distribution, before temperature."""

    token: int
    logprob: float
    top: tuple[Alternative, ...] = ()


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """What the model says of the prompt's tokens from position `first` on. Comes before any output."""

    request: RequestId
    first: int
    scores: tuple[SampledToken, ...]


class TokenSampled(NamedTuple):
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


Event = TokenSampled | Ended | PromptLogprobs

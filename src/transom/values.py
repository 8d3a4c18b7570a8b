"""Frozen values that all layers share: requests, sampling parameters and the events of a request."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, NewType

import numpy as np
from numpy.typing import NDArray

RequestId = NewType("RequestId", int)
"""Number of one output of a request. Unique within an engine, never reused."""

Tokens = NDArray[np.int32]
"""Token ids, one dimension, contiguous. Read-only by convention: the array is shared, not copied."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters. `temperature` 0 is greedy; `top_k` 0, `top_p` 1 and `min_p` 0 are off."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class LogitRules:
    """Changes to the logits before a token is sampled, as a function of the prompt and the outputs so far.

    They apply in this order; `engine/logit_rules.py` has the arithmetic. Reported log-probabilities are
    those of the model, without these changes.

    biased, bias   added to the logits of these tokens
    repetition     positive logits of tokens of prompt and outputs are divided by it, negative ones multiplied
    frequency      subtracted once for each time that a token occurs in the outputs
    presence       subtracted from tokens that occur in the outputs
    allowed        no other token is sampled
    min_tokens     before this many outputs, no stop id is sampled
    banned         sequences of tokens that the outputs do not contain
    """

    biased: Tokens | None = None
    bias: tuple[float, ...] = ()
    repetition: float = 1.0
    frequency: float = 0.0
    presence: float = 0.0
    allowed: Tokens | None = None
    min_tokens: int = 0
    banned: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        assert len(self.bias) == (0 if self.biased is None else len(self.biased)), self.bias
        assert all(self.banned), self.banned


class FinishReason(StrEnum):
    """Why an output ended."""

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
    """The effect of a pause on running requests: they keep their pages, return to the queue, or end."""

    IN_PLACE = "in_place"
    RETRACT = "retract"
    ABORT = "abort"


class UpdateMode(StrEnum):
    """The effect of a weight update on running requests: they finish first, are recomputed, or end."""

    DRAIN = "drain"
    RETRACT = "retract"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Log-probabilities to report. The sampled tokens' own are always reported.

    top          alternatives per reported token: the most probable tokens at its position
    prompt_from  first prompt position to report, if any; position 0 has no logprob: nothing precedes it
    """

    top: int = 0
    prompt_from: int | None = None

    def __post_init__(self) -> None:
        assert self.top >= 0 and (self.prompt_from is None or self.prompt_from >= 0), self


NO_LOGPROBS = Logprobs()


@dataclass(frozen=True, slots=True)
class Sibling:
    """A further output for the same prompt, with an id and sampling parameters of its own."""

    id: RequestId
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class Request:
    """A validated, tokenized request: the same object from the server's input processor to the scheduler.

    `wire` sends it as it is, so a new field needs no change there. Requests with different `salt` share no
    cached prefix. Shares are fair between keys, then between the
    tenants of each `key`; a tenant has one key. `deadline` is in
    seconds of the clock that iterations are given; between processes that is the monotonic clock, which both
    read alike. `siblings` are further outputs from one computation of the prompt; each has events of its own.

    `outputs` are tokens that another engine has already sampled for this request. The first token event is
    the token after them, with the bits that it would have had there. They count towards `max_tokens` and in
    `Usage`. A request with outputs has no siblings: each output continues as a request of its own.
    """

    id: RequestId
    prompt: Tokens
    max_tokens: int
    stop_ids: frozenset[int] = frozenset()
    sampling: Sampling = Sampling()
    priority: int = 0
    salt: str = ""
    tenant: str = ""
    key: str = ""
    deadline: float | None = None
    logprobs: Logprobs = NO_LOGPROBS
    siblings: tuple[Sibling, ...] = ()
    outputs: tuple[int, ...] = ()
    grammar: str = ""
    """Constrains the outputs, see `text/grammar.py`; empty: they are free."""
    rules: LogitRules | None = None

    def __post_init__(self) -> None:
        assert not (self.outputs and self.siblings), (self.id, self.outputs, self.siblings)

    @property
    def ids(self) -> tuple[RequestId, ...]:
        """Ids of all outputs: the request's own, then one per sibling."""
        return (self.id, *(sibling.id for sibling in self.siblings))


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of an output. `cached_tokens`: prompt tokens found in the cache at its first admission."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


class Alternative(NamedTuple):
    """One of the most probable tokens at a position. Lists of them are sorted, most probable first."""

    token: int
    logprob: float


class SampledToken(NamedTuple):
    """A token with its logprob in the model's distribution, before temperature: sampled, or of a prompt.

    Where a grammar constrains the output, the distribution is that of the tokens that the grammar allows.
    """

    token: int
    logprob: float
    top: tuple[Alternative, ...] = ()


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Log-probabilities of the prompt tokens from position `first` on. Precedes the output."""

    request: RequestId
    first: int
    tokens: tuple[SampledToken, ...]


class TokenSampled(NamedTuple):
    """The next token of an output. `logprob` is of the model's distribution, before temperature."""

    request: RequestId
    token: int
    logprob: float
    top: tuple[Alternative, ...] = ()


@dataclass(frozen=True, slots=True)
class Ended:
    """The last event of an output; each output has exactly one.

    Errors set `message`. A refusal of the request also sets `code` and `param`, as `BadRequest` has them.
    """

    request: RequestId
    reason: FinishReason
    usage: Usage
    message: str = ""
    queue_seconds: float = 0.0
    """Time until the first step, or until the end if there was no step."""
    code: str | None = None
    param: str | None = None


Event = TokenSampled | Ended | PromptLogprobs

"""The output that a client must receive for one request, token by token.

The toy model behind it samples a token as a function of all tokens before it and of the seed, so a request's
output can be computed without any engine, and every schedule must produce it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from transom.values import (
    Alternative,
    Ended,
    FinishReason,
    PromptLogprobs,
    Request,
    SampledToken,
    Sibling,
    Tokens,
    TokenSampled,
    Usage,
)

MODULUS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class ToyModel:
    """A model of `vocabulary` tokens. A small vocabulary makes the texts of strangers meet and part."""

    vocabulary: int

    def output(
        self, prompt: Sequence[int], count: int, stop_ids: frozenset[int], seed: int = 0
    ) -> tuple[int, ...]:
        """The output of a request that runs alone: `count` tokens, or fewer up to the first stop token."""
        digest = 1
        for token in prompt:
            digest = _after(digest, token)
        sampled: list[int] = []
        while len(sampled) < count:
            sampled.append(((digest >> 7) + seed) % self.vocabulary)
            if sampled[-1] in stop_ids:
                break
            digest = _after(digest, sampled[-1])
        return tuple(sampled)


def _after(digest: int, token: int) -> int:
    return (digest * 48271 + token + 11) % MODULUS


@dataclass(slots=True, eq=False)
class ExpectedOutput:
    """One output of a request, and how much of it the client has received. Mutable."""

    request: Request
    limit: int
    """Most tokens, prompt included."""
    text: tuple[int, ...]
    """The whole output."""
    tokens: Tokens = field(init=False)
    """Prompt and output."""
    received: int = 0
    """Output tokens that were streamed."""
    scored: int = field(init=False)
    """Prompt positions below this one need no more log-probabilities."""
    cached: int = 0
    """Where the first admission started to compute."""
    admissions: int = 0
    ended: Ended | None = None

    def __post_init__(self) -> None:
        prompt = self.request.prompt
        self.tokens = np.concatenate([prompt, np.array(self.text, np.int32)])
        first = self.request.logprobs.prompt_from
        self.scored = len(prompt) if first is None else min(len(prompt), max(1, first))

    @classmethod
    def of(cls, model: ToyModel, request: Request, context: int) -> "ExpectedOutput":
        prompt = request.prompt.tolist()
        limit = min(len(prompt) + request.max_tokens, context)
        text = model.output(prompt, limit - len(prompt), request.stop_ids, request.sampling.seed)
        return cls(request, limit, text)

    @property
    def known(self) -> int:
        """Tokens that may be computed by now: the prompt, and output that was sampled."""
        return len(self.request.prompt) + self.received

    @property
    def wants_token(self) -> bool:
        return self.known < self.limit

    @property
    def is_complete(self) -> bool:
        return self.received == len(self.text)

    @property
    def reason(self) -> FinishReason:
        """Why the request ends if nothing cuts it short."""
        stopped = bool(self.text) and self.text[-1] in self.request.stop_ids
        return FinishReason.STOP if stopped else FinishReason.LENGTH

    def continuation(self, siblings: tuple[Sibling, ...]) -> Request:
        """The request for all that is missing, as it goes to another engine. `siblings` have no token yet."""
        self.cached = self.admissions = 0
        outputs = self.text[: self.received]
        scored = None if self.scored == len(self.request.prompt) else self.scored
        logprobs = replace(self.request.logprobs, prompt_from=scored)
        return replace(self.request, outputs=outputs, siblings=siblings, logprobs=logprobs)

    # ------------------------------------------------------------ in the runner

    def admit(self, start: int) -> None:
        """Notes an admission that computes from `start` on. It must leave every position to be scored."""
        assert start < self.known and (self.scored == len(self.request.prompt) or start < self.scored), self
        if not self.admissions:
            self.cached = min(start, len(self.request.prompt))
        self.admissions += 1

    def next(self) -> SampledToken:
        return self.at(self.known)

    def at(self, position: int) -> SampledToken:
        """The token at `position`, of prompt or output, as the model reports it.

        The log-probabilities encode the position, so that no other token's can be mistaken for them.
        """
        assert position < len(self.tokens), ("beyond the whole output", self, position)
        top = range(self.request.logprobs.top)
        alternatives = tuple(Alternative(rank, -position - rank) for rank in top)
        return SampledToken(int(self.tokens[position]), -float(position), alternatives)

    # ------------------------------------------------------------ at the client

    def receive(self, event: TokenSampled) -> None:
        """Asserts that `event` is the next token of the output, after all scores of the prompt."""
        assert self.scored == len(self.request.prompt), ("a token before all scores", event, self)
        assert SampledToken(event.token, event.logprob, event.top) == self.next(), ("token", event, self)
        self.received += 1

    def score(self, event: PromptLogprobs) -> None:
        """Asserts that `event` has the next scores of the prompt."""
        assert event.tokens and event.first == self.scored, (event, self)
        right = tuple(self.at(event.first + offset) for offset in range(len(event.tokens)))
        self.scored += len(right)
        assert event.tokens == right and self.scored <= len(self.request.prompt), (event, self)

    def end(self, event: Ended) -> None:
        """Asserts the usage of a request that ended."""
        assert event.usage == Usage(len(self.request.prompt), self.received, self.cached), (event, self)
        # A numpy integer compares equal, and fails only later, when it is encoded for the wire.
        assert type(event.usage.cached_tokens) is int, ("cannot be encoded", event)
        self.ended = event

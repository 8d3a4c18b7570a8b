"""One request as it is seen from outside: what it must say, in which order, and when it must be over."""

from dataclasses import dataclass, field

import numpy as np

from transom.values import (
    Ended,
    FinishReason,
    PromptLogprobs,
    Request,
    RequestId,
    SampledToken,
    Tokens,
    TokenSampled,
    Usage,
)
from transom_lab.faults.text import choice, output


@dataclass(slots=True, eq=False)
class Asked:
    """One accepted request, and all that was heard of it. Mutable."""

    request: Request
    seniority: tuple[int, int]
    limit: int
    """Most tokens it may come to."""
    sent: int
    """Turns there were before it came."""
    due: int = 0
    """The turn in which it must have ended."""
    text: tuple[int, ...] = field(init=False)
    tokens: Tokens = field(init=False)
    """The prompt and all of the text."""
    heard: int = 0
    scored: int = field(init=False)
    """Prompt positions below were scored, or none of them was asked for."""
    cached: int = 0
    """Where it first began."""
    admissions: int = 0
    first: RequestId | None = None
    """Whose first token it waits for, to be born; None once it is."""
    unborn: list[RequestId] = field(default_factory=list)
    """Outputs that wait for this one's first token."""
    ended: Ended | None = None

    def __post_init__(self) -> None:
        request, prompt = self.request, self.request.prompt.tolist()
        self.text = output(prompt, self.limit - len(prompt), request.stop_ids, request.sampling.seed)
        self.tokens = np.array([*prompt, *self.text], np.int32)
        first = request.logprobs.prompt_from
        self.scored = len(prompt) if first is None else min(len(prompt), max(1, first))

    @property
    def known(self) -> int:
        return len(self.request.prompt) + self.heard

    @property
    def wants_token(self) -> bool:
        return self.known < self.limit

    @property
    def is_said(self) -> bool:
        return self.heard == len(self.text)

    @property
    def reason(self) -> FinishReason:
        """Why it ends when nothing cuts it short."""
        stopped = bool(self.text) and self.text[-1] in self.request.stop_ids
        return FinishReason.STOP if stopped else FinishReason.LENGTH

    # ------------------------------------------------------------ what the runner says

    def begin(self, start: int) -> None:
        """It was given a row, and computes from `start` on."""
        assert start < self.known and (self.scored == len(self.request.prompt) or start < self.scored), self
        if not self.admissions:
            self.cached = start
        self.admissions += 1

    def next(self) -> SampledToken:
        return self.at(self.known)

    def at(self, position: int) -> SampledToken:
        """The token of this position, chosen or given."""
        assert position < len(self.tokens), ("more than the whole text", self, position)
        return choice(int(self.tokens[position]), position, self.request.logprobs.top)

    # ------------------------------------------------------------ what is heard

    def hear(self, event: TokenSampled) -> None:
        """The next token of the text and no other."""
        assert self.scored == len(self.request.prompt), ("a token before all scores", event, self)
        assert SampledToken(event.token, event.logprob, event.top) == self.next(), ("token", event, self)
        self.heard += 1

    def score(self, event: PromptLogprobs) -> None:
        """The next scores of the prompt and no others."""
        assert event.tokens and event.first == self.scored, (event, self)
        right = tuple(self.at(event.first + place) for place in range(len(event.tokens)))
        self.scored += len(right)
        assert event.tokens == right and self.scored <= len(self.request.prompt), (event, self)

    def end(self, event: Ended) -> None:
        assert event.usage == Usage(len(self.request.prompt), self.heard, self.cached), (event, self)
        assert type(event.usage.cached_tokens) is int, ("cannot be sent", event)
        self.ended = event

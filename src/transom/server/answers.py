"""From engine tokens to the text of an answer: the same steps whether it is streamed or not."""

from dataclasses import dataclass
from typing import NamedTuple

from transom import wire
from transom.server.errors import Refused, bad_request, internal
from transom.server.text import ModelText
from transom.text.stops import StopMatcher
from transom.values import FinishReason, Usage

LOWEST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON cannot write; OpenAI's number."""


class TokenLogprob(NamedTuple):
    """One output token for the client: its bytes and where its text begins in the answer, in characters."""

    piece: bytes
    logprob: float
    offset: int


@dataclass(frozen=True, slots=True)
class Delta:
    """What an answer gained since the last one was taken."""

    text: str
    logprobs: tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True)
class Rules:
    """What all answers of one HTTP request have in common. `param` is what it calls its prompt."""

    text: ModelText
    stop: tuple[str, ...]
    stop_ids: frozenset[int]
    logprobs: bool
    param: str


class Answer:
    """One choice in the making. Mutable; fed in order with the replies of one engine request."""

    def __init__(self, index: int, rules: Rules) -> None:
        self.index = index
        self.tokens = 0
        """Output tokens delivered: all up to the one that completed a stop string."""
        self.finish: str | None = None
        self.usage: Usage | None = None
        """The engine's count, once its last word has come."""
        self._rules = rules
        self._detokenizer = rules.text.detokenizer()
        self._stops = StopMatcher(rules.stop)
        self._pending: list[str] = []
        self._logprobs: list[TokenLogprob] = []
        self._length = 0

    def token(self, out: wire.TokenOut) -> None:
        """One more token; ignored after a stop string, when the engine was only slower to hear of it."""
        if self.finish is not None:
            return
        self.tokens += 1
        offset = self._length
        if out.token not in self._rules.stop_ids:
            self._add(self._detokenizer.feed(out.token))
        if self._rules.logprobs:
            piece, logprob = self._rules.text.piece(out.token), max(out.logprob, LOWEST_LOGPROB)
            self._logprobs.append(TokenLogprob(piece, logprob, offset))

    def end(self, out: wire.EndOut) -> None:
        """The engine's last word. Refused if it is an error."""
        self.usage = out.usage
        if self.finish is not None:
            return
        if out.reason in (FinishReason.ERROR, FinishReason.ABORT):
            raise _failure(out, self._rules.param)
        self._add(self._detokenizer.finish())
        if self.finish is None:
            self._pending.append(self._stops.finish())
            self.finish = out.reason.value

    def take(self) -> Delta:
        delta = Delta("".join(self._pending), tuple(self._logprobs))
        self._pending.clear()
        self._logprobs.clear()
        return delta

    def _add(self, text: str) -> None:
        if not text:
            return
        self._length += len(text)
        released = self._stops.feed(text)
        self._pending.append(released.text)
        if released.stop is not None:
            self.finish = FinishReason.STOP.value


def _failure(out: wire.EndOut, param: str) -> Refused:
    """A refusal carries a code; without one it is the engine's own failure."""
    if out.code is not None:
        return bad_request(out.message, param if out.param == "prompt" else out.param, out.code)
    message = out.message or "the engine gave up on this request"
    return Refused(internal(message))

"""From engine tokens to the text of an answer: the same steps whether it is streamed or not."""

from dataclasses import dataclass
from typing import NamedTuple

from transom import wire
from transom.server.errors import Refused, bad_request, internal, unavailable
from transom.text.model_text import ModelText
from transom.text.stops import StopMatcher
from transom.values import FinishReason, Tokens, Usage

LOWEST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON cannot write; OpenAI's number."""


class TokenLogprob(NamedTuple):
    """One token for the client: its bytes and where its text begins in the answer, in characters.

    `logprob` is None of a prompt's first token, before which there is nothing. `top` are the most probable
    tokens at its place.
    """

    piece: bytes
    logprob: float | None
    offset: int
    top: tuple[tuple[bytes, float], ...] = ()


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
    """One choice in the making. Mutable; fed in order with the replies of one engine request.

    With `echo`, the prompt is its beginning: at once, or token by token as log-probabilities of it come.
    """

    def __init__(self, index: int, rules: Rules, echo: Tokens | None = None) -> None:
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
        self._echo = iter(_spelled(rules.text, echo)) if echo is not None else iter(())
        if rules.logprobs:
            self._repeat(next(self._echo, None), None, ())
        else:
            self._pending += [text for _, text in self._echo]

    def score(self, out: wire.PromptLogprobOut) -> None:
        """The engine's word on the next token of the prompt."""
        self._repeat(next(self._echo, None), out.logprob, out.top)

    def _repeat(
        self, token: tuple[int, str] | None, logprob: float | None, top: tuple[tuple[int, float], ...]
    ) -> None:
        if token is None:
            return
        number, text = token
        self._told(number, logprob, top, self._length)
        self._pending.append(text)
        self._length += len(text)

    def token(self, out: wire.TokenOut) -> None:
        """One more token; ignored after a stop string, when the engine was only slower to hear of it."""
        if self.finish is not None:
            return
        self.tokens += 1
        offset = self._length
        if out.token not in self._rules.stop_ids:
            self._add(self._detokenizer.feed(out.token))
        if self._rules.logprobs:
            self._told(out.token, out.logprob, out.top, offset)

    def end(self, out: wire.EndOut) -> None:
        """The engine's last word. Refused if it is an error."""
        self.usage = out.usage
        if self.finish is not None:
            return
        if out.reason is FinishReason.ERROR:
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

    def _told(
        self, token: int, logprob: float | None, top: tuple[tuple[int, float], ...], offset: int
    ) -> None:
        piece = self._rules.text.piece
        self._logprobs.append(
            TokenLogprob(
                piece(token),
                None if logprob is None else _finite(logprob),
                offset,
                tuple((piece(other), _finite(value)) for other, value in top),
            )
        )

    def _add(self, text: str) -> None:
        if not text:
            return
        self._length += len(text)
        released = self._stops.feed(text)
        self._pending.append(released.text)
        if released.stop is not None:
            self.finish = FinishReason.STOP.value


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST_LOGPROB)


def _spelled(text: ModelText, tokens: Tokens) -> list[tuple[int, str]]:
    """Tokens, each with the text it completes; of what is left incomplete, the last has it."""
    detokenizer = text.detokenizer()
    spelled = [(token, detokenizer.feed(token)) for token in tokens.tolist()]
    last, said = spelled[-1]
    return [*spelled[:-1], (last, said + detokenizer.finish())]


def _failure(out: wire.EndOut, param: str) -> Refused:
    """A refusal carries a code; without one it is the engine's own failure."""
    if out.code == "shutting_down":
        return Refused(unavailable(out.message))
    if out.code is not None:
        return bad_request(out.message, param if out.param == "prompt" else out.param, out.code)
    message = out.message or "the engine gave up on this request"
    return Refused(internal(message))

"""The text of one output, from its first token to its last: the server and `LLM` share it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from transom.text.detokenize import Detokenizer
from transom.text.stops import NO_STOPS, StopMatcher, StopStrings
from transom.values import FinishReason, SampledToken, Tokens, Usage


class TokenLogprob(NamedTuple):
    """One token of an output, with its log-probability.

    `logprob` is None for the first token of a prompt: nothing precedes it, so the model has no opinion.
    `offset` is where the token's text begins in the output, in characters. `top` lists the most probable
    tokens at this position with their log-probabilities.
    """

    token: int
    logprob: float | None
    offset: int
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Delta:
    """Text and tokens added to an output since the previous `OutputText.take`.

    `tokens` is empty unless log-probabilities are wanted. The two need not match: text that may begin a stop
    string is held back, while its tokens are delivered at once.
    """

    text: str
    tokens: tuple[TokenLogprob, ...]
    ids: tuple[int, ...] = ()
    """Output tokens, if they are wanted by id."""


@dataclass(frozen=True, slots=True)
class OutputRules:
    """Settings that all outputs of one request share."""

    detokenizer: Callable[[], Detokenizer]
    """Makes a detokenizer; each text stream needs one of its own."""
    stops: StopStrings = NO_STOPS
    stop_ids: frozenset[int] = frozenset()
    """Tokens that end the output and add no text."""
    logprobs: bool = False
    """Whether tokens are delivered with their log-probabilities, or text only."""
    top: int | None = None
    """The most probable tokens delivered with each; without a number, all that the engine sends."""
    ids: bool = False
    """Whether output tokens are delivered by id, too."""
    include_stop: bool = False
    """Whether the text contains what ended the output: the stop string, or the text of a stop token."""
    min_tokens: int = 0
    """Text of tokens before this number is not searched for stop strings."""
    told_stop_ids: frozenset[int] = frozenset()
    """Stop tokens that the client has named: it learns which one ended the output."""


class OutputText:
    """Turns the tokens of one output into text and log-probabilities, and cuts it at a stop string. Mutable.

    With `echo`, the output begins with the prompt. If log-probabilities are wanted, the prompt's tokens
    arrive one by one through `add_prompt_logprob`; otherwise the whole prompt is delivered at once.
    """

    def __init__(self, rules: OutputRules, echo: Tokens | None = None) -> None:
        self.tokens = 0
        """Output tokens so far; the one that completes a stop string is the last to count."""
        self.finish: FinishReason | None = None
        """Set by a stop string before the engine has ended the request, otherwise by `end`."""
        self.stop: str | int | None = None
        """The stop string, or the token that the client has named, that ended the output."""
        self.usage: Usage | None = None
        """The engine's token counts, set by `end`."""
        self._rules = rules
        self._detokenizer = rules.detokenizer()
        self._stops = StopMatcher(rules.stops)
        self._text: list[str] = []
        self._tokens: list[TokenLogprob] = []
        self._ids: list[int] = []
        self._last: int | None = None
        self.prompt_logprobs: list[SampledToken] = []
        """Prompt tokens from the second on, as the engine has reported them."""
        self._length = 0
        """Characters of the output so far, including characters held back for a stop string."""
        prompt = _with_texts(rules.detokenizer(), echo) if echo is not None else []
        self._prompt = iter(prompt)
        """Prompt tokens still to be echoed."""
        if rules.logprobs:
            # The engine sends no log-probability for the first token of a prompt.
            self.add_prompt_logprob(None)
        else:
            self._text += [text for _, text in prompt]

    @property
    def ended(self) -> bool:
        """Whether the engine has ended the request: no more events arrive."""
        return self.usage is not None

    def add_prompt_logprob(self, logprob: float | None, top: tuple[tuple[int, float], ...] = ()) -> None:
        """Deliver the next prompt token, in order. Without `echo` nothing happens."""
        echoed = next(self._prompt, None)
        if echoed is not None:
            token, text = echoed
            self._tokens.append(TokenLogprob(token, logprob, self._length, top[: self._rules.top]))
            self._text.append(text)
            self._length += len(text)

    def add(self, token: int, logprob: float, top: tuple[tuple[int, float], ...] = ()) -> bool:
        """Append a sampled token. Returns True if it completes a stop string: the caller aborts the request.

        The engine samples on until the abort reaches it, so tokens after a stop string are ignored.
        """
        if self.finish is not None:
            return False
        self.tokens += 1
        self._last = token
        # A token's text begins behind all earlier text, even if a part of that is still held back.
        offset = self._length
        if self._rules.include_stop or token not in self._rules.stop_ids:
            self._append(self._detokenizer.feed(token))
        if self._rules.logprobs:
            self._tokens.append(TokenLogprob(token, logprob, offset, top[: self._rules.top]))
        if self._rules.ids:
            self._ids.append(token)
        return self.finish is not None

    def end(self, reason: FinishReason, usage: Usage) -> None:
        """The engine has ended the request. An output that met a stop string keeps the reason STOP."""
        # The engine may have sampled a few tokens past a stop string: they are not charged to the client.
        self.usage = replace(usage, completion_tokens=self.tokens)
        if self.finish is not None:
            return
        # Bytes of an incomplete character become U+FFFD, which in turn may complete a stop string.
        self._append(self._detokenizer.finish())
        if self.finish is None:
            self._text.append(self._stops.finish())
            self.finish = reason
            if reason is FinishReason.STOP and self._last in self._rules.told_stop_ids:
                self.stop = self._last

    def take(self) -> Delta:
        """Text and tokens to deliver now."""
        delta = Delta("".join(self._text), tuple(self._tokens), tuple(self._ids))
        self._text.clear()
        self._ids.clear()
        self._tokens.clear()
        return delta

    def _append(self, text: str) -> None:
        if not text:
            return
        self._length += len(text)
        if self.tokens < self._rules.min_tokens:
            self._text.append(text)
            return
        released = self._stops.feed(text)
        self._text.append(released.text)
        if released.stop is not None:
            if self._rules.include_stop:
                self._text.append(released.stop)
            self.finish, self.stop = FinishReason.STOP, released.stop


def _with_texts(detokenizer: Detokenizer, tokens: Tokens) -> Sequence[tuple[int, str]]:
    """Each token with the text it completes; the last one also has the rest of an incomplete character."""
    texts = [(token, detokenizer.feed(token)) for token in tokens.tolist()]
    if texts:
        last, text = texts[-1]
        texts[-1] = last, text + detokenizer.finish()
    return texts

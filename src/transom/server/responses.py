"""Response bodies and stream chunks of both endpoints.

A chunk is assembled from bytes that are encoded once per response: a server sends thousands of chunks per
second, and encoding competes with the engine for cores.
"""

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
from starlette.responses import Response

from transom.json_text import escape_separators
from transom.server.errors import Problem
from transom.server.tools import ToolChoices
from transom.text.output import Delta, TokenLogprob
from transom.values import FinishReason, SampledToken

DONE = b"data: [DONE]\n\n"
LOGPROB_MIN = -9999.0
"""Replaces minus infinity, which JSON cannot express. OpenAI's API uses the same number."""
_CAUSES = (FinishReason.ABORT, FinishReason.DEADLINE)
Stop = str | int | None
"""The stop string, or the token that the client has named, that ended an output."""
Piece = Callable[[int], bytes]
"""The bytes that a token stands for."""

_json = msgspec.json.Encoder().encode


class PromptDetails(msgspec.Struct, frozen=True):
    cached_tokens: int


class UsageBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """`usage`. The details are absent while the request runs: cached tokens are known at its end."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails | None = None


class Choice(msgspec.Struct, frozen=True):
    """One finished output: OpenAI's `choice`."""

    index: int
    delta: Delta
    finish: FinishReason | None
    prompt_logprobs: Sequence[SampledToken] = ()
    stop: Stop = None


@dataclass(frozen=True, slots=True)
class Contents:
    """What the answer to one request contains beside texts.

    null_usage     chunks have a null `usage`, because it follows at the end
    names_are_ids  log-probabilities name tokens by id
    outputs        choices of each prompt
    prompts        the tokens of the prompts, for the first choice of each; all choices then have their own
    prompt_top     the most probable tokens listed for each token of the prompt, if any is reported
    weights        identity of the weights that serve now; empty if they were not read from a file
    """

    null_usage: bool = False
    logprobs: bool = False
    names_are_ids: bool = False
    outputs: int = 1
    prompts: Sequence[Sequence[int]] | None = None
    prompt_top: int | None = None
    weights: Callable[[], str] = str


class ResponseFormat(Protocol):
    """How one endpoint formats its responses. Chunks are framed as server-sent events."""

    def opening(self, index: int) -> bytes:
        """The chunk before an output's first text; may be empty."""
        ...

    def chunk(self, index: int, delta: Delta, usage: UsageBody | None) -> bytes: ...

    def ending(
        self, index: int, finish: FinishReason, usage: UsageBody | None, stop: Stop = None
    ) -> bytes: ...

    def usage(self, usage: UsageBody) -> bytes: ...

    def whole(self, choices: Sequence[Choice], usage: UsageBody) -> bytes:
        """The body of a response that is not streamed."""
        ...


def json_response(value: object) -> Response:
    return Response(_json(value), media_type="application/json")


def _finish(reason: FinishReason | None, stop: Stop) -> dict[str, Stop]:
    """`finish_reason`, one of OpenAI's, because typed clients refuse any other; and the cause if it differs.

    An output that was cut, by an abort or a deadline, is incomplete like one that reached its length.
    """
    if reason in _CAUSES:
        return {"finish_reason": FinishReason.LENGTH, "finish_cause": reason}
    # vLLM's field.
    return {"finish_reason": reason} if stop is None else {"finish_reason": reason, "stop_reason": stop}


def error_event(problem: Problem) -> bytes:
    return b"data: %b\n\n" % problem.body()


class _Frame:
    """The fields that all chunks of one response share, encoded."""

    def __init__(self, kind: str, model: str, prefix: str, contents: Contents) -> None:
        fields = {
            "id": f"{prefix}-{secrets.token_hex(12)}",
            "object": kind,
            "created": int(time.time()),
            "model": model,
        }
        self.fields = fields
        # The object's closing brace is cut off, so that `choices` can follow.
        self._head = b"data: " + _json(fields)[:-1] + b',"choices":['
        # OpenAI's clients expect `"usage": null` in every chunk if usage follows at the end.
        self._tail = b',"usage":null}\n\n' if contents.null_usage else b"}\n\n"
        self._weights = contents.weights

    def chunk(self, choice: bytes, usage: UsageBody | None, more: bytes = b"") -> bytes:
        """`more`: further fields of the chunk, encoded, each behind a comma."""
        choice = escape_separators(choice)
        if usage is None:
            return b"%b%b]%b%b" % (self._head, choice, more, self._tail)
        return b'%b%b]%b,"usage":%b}\n\n' % (self._head, choice, more, _json(usage))

    def last(self, choice: bytes, usage: UsageBody | None) -> bytes:
        """The last chunk of an output."""
        return self.chunk(choice, usage, _more(self._version()))

    def whole(
        self, kind: str, choices: list[dict[str, object]], usage: UsageBody, more: dict[str, object]
    ) -> bytes:
        fields = {**self.fields, "object": kind, "choices": choices, "usage": usage}
        return _json({**fields, **self._version(), **more})

    def _version(self) -> dict[str, object]:
        """Read at the end: the weights that computed the last token."""
        version = self._weights()
        return {"weights_version": version} if version else {}


def _text(piece: bytes) -> str:
    """A token's text. A token that is a part of a character is spelled in bytes, as by OpenAI."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return _spelled(piece)


def _spelled(piece: bytes) -> str:
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def _finite(logprob: float | None) -> float | None:
    return None if logprob is None else max(logprob, LOGPROB_MIN)


class _Tokens:
    """Names of tokens and lists of ids, as `contents` asks for them."""

    def __init__(self, piece: Piece, contents: Contents) -> None:
        self._piece = piece
        self.contents = contents

    def name(self, token: int) -> str:
        return f"token_id:{token}" if self.contents.names_are_ids else _text(self._piece(token))

    def names(self, token: int) -> tuple[str, ...]:
        """Names of a token, in order of preference."""
        last = f"token_id:{token}"
        piece = self._piece(token)
        return (last,) if self.contents.names_are_ids else (_text(piece), _spelled(piece), last)

    def more_of_choice(self, delta: Delta) -> dict[str, object]:
        return {} if self.contents.prompts is None else {"token_ids": delta.ids}

    def more_of_prompt(self, index: int, logprobs: Sequence[SampledToken]) -> dict[str, object]:
        """The tokens of a choice's prompt, and their log-probabilities in vLLM's form.

        Only the first choice of each prompt has them: `n` must not multiply the size of an answer.
        """
        prompt, output = divmod(index, self.contents.outputs)
        more: dict[str, object] = {}
        if output:
            return more
        if self.contents.prompts is not None:
            more["prompt_token_ids"] = self.contents.prompts[prompt]
        if self.contents.prompt_top is not None:
            # Nothing precedes the first token.
            more["prompt_logprobs"] = [None, *map(self._prompt_logprob, logprobs)]
        return more

    def _prompt_logprob(self, sampled: SampledToken) -> dict[str, object]:
        top = sampled.top[: self.contents.prompt_top]
        # The engine counts no ranks beyond the list.
        ranks = {token: rank for rank, (token, _) in enumerate(top, 1)}
        listed = {sampled.token: sampled.logprob, **dict(top)}
        return {
            str(token): {
                "logprob": _finite(logprob),
                "rank": ranks.get(token),
                "decoded_token": self.name(token),
            }
            for token, logprob in listed.items()
        }


def _more(fields: dict[str, object]) -> bytes:
    """Further fields of an object that is encoded by parts, each behind a comma."""
    return b"," + _json(fields)[1:-1] if fields else b""


# ---------------------------------------------------------------- /v1/completions


class CompletionFormat:
    """`text_completion`, for whole responses and chunks alike."""

    def __init__(self, model: str, piece: Piece, contents: Contents) -> None:
        self._frame = _Frame("text_completion", model, "cmpl", contents)
        self._tokens = _Tokens(piece, contents)
        self._with_logprobs = contents.logprobs

    def opening(self, index: int) -> bytes:
        more = self._tokens.more_of_prompt(index, ())
        choice = b'{"index":%d,"text":"","logprobs":null,"finish_reason":null%b}'
        return self._frame.chunk(choice % (index, _more(more)), None) if more else b""

    def chunk(self, index: int, delta: Delta, usage: UsageBody | None) -> bytes:
        choice = b'{"index":%d,"text":%b,"logprobs":%b,"finish_reason":null%b}' % (
            index,
            _json(delta.text),
            _json(self._logprobs(delta)),
            _more(self._tokens.more_of_choice(delta)),
        )
        return self._frame.chunk(choice, usage)

    def ending(self, index: int, finish: FinishReason, usage: UsageBody | None, stop: Stop = None) -> bytes:
        choice = b'{"index":%d,"text":"","logprobs":null,%b'
        return self._frame.last(choice % (index, _json(_finish(finish, stop))[1:]), usage)

    def usage(self, usage: UsageBody) -> bytes:
        return self._frame.chunk(b"", usage)

    def whole(self, choices: Sequence[Choice], usage: UsageBody) -> bytes:
        return self._frame.whole("text_completion", [self._choice(choice) for choice in choices], usage, {})

    def _choice(self, choice: Choice) -> dict[str, object]:
        return {
            "index": choice.index,
            "text": choice.delta.text,
            "logprobs": self._logprobs(choice.delta),
            **_finish(choice.finish, choice.stop),
            **self._tokens.more_of_choice(choice.delta),
            **self._tokens.more_of_prompt(choice.index, choice.prompt_logprobs),
        }

    def _logprobs(self, delta: Delta) -> dict[str, object] | None:
        if not self._with_logprobs:
            return None
        named = [self._names(entry) for entry in delta.tokens]
        return {
            "tokens": [names[entry.token] for entry, names in zip(delta.tokens, named, strict=True)],
            "token_logprobs": [_finite(entry.logprob) for entry in delta.tokens],
            "top_logprobs": [
                None
                if entry.logprob is None
                else {names[token]: _finite(logprob) for token, logprob in _listed(entry)}
                for entry, names in zip(delta.tokens, named, strict=True)
            ],
            "text_offset": [entry.offset for entry in delta.tokens],
        }

    def _names(self, entry: TokenLogprob) -> dict[int, str]:
        """The names of the listed tokens, each of which occurs once.

        Pieces may have equal texts, such as a letter and its byte. The likeliest has the plain text.
        """
        names: dict[str, int] = {}
        for token, _ in _listed(entry):
            names[next(name for name in self._tokens.names(token) if name not in names)] = token
        return {token: name for name, token in names.items()}


def _listed(entry: TokenLogprob) -> list[tuple[int, float | None]]:
    """The most probable tokens, and the sampled one, which need not be among them."""
    listed: dict[int, float | None] = dict(entry.top)
    listed.setdefault(entry.token, entry.logprob)
    return list(listed.items())


# ---------------------------------------------------------------- /v1/chat/completions


_CHAT_CHOICE = b'{"index":%d,"delta":%b,"logprobs":%b,"finish_reason":null%b}'
_CHAT_END = b'{"index":%d,"delta":%b,"logprobs":null,%b'


class ChatFormat:
    """`chat.completion`, or `chat.completion.chunk` with deltas."""

    def __init__(
        self, model: str, piece: Piece, contents: Contents, tools: ToolChoices | None = None
    ) -> None:
        self._frame = _Frame("chat.completion.chunk", model, "chatcmpl", contents)
        self._tools = tools
        self._piece = piece
        self._tokens = _Tokens(piece, contents)
        self._with_logprobs = contents.logprobs

    def opening(self, index: int) -> bytes:
        # OpenAI's chat streams begin with a chunk that has the role and no content.
        delta = b'{"role":"assistant","content":""}'
        # All choices of a chat have one prompt.
        more = _more(self._tokens.more_of_prompt(index, ()))
        return self._frame.chunk(_CHAT_CHOICE % (index, delta, b"null", b""), None, more)

    def chunk(self, index: int, delta: Delta, usage: UsageBody | None) -> bytes:
        if self._tools is None:
            content = b'{"content":%b}' % _json(delta.text)
        else:
            content = _json(self._tools.delta(index, delta.text))
            if content == b"{}" and not (delta.tokens or delta.ids):
                return b""
        more = _more(self._tokens.more_of_choice(delta))
        choice = _CHAT_CHOICE % (index, content, _json(self._logprobs(delta)), more)
        return self._frame.chunk(choice, usage)

    def ending(self, index: int, finish: FinishReason, usage: UsageBody | None, stop: Stop = None) -> bytes:
        last = {} if self._tools is None else self._tools.delta(index, "", final=True)
        end = _CHAT_END % (index, _json(last), _json(self._finish(index, finish, stop))[1:])
        return self._frame.last(end, usage)

    def _finish(self, index: int, reason: FinishReason | None, stop: Stop) -> dict[str, Stop]:
        called = self._tools is not None and self._tools.has_called(index)
        finish = _finish(reason, stop)
        return {**finish, "finish_reason": "tool_calls"} if called and reason is FinishReason.STOP else finish

    def usage(self, usage: UsageBody) -> bytes:
        return self._frame.chunk(b"", usage)

    def whole(self, choices: Sequence[Choice], usage: UsageBody) -> bytes:
        more = self._tokens.more_of_prompt(0, choices[0].prompt_logprobs)
        return self._frame.whole("chat.completion", [self._choice(choice) for choice in choices], usage, more)

    def _choice(self, choice: Choice) -> dict[str, object]:
        text = choice.delta.text
        said = {"content": text} if self._tools is None else self._tools.message(choice.index, text)
        return {
            "index": choice.index,
            "message": {"role": "assistant", "refusal": None, **said},
            "logprobs": self._logprobs(choice.delta),
            **self._finish(choice.index, choice.finish, choice.stop),
            **self._tokens.more_of_choice(choice.delta),
        }

    def _logprobs(self, delta: Delta) -> dict[str, object] | None:
        if not self._with_logprobs:
            return None
        content = [
            {
                **self._entry(entry.token, entry.logprob),
                "top_logprobs": [self._entry(token, logprob) for token, logprob in entry.top],
            }
            for entry in delta.tokens
        ]
        return {"content": content, "refusal": None}

    def _entry(self, token: int, logprob: float | None) -> dict[str, object]:
        return {
            "token": self._tokens.name(token),
            "logprob": _finite(logprob),
            "bytes": list(self._piece(token)),
        }

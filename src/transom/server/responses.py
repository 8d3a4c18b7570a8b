"""The bodies of answers, whole and in chunks.

Chunks are put together from bytes made once per response: thousands are sent per second, by a process
that shares its cores with the engine.
"""

import secrets
import time
from collections.abc import Sequence
from typing import Protocol

import msgspec
from starlette.responses import Response

from transom.server.errors import Problem
from transom.server.output_processor import Delta, TokenLogprob

DONE = b"data: [DONE]\n\n"
_json = msgspec.json.Encoder().encode


class PromptDetails(msgspec.Struct, frozen=True):
    cached_tokens: int


class UsageBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """`usage`; while a stream is going on the cached tokens are not told yet."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails | None = None


class Choice(msgspec.Struct, frozen=True):
    """A finished answer."""

    index: int
    delta: Delta
    finish: str


class Shape(Protocol):
    """How one endpoint words its answers. Chunks come framed as server-sent events."""

    def opening(self, index: int) -> bytes: ...

    def chunk(self, index: int, delta: Delta, usage: UsageBody | None) -> bytes: ...

    def ending(self, index: int, finish: str, usage: UsageBody | None) -> bytes: ...

    def usage(self, usage: UsageBody) -> bytes: ...

    def whole(self, choices: Sequence[Choice], usage: UsageBody) -> bytes: ...


def json_response(value: object) -> Response:
    return Response(_json(value), media_type="application/json")


def error_event(problem: Problem) -> bytes:
    return b"data: %b\n\n" % problem.body()


class _Frame:
    """What all chunks of one response have in common."""

    def __init__(self, kind: str, model: str, prefix: str, *, null_usage: bool) -> None:
        fields = {
            "id": f"{prefix}-{secrets.token_hex(12)}",
            "object": kind,
            "created": int(time.time()),
            "model": model,
        }
        self.fields = fields
        self._head = b"data: " + _json(fields)[:-1] + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if null_usage else b"]}\n\n"

    def chunk(self, choice: bytes, usage: UsageBody | None) -> bytes:
        if usage is None:
            return self._head + choice + self._tail
        return b'%b%b],"usage":%b}\n\n' % (self._head, choice, _json(usage))

    def whole(self, kind: str, choices: list[dict[str, object]], usage: UsageBody) -> bytes:
        return _json({**self.fields, "object": kind, "choices": choices, "usage": usage})


# ---------------------------------------------------------------- /v1/completions


class CompletionShape:
    """`text_completion`, whole and streamed alike."""

    def __init__(self, model: str, *, null_usage: bool, logprobs: bool) -> None:
        self._frame = _Frame("text_completion", model, "cmpl", null_usage=null_usage)
        self._logprobs = logprobs

    def opening(self, index: int) -> bytes:
        return b""

    def chunk(self, index: int, delta: Delta, usage: UsageBody | None) -> bytes:
        logprobs = _json(_completion_logprobs(delta.logprobs)) if self._logprobs else b"null"
        choice = b'{"index":%d,"text":%b,"logprobs":%b,"finish_reason":null}'
        return self._frame.chunk(choice % (index, _json(delta.text), logprobs), usage)

    def ending(self, index: int, finish: str, usage: UsageBody | None) -> bytes:
        choice = b'{"index":%d,"text":"","logprobs":null,"finish_reason":%b}'
        return self._frame.chunk(choice % (index, _json(finish)), usage)

    def usage(self, usage: UsageBody) -> bytes:
        return self._frame.chunk(b"", usage)

    def whole(self, choices: Sequence[Choice], usage: UsageBody) -> bytes:
        return self._frame.whole("text_completion", [self._choice(choice) for choice in choices], usage)

    def _choice(self, choice: Choice) -> dict[str, object]:
        return {
            "index": choice.index,
            "text": choice.delta.text,
            "logprobs": _completion_logprobs(choice.delta.logprobs) if self._logprobs else None,
            "finish_reason": choice.finish,
        }


def _completion_logprobs(entries: Sequence[TokenLogprob]) -> dict[str, object]:
    return {
        "tokens": [_word(entry.piece) for entry in entries],
        "token_logprobs": [entry.logprob for entry in entries],
        "top_logprobs": [_tops(entry) for entry in entries],
        "text_offset": [entry.offset for entry in entries],
    }


def _tops(entry: TokenLogprob) -> dict[str, float] | None:
    """The most probable tokens, and the token itself, which may not be one of them."""
    if entry.logprob is None:
        return None
    return {**{_word(piece): logprob for piece, logprob in entry.top}, _word(entry.piece): entry.logprob}


# ---------------------------------------------------------------- /v1/chat/completions


class ChatShape:
    """`chat.completion`, or `chat.completion.chunk` with deltas."""

    def __init__(self, model: str, *, null_usage: bool, logprobs: bool) -> None:
        self._frame = _Frame("chat.completion.chunk", model, "chatcmpl", null_usage=null_usage)
        self._logprobs = logprobs

    def opening(self, index: int) -> bytes:
        delta = b'{"role":"assistant","content":""}'
        return self._frame.chunk(_CHAT_CHOICE % (index, delta, b"null", b"null"), None)

    def chunk(self, index: int, delta: Delta, usage: UsageBody | None) -> bytes:
        logprobs = _json(_chat_logprobs(delta.logprobs)) if self._logprobs else b"null"
        content = b'{"content":%b}' % _json(delta.text)
        return self._frame.chunk(_CHAT_CHOICE % (index, content, logprobs, b"null"), usage)

    def ending(self, index: int, finish: str, usage: UsageBody | None) -> bytes:
        return self._frame.chunk(_CHAT_CHOICE % (index, b"{}", b"null", _json(finish)), usage)

    def usage(self, usage: UsageBody) -> bytes:
        return self._frame.chunk(b"", usage)

    def whole(self, choices: Sequence[Choice], usage: UsageBody) -> bytes:
        return self._frame.whole("chat.completion", [self._choice(choice) for choice in choices], usage)

    def _choice(self, choice: Choice) -> dict[str, object]:
        return {
            "index": choice.index,
            "message": {"role": "assistant", "content": choice.delta.text, "refusal": None},
            "logprobs": _chat_logprobs(choice.delta.logprobs) if self._logprobs else None,
            "finish_reason": choice.finish,
        }


_CHAT_CHOICE = b'{"index":%d,"delta":%b,"logprobs":%b,"finish_reason":%b}'


def _chat_logprobs(entries: Sequence[TokenLogprob]) -> dict[str, object]:
    return {"content": [_chat_logprob(entry) for entry in entries], "refusal": None}


def _chat_logprob(entry: TokenLogprob) -> dict[str, object]:
    return {
        "token": _word(entry.piece),
        "logprob": entry.logprob,
        "bytes": list(entry.piece),
        "top_logprobs": [
            {"token": _word(piece), "logprob": logprob, "bytes": list(piece)} for piece, logprob in entry.top
        ],
    }


def _word(piece: bytes) -> str:
    return piece.decode("utf-8", "replace")

"""What clients may send. Shapes and types only; `params` checks the values.

Fields a client may leave out are None when absent or null, as OpenAI's API treats both alike. Unknown
fields are ignored: clients send many that concern other servers.
"""

import re
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from transom.server.errors import Refused, bad_request
from transom.values import PauseMode, UpdateMode

_PATH = re.compile(r" - at `(?:key in )?\$\.?(?P<path>[^`]*)`$")
_MISSING = re.compile(r"missing required field `(?P<field>[^`]+)`")


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Generation(msgspec.Struct, kw_only=True):
    """The fields both endpoints share."""

    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    cache_salt: str | None = None
    priority: int | None = None
    n: int | None = None
    timeout: float | None = None
    # Known, and refused unless they ask for nothing: to ignore them would change what the client gets.
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    min_tokens: int | None = None
    response_format: dict[str, Any] | None = None


class CompletionRequest(Generation, kw_only=True):
    """POST /v1/completions."""

    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None
    echo: bool | None = None
    best_of: int | None = None
    suffix: str | None = None


class Part(msgspec.Struct):
    """One piece of a message's content; only text is understood."""

    type: str
    text: str | None = None


class Message(msgspec.Struct):
    role: str
    content: str | list[Part] | None = None
    tool_calls: list[Any] | None = None


class ChatRequest(Generation, kw_only=True):
    """POST /v1/chat/completions."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    functions: list[Any] | None = None


class AbortRequest(msgspec.Struct):
    """POST /abort_request. `rid` is the request id, as in the header x-request-id."""

    rid: str | None = None
    abort_all: bool = False


class PauseRequest(msgspec.Struct):
    """POST /pause_generation."""

    mode: PauseMode = PauseMode.IN_PLACE


class UpdateRequest(msgspec.Struct):
    """POST /update_weights_from_disk."""

    model_path: str
    mode: UpdateMode = UpdateMode.DRAIN
    abort_all_requests: bool = False


decode_completion = msgspec.json.Decoder(CompletionRequest).decode
decode_chat = msgspec.json.Decoder(ChatRequest).decode
decode_abort = msgspec.json.Decoder(AbortRequest).decode
decode_pause = msgspec.json.Decoder(PauseRequest).decode
decode_update = msgspec.json.Decoder(UpdateRequest).decode

T = TypeVar("T")


def decoded(decode: Callable[[bytes], T], body: bytes) -> T:
    """Refused, naming the field, for what is not what it should be."""
    try:
        return decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise refusal(error) from None


def refusal(error: Exception) -> Refused:
    """What to answer when a body does not decode."""
    if isinstance(error, msgspec.ValidationError):
        return _mismatch(str(error))
    if isinstance(error, RecursionError):
        return bad_request("the body is nested too deeply", code="invalid_json")
    return bad_request(f"the body is not valid JSON: {error}", code="invalid_json")


def _mismatch(text: str) -> Refused:
    """msgspec's words, led by the field they are about."""
    at, missing = _PATH.search(text), _MISSING.search(text)
    path = at["path"] if at else ""
    reason = text[: at.start()] if at else text
    reason = reason[0].lower() + reason[1:]
    if missing:
        path = f"{path}.{missing['field']}".strip(".")
        return bad_request(f"{path} is required", path, "missing_required_parameter")
    if not path:
        return bad_request(f"the body must be a JSON object: {reason}", code="invalid_type")
    return bad_request(f"{path}: {reason}", path, "invalid_type")

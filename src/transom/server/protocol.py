"""JSON bodies that clients send, as msgspec structs. Types only; `sampling_params` checks the values.

Optional fields are None when they are absent or null: OpenAI's API treats both alike. Unknown fields are
ignored, because clients send fields that are meant for other servers.
"""

import re
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from transom.server.errors import Refused, bad_request
from transom.values import PauseMode, UpdateMode

# msgspec's messages read "Expected `int`, got `str` - at `$.max_tokens`".
_PATH = re.compile(r" - at `(?:key in )?\$\.?(?P<path>[^`]*)`$")
_MISSING = re.compile(r"missing required field `(?P<field>[^`]+)`")


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationRequest(msgspec.Struct, kw_only=True):
    """Fields that completions and chat completions share."""

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
    # Not supported. Neutral values are accepted, any other is refused: ignoring it would silently change the
    # output that the client gets.
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    min_tokens: int | None = None
    response_format: dict[str, Any] | None = None


class CompletionRequest(GenerationRequest, kw_only=True):
    """POST /v1/completions."""

    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None
    echo: bool | None = None
    best_of: int | None = None
    suffix: str | None = None


class Part(msgspec.Struct):
    """One part of a message's content. Only the type `text` is supported."""

    type: str
    text: str | None = None


class Message(msgspec.Struct):
    role: str
    content: str | list[Part] | None = None
    tool_calls: list[Any] | None = None


class ChatRequest(GenerationRequest, kw_only=True):
    """POST /v1/chat/completions."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    functions: list[Any] | None = None


class AbortRequest(msgspec.Struct):
    """POST /abort_request. `rid` is the request's id from the header x-request-id."""

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


# Decoders are built once: msgspec compiles the struct's schema into them.
decode_completion = msgspec.json.Decoder(CompletionRequest).decode
decode_chat = msgspec.json.Decoder(ChatRequest).decode
decode_abort = msgspec.json.Decoder(AbortRequest).decode
decode_pause = msgspec.json.Decoder(PauseRequest).decode
decode_update = msgspec.json.Decoder(UpdateRequest).decode

T = TypeVar("T")


def decoded(decode: Callable[[bytes], T], body: bytes) -> T:
    """The decoded body. Refused, naming the field, if the body does not fit the struct."""
    try:
        return decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _refusal(error) from None


def _refusal(error: Exception) -> Refused:
    if isinstance(error, msgspec.ValidationError):
        return _type_mismatch(str(error))
    if isinstance(error, RecursionError):
        return bad_request("the body is nested too deeply", code="invalid_json")
    return bad_request(f"the body is not valid JSON: {error}", code="invalid_json")


def _type_mismatch(text: str) -> Refused:
    """msgspec's message, with the path of the field moved from its end to its beginning."""
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

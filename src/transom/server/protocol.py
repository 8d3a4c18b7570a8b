"""JSON bodies that clients send, as msgspec structs. Types only; `sampling_params` checks the values.

Optional fields are None when they are absent or null: OpenAI's API treats both alike. `fields` is the table
of the fields that are not in these structs.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import msgspec

from transom.server.errors import Refused, bad_request
from transom.server.fields import check_unhonoured
from transom.values import PauseMode, UpdateMode

# msgspec's messages read "Expected `int`, got `str` - at `$.max_tokens`".
_PATH = re.compile(r" - at `(?:key in )?\$\.?(?P<path>[^`]*)`$")
_MISSING = re.compile(r"missing required field `(?P<field>[^`]+)`")


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class JsonSchemaFormat(msgspec.Struct):
    """`strict` needs no field: every schema is."""

    schema: Any = None


class OutputFormat(msgspec.Struct):
    """OpenAI's `response_format`. `schema` is an extension of llama.cpp."""

    type: str
    json_schema: JsonSchemaFormat | None = None
    schema: Any = None


class StructuredOutputs(msgspec.Struct):
    """vLLM's `structured_outputs`."""

    json: Any = None
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    structural_tag: Any = None
    whitespace_pattern: str | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None


class ConstrainedRequest(msgspec.Struct, kw_only=True):
    """Fields that constrain the outputs; `grammars` makes them one grammar."""

    response_format: OutputFormat | None = None
    # vLLM's, of which the newest is one object.
    structured_outputs: StructuredOutputs | None = None
    guided_json: Any = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_whitespace_pattern: str | None = None
    # SGLang's; its and llama.cpp's `json_schema` agree, and so do `ebnf` and `grammar`.
    json_schema: Any = None
    regex: str | None = None
    ebnf: str | None = None
    grammar: str | None = None


class GenerationRequest(ConstrainedRequest, kw_only=True):
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


class CompletionRequest(GenerationRequest, kw_only=True):
    """POST /v1/completions."""

    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None
    echo: bool | None = None
    best_of: int | None = None


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


T = TypeVar("T", bound=msgspec.Struct)

# Possessive repeats: without backtracking, a long key takes no memory.
_KEY = re.compile(rb'\s*+("(?:[^"\\]++|\\.)*+")\s*+:\s*+', re.DOTALL)
_AFTER = re.compile(rb"\s*[,}]")
_HALF_PAIR = re.compile(rb"\\u[dD][89a-fA-F]")
_BYTE = re.compile(r"\(byte (\d+)\)$")
EXCERPT_BYTES = 24
FIELDS_MAX = 512
"""Fields of a body. The largest struct has some forty."""
OBJECTS_MAX = 20_000
"""Objects in one field of a body: each costs the event loop about 0.3 microseconds."""


class Reader(Generic[T]):
    """Decodes the bodies of one endpoint. Built once: msgspec compiles the struct's schema into it."""

    def __init__(self, kind: type[T]) -> None:
        self._decode = msgspec.json.Decoder(kind).decode
        self._fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
        self._honoured = frozenset(field.encode_name for field in msgspec.structs.fields(kind))

    def read(self, body: bytes) -> tuple[T, tuple[str, ...]]:
        """The decoded body, and the names of its unknown fields.

        Refused, naming the field, if the body does not fit the struct, has a field twice, or asks for what
        is not there.
        """
        try:
            value = self._decode(body)
            given = self._fields(body)
            _check_duplicates(body, given)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise _refusal(error, body) from None
        return value, check_unhonoured(given, self._honoured)


read_completion = Reader(CompletionRequest)
read_chat = Reader(ChatRequest)
read_abort = Reader(AbortRequest)
read_pause = Reader(PauseRequest)
read_update = Reader(UpdateRequest)


def _check_duplicates(body: bytes, given: dict[str, msgspec.Raw]) -> None:
    """Refused if an object has a key twice: JSON parsers disagree about which value counts."""
    seen = set[str]()
    for name in _keys(body, given):
        if name in seen:
            raise _duplicate(name)
        seen.add(name)
        if len(seen) > FIELDS_MAX:
            raise bad_request(f"the body has more than {FIELDS_MAX} fields, the maximum")
    for name, value in given.items():
        text = bytes(value)
        # Only objects have keys. Prompts of token ids, the longest values of all, are not parsed again.
        if text[:1] in (b"{", b"[") and b"{" in text:
            _check_objects(name, text)


def _keys(body: bytes, given: dict[str, msgspec.Raw]) -> Iterator[str]:
    """The keys of the outermost object, in order. `body` is valid JSON, and `given` are its last values.

    Values are skipped by their length. Where that does not lead to the next key, the value is not the last
    one of its key, so the key is yielded twice.
    """
    at = body.index(b"{") + 1
    while (key := _KEY.match(body, at)) is not None:
        name = msgspec.json.decode(key[1], type=str)
        yield name
        after = _AFTER.match(body, key.end() + len(bytes(given[name])))
        if after is None:
            yield name
            return
        at = after.end()


def _check_objects(field: str, text: bytes) -> None:
    count = 0

    def check(pairs: list[tuple[str, object]]) -> None:
        nonlocal count
        count += 1
        if count > OBJECTS_MAX:
            raise bad_request(f"{field} holds more than {OBJECTS_MAX} JSON objects, the maximum", field)
        seen = set[str]()
        for name, _ in pairs:
            if name in seen:
                raise _duplicate(name, field)
            seen.add(name)

    json.loads(text, object_pairs_hook=check, parse_int=len, parse_float=len)


def _duplicate(name: str, within: str | None = None) -> Refused:
    where = f"an object in {within}" if within else "the body"
    cut = name[:64]
    message = f"{where} has the key {cut!a} twice; each key may occur once"
    return bad_request(message, within[:64] if within else cut)


def _refusal(error: Exception, body: bytes) -> Refused:
    if isinstance(error, msgspec.ValidationError):
        return _type_mismatch(str(error))
    if isinstance(error, RecursionError):
        return bad_request("the body is nested too deeply", code="invalid_json")
    if _HALF_PAIR.search(body):
        # msgspec calls half a pair "truncated".
        error = ValueError("a string has an unpaired surrogate, \\ud800 to \\udfff, or another error")
    where = _BYTE.search(str(error))
    near = ""
    if where is not None:
        at = int(where[1])
        excerpt = body[max(0, at - EXCERPT_BYTES) : at + EXCERPT_BYTES].decode("utf-8", "replace")
        near = f", near {excerpt!a}"
    return bad_request(f"the body is not valid JSON: {error}{near}", code="invalid_json")


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

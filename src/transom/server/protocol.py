"""JSON bodies that clients send, as msgspec structs. Types only; `sampling_params` checks the values.

Optional fields are None when they are absent or null: OpenAI's API treats both alike. `fields` is the table
of the fields that are not in these structs.
"""

import re
from itertools import chain
from typing import Any, Generic, TypeVar, get_args

import msgspec

from transom.json_text import JSON_ERRORS, JsonError, check_shape, explained, fields_of
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
    max_completion_tokens: int | None = None
    min_tokens: int | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    no_stop_trim: bool | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    prompt_logprobs: int | None = None
    timeout: float | None = None


class CompletionRequest(GenerationRequest, kw_only=True):
    """POST /v1/completions."""

    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None
    echo: bool | None = None
    best_of: int | None = None
    add_special_tokens: bool | None = None


class Part(msgspec.Struct):
    """One part of a message's content. Only texts are supported."""

    type: str
    text: str | None = None
    refusal: str | None = None


class Function(msgspec.Struct, omit_defaults=True):
    """A function that the model may call. `strict` needs no field: a forced call always fits the schema."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ToolDefinition(msgspec.Struct):
    type: str
    function: Function


class FunctionName(msgspec.Struct):
    name: str


class NamedChoice(msgspec.Struct):
    """`tool_choice` that forces one function."""

    function: FunctionName


class CalledFunction(msgspec.Struct):
    name: str
    arguments: Any = None


class ToolCall(msgspec.Struct, omit_defaults=True):
    """A call in an earlier answer of the assistant."""

    function: CalledFunction
    id: str | None = None
    type: str | None = None


class Message(msgspec.Struct, omit_defaults=True):
    """One message. Fields beside `role` and `content` are variables of the chat template."""

    role: str
    content: str | list[Part] | None = None
    name: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None


class ChatRequest(GenerationRequest, kw_only=True):
    """POST /v1/chat/completions."""

    messages: list[Message]
    tools: list[ToolDefinition] | None = None
    tool_choice: str | NamedChoice | None = None
    parallel_tool_calls: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
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


def _names(kind: type[msgspec.Struct]) -> frozenset[str]:
    return frozenset(field.encode_name for field in msgspec.structs.fields(kind))


def _holds_any(kind: object) -> bool:
    """Whether values of a type may contain values of any shape."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return any(_holds_any(field.type) for field in msgspec.structs.fields(kind))
    return kind is Any or any(map(_holds_any, get_args(kind)))


class Nested:
    """A field whose value is an object, or a list of objects, with fields of the struct `kind`."""

    def __init__(self, kind: type[msgspec.Struct]) -> None:
        self._honoured = _names(kind)
        objects = dict[str, msgspec.Raw]
        self._decode = msgspec.json.Decoder(list[objects] | objects | None).decode

    def unknown(self, field: str, value: msgspec.Raw) -> tuple[str, ...]:
        """The paths of unknown fields. Refused if a field asks for what is not there."""
        decoded = self._decode(value)
        if isinstance(decoded, list):
            found = [
                check_unhonoured(given, self._honoured, f"{field}[{index}].")
                for index, given in enumerate(decoded)
            ]
            return tuple(chain.from_iterable(found))
        return check_unhonoured(decoded or {}, self._honoured, f"{field}.")


_NESTED = {"messages": Nested(Message), "stream_options": Nested(StreamOptions)}


class Reader(Generic[T]):
    """Decodes the bodies of one endpoint. Built once: msgspec compiles the struct's schema into it."""

    def __init__(self, kind: type[T]) -> None:
        self._decode = msgspec.json.Decoder(kind).decode
        fields = msgspec.structs.fields(kind)
        self._honoured = _names(kind)
        self._free = [one.name for one in fields if one.name != "messages" and _holds_any(one.type)]
        """Fields with values of any shape. Of messages, which may be many, only such parts are walked."""
        self._nested = {name: nested for name, nested in _NESTED.items() if name in self._honoured}

    def read(self, body: bytes) -> tuple[T, tuple[str, ...]]:
        """The decoded body, and the names of its unknown fields.

        Refused, naming the field, if the body does not fit the struct, has a field twice, or asks for what
        is not there.
        """
        try:
            value = self._decode(body)
        except msgspec.ValidationError as error:
            raise _type_mismatch(str(error)) from None
        except JSON_ERRORS as error:
            raise _invalid(explained(error, body)) from None
        try:
            given = fields_of(body)
            for name in self._free:
                check_shape(name, getattr(value, name))
            if isinstance(value, ChatRequest):
                calls = [message.tool_calls for message in value.messages if message.tool_calls]
                check_shape("messages", calls)
        except JsonError as error:
            raise _invalid(error) from None
        unknown = check_unhonoured(given, self._honoured)
        for name, nested in self._nested.items():
            if name in given:
                unknown += nested.unknown(name, given[name])
        return value, unknown


read_completion = Reader(CompletionRequest)
read_chat = Reader(ChatRequest)
read_abort = Reader(AbortRequest)
read_pause = Reader(PauseRequest)
read_update = Reader(UpdateRequest)


def _invalid(error: JsonError) -> Refused:
    code = "invalid_json" if error.field is None else "invalid_value"
    return bad_request(f"the body is refused: {error.message}", error.field, code)


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

"""JSON of any shape: a body is served or refused with a 4xx that explains itself, never a 500."""

import asyncio
import json
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.over_http import events, refused
from tests.server.toy import CONTEXT, ByteText

from transom.errors import BadRequest
from transom.json_text import JsonError, fields_of, object_of
from transom.server import protocol
from transom.server.errors import Problem, Refused, problem_of
from transom.server.fields import HARMLESS, REFUSED
from transom.server.input_processor import InputProcessor

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
HALVES = ["\ud800", "\udfff", "a\udc00b", "\U0001f99c", "\u2028", "\x00", "\x1b[31m", "", "true", "user"]
HONOURED = [*protocol.CompletionRequest.__struct_fields__, *protocol.ChatRequest.__struct_fields__]

numbers = st.one_of(
    st.integers(), st.floats(), st.sampled_from([0, -1, 1, 2**31, 2**63, 2**64, 10**30, 10**400, -0.0, 1e308])
)
texts = st.one_of(st.text(max_size=8), st.sampled_from(HALVES))
scalars = st.one_of(st.none(), st.booleans(), numbers, texts)
names = st.one_of(
    st.sampled_from(HONOURED),
    st.sampled_from(sorted(REFUSED)),
    st.sampled_from(sorted(HARMLESS)),
    st.sampled_from(["role", "content", "type", "text", "name", "tool_calls", "refusal", "include_usage"]),
    texts,
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(names, inner, max_size=4)),
    max_leaves=12,
)
messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.one_of(st.sampled_from(["user", "assistant", "system"]), values)},
        optional={"content": values, "name": values, "tool_calls": values, "refusal": values},
    ),
    max_size=3,
)
bodies = st.fixed_dictionaries(
    {"prompt": st.one_of(st.just("x"), values), "messages": st.one_of(messages, values)},
    optional=dict.fromkeys(("max_tokens", "n", "stop", "seed", "stream", "stream_options"), values),
).flatmap(lambda fixed: st.dictionaries(names, values, max_size=5).map(lambda more: {**more, **fixed}))


def answer(path: str, body: bytes) -> Problem | None:
    """The refusal of a body, if it is refused. Any other exception would be a 500."""
    processor = InputProcessor(ByteText(), "toy", CONTEXT)
    try:
        if path == COMPLETIONS:
            asyncio.run(processor.completion(protocol.read_completion.read(body)[0]))
        else:
            asyncio.run(processor.chat(protocol.read_chat.read(body)[0]))
    except (Refused, BadRequest) as error:
        return problem_of(error)
    return None


def check(path: str, body: bytes) -> None:
    problem = answer(path, body)
    if problem is not None:
        assert 400 <= problem.status < 500
        assert problem.message and len(problem.message) < 1000 and "\n" not in problem.message
        problem.body()


@settings(max_examples=100, deadline=None)
@given(st.sampled_from([COMPLETIONS, CHAT]), bodies)
def test_json_of_any_shape_is_served_or_refused(path: str, body: dict[str, Any]) -> None:
    # Python writes NaN, infinities and halves of pairs, as careless clients do.
    check(path, json.dumps(body).encode())


@settings(max_examples=100, deadline=None)
@given(st.sampled_from([COMPLETIONS, CHAT]), bodies, st.data())
def test_damaged_json_is_served_or_refused(path: str, body: dict[str, Any], data: st.DataObject) -> None:
    text = bytearray(json.dumps(body).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
        text = text or bytearray(b" ")
    check(path, bytes(text))


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.text(max_size=4), values, max_size=6))
@example({"a": "\\", '"': '\\"', "\u2028": [{"": {}}]})
def test_strict_json_is_read_as_it_was_written(value: dict[str, Any]) -> None:
    """Every valid object is read; the independent reader is msgspec's."""
    text = json.dumps(value).encode()
    try:
        expected = msgspec.json.decode(text)
    except msgspec.DecodeError:
        with pytest.raises(JsonError):
            object_of(text)
        return
    assert object_of(text) == expected


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), values), min_size=1, max_size=4), st.booleans())
def test_a_key_twice_is_always_found(pairs: list[tuple[str, Any]], spaces: bool) -> None:
    gap = " " if spaces else ""
    text = f",{gap}".join(f'"{name}"{gap}:{json.dumps(value)}' for name, value in pairs).encode()
    body = b"{" + text + b"}"
    twice = len({name for name, _ in pairs}) < len(pairs)
    try:
        msgspec.json.decode(body)
    except msgspec.DecodeError:
        return
    if twice:
        with pytest.raises(JsonError, match="twice"):
            fields_of(body)
    else:
        assert list(fields_of(body)) == [name for name, _ in pairs]


# ---------------------------------------------------------------- over HTTP

ODD: dict[str, tuple[bytes, str, str]] = {
    "half a pair in a prompt": (b'{"prompt": "\\ud83e"}', "surrogate", ""),
    "half a pair in an unknown field": (b'{"prompt": "x", "odd": "\\udc00"}', "surrogate", ""),
    "half a pair in a name": (b'{"prompt": "x", "\\ud800": 1}', "surrogate", ""),
    "NaN": (b'{"prompt": "x", "top_p": NaN}', "top_p", ""),
    "Infinity": (b'{"prompt": "x", "timeout": -Infinity}', "timeout", ""),
    "beyond float": (b'{"prompt": "x", "min_p": 1e999}', "min_p", "min_p"),
    "huge integer": (b'{"prompt": [' + b"9" * 400 + b"]}", "prompt", "prompt"),
    "longer integer": (b'{"prompt": "x", "seed": ' + b"9" * 5000 + b"}", "seed", "seed"),
    "a key twice": (b'{"prompt": "x", "n": 1, "n": 2}', "'n' twice", "n"),
    "a key twice, deep": (b'{"prompt": "x", "stop": [], "odd": {"a": 1, "a": 1}}', "'a' twice", "odd"),
    "very deep": (b'{"prompt": "x", "odd": ' + b"[" * 30_000 + b"]" * 30_000 + b"}", "nested", ""),
    "deep where ids belong": (
        b'{"prompt": ' + b"[" * 30_000 + b"]" * 30_000 + b"}",
        "prompt",
        "prompt[0][0]",
    ),
}


@pytest.mark.parametrize(("body", "says", "param"), ODD.values(), ids=ODD)
def test_odd_json_is_refused_by_name(http: httpx.Client, body: bytes, says: str, param: str) -> None:
    error = refused(http.post(COMPLETIONS, content=body, headers={"content-type": "application/json"}))
    assert says in error["message"]
    assert (error["param"] or "") == param
    assert len(error["message"]) < 400


@pytest.mark.parametrize("value", [b"[" * 99 + b"]" * 99, b'{"a":' * 99 + b"1" + b"}" * 99], ids=["[", "{"])
def test_a_value_of_any_shape_has_a_bounded_depth(http: httpx.Client, value: bytes) -> None:
    call = b'{"function": {"name": "f", "arguments": ' + value + b"}}"
    turn = b'{"role": "assistant", "content": "[[", "tool_calls": [' + call + b"]}"
    body = b'{"messages": [' + turn + b"]}"
    error = refused(http.post(CHAT, content=body, headers={"content-type": "application/json"}))
    assert (error["param"], "64 levels" in error["message"]) == ("messages", True)


def test_a_value_of_any_shape_has_a_bounded_size(http: httpx.Client) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {"a": [""] * 20_000}}
    error = refused(http.post(CHAT, json=body))
    assert (error["param"], "20000" in error["message"]) == ("chat_template_kwargs", True)


@pytest.mark.parametrize(
    "turn",
    [
        {"role": "assistant", "content": None},
        {"role": "assistant"},
        {"role": "assistant", "content": None, "refusal": "no"},
        {"role": "assistant", "content": []},
        {"role": "assistant", "content": None, "name": "me", "reasoning_content": None},
    ],
)
def test_an_assistant_turn_without_text_is_empty(http: httpx.Client, turn: dict[str, Any]) -> None:
    asked = {"role": "user", "content": "a"}
    answer = http.post(CHAT, json={"messages": [asked, turn, asked], "max_tokens": 12})
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"] == "u:a|a:|u:au:"


def test_other_turns_need_text(http: httpx.Client) -> None:
    for turn in ({"role": "user", "content": None}, {"role": "system"}):
        assert refused(http.post(CHAT, json={"messages": [turn]}))["param"] == "messages[0].content"


def test_parts_are_texts_under_every_name_of_a_text(http: httpx.Client) -> None:
    parts = [{"type": kind, "text": kind[0]} for kind in ("text", "input_text", "output_text")]
    parts.append({"type": "refusal", "refusal": "no"})
    answer = http.post(CHAT, json={"messages": [{"role": "user", "content": parts}], "max_tokens": 9})
    assert answer.json()["choices"][0]["message"]["content"] == "u:t\ni\no\nn"


def test_fields_within_messages_are_honoured_refused_or_told(http: httpx.Client) -> None:
    message = {"role": "user", "content": "x", "name": "me", "weight": 1}
    body = {"messages": [message, {**message, "role": "assistant"}], "max_tokens": 1, "stream": True}
    answer = http.post(CHAT, json={**body, "stream_options": {"odd": 1, "include_obfuscation": True}})
    assert answer.status_code == 200
    told = "messages[0].weight, messages[1].weight, stream_options.odd"
    assert answer.headers["x-transom-ignored-fields"] == told
    error = refused(http.post(CHAT, json={"messages": [{**message, "audio": {"id": "a"}}]}))
    assert (error["param"], error["code"]) == ("messages[0].audio", "unsupported_value")


# ---------------------------------------------------------------- every combination of honoured fields

VALID: dict[str, Any] = {
    "max_tokens": st.integers(1, 9),
    "temperature": st.floats(0, 2),
    "top_p": st.floats(0, 1),
    "top_k": st.sampled_from([-1, 0, 5]),
    "seed": st.integers(-(2**63), 2**64 - 1),
    "stop": st.sampled_from(["b", ["zz", "b"], []]),
    "stop_token_ids": st.sampled_from([[], [98]]),
    "ignore_eos": st.booleans(),
    "n": st.integers(1, 3),
    "min_tokens": st.integers(0, 1),
    "repetition_penalty": st.floats(0.01, 100),
    "frequency_penalty": st.floats(-2, 2),
    "presence_penalty": st.floats(-2, 2),
    "logit_bias": st.dictionaries(st.integers(0, 257).map(str), st.floats(-100, 100), max_size=3),
    "allowed_token_ids": st.lists(st.integers(0, 257), min_size=1, max_size=3),
    "bad_words": st.lists(st.sampled_from(["x", " y", "é"]), max_size=2),
    "skip_special_tokens": st.booleans(),
    "include_stop_str_in_output": st.booleans(),
    "return_token_ids": st.booleans(),
    "return_tokens_as_token_ids": st.booleans(),
    "user": st.text(max_size=3).filter(str.isalnum),
}
COMPLETION_ONLY = {"logprobs": st.integers(0, 3), "echo": st.booleans(), "add_special_tokens": st.booleans()}
CHAT_ONLY = {
    "logprobs": st.just(True),
    "top_logprobs": st.just(0),
    "chat_template_kwargs": st.dictionaries(st.sampled_from(["a", "b"]), scalars, max_size=2),
    "continue_final_message": st.booleans(),
    "reasoning_effort": st.just("low"),
}


def served(http: httpx.Client, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The choices of an answer, which must be whole."""
    answer = http.post(path, content=json.dumps(body).encode(), headers={"content-type": "application/json"})
    assert answer.status_code == 200, (body, answer.text)
    choices: list[dict[str, Any]] = answer.json()["choices"]
    return choices


def streamed(http: httpx.Client, path: str, body: dict[str, Any], outputs: int) -> list[tuple[Any, ...]]:
    """Texts, ids and ends of the choices of a stream."""
    parts = [choice for chunk in events(http, path, body) for choice in chunk["choices"]]
    found = []
    for index in range(outputs):
        own = [part for part in parts if part["index"] == index]
        text = "".join(part["text"] if "text" in part else part["delta"].get("content", "") for part in own)
        ids = [token for part in own for token in part.get("token_ids", ())]
        ends = [part["finish_reason"] for part in own if part["finish_reason"]]
        found.append((text, ids, *ends))
    return found


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.fixed_dictionaries({}, optional={**VALID, **COMPLETION_ONLY}))
def test_every_combination_of_fields_of_a_completion_is_served_alike_in_a_stream(
    http: httpx.Client, fields: dict[str, Any]
) -> None:
    check_served(http, COMPLETIONS, {"prompt": ["ab", [99, 98]], "max_tokens": 3, **fields}, 2)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.fixed_dictionaries({}, optional={**VALID, **CHAT_ONLY}))
def test_every_combination_of_fields_of_a_chat_is_served_alike_in_a_stream(
    http: httpx.Client, fields: dict[str, Any]
) -> None:
    if "top_logprobs" in fields:
        fields["logprobs"] = True
    if any(isinstance(one, float) and not np.isfinite(one) for one in _leaves(fields)):
        return
    if any(isinstance(one, str) and not _is_text(one) for one in _leaves(fields)):
        return
    check_served(http, CHAT, {"messages": [{"role": "user", "content": "ab"}], "max_tokens": 3, **fields}, 1)


def _leaves(fields: dict[str, Any]) -> list[Any]:
    return [
        one for value in fields.values() for one in (value.values() if isinstance(value, dict) else [value])
    ]


def _is_text(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def check_served(http: httpx.Client, path: str, body: dict[str, Any], prompts: int) -> None:
    choices = served(http, path, body)
    assert len(choices) == prompts * body.get("n", 1)
    for choice in choices:
        assert choice["finish_reason"] in ("stop", "length")
        assert ("token_ids" in choice) == body.get("return_token_ids", False)
    texts = [choice["text"] if "text" in choice else choice["message"]["content"] for choice in choices]
    ids = [choice.get("token_ids", []) for choice in choices]
    ends = [choice["finish_reason"] for choice in choices]
    assert streamed(http, path, body, len(choices)) == list(zip(texts, ids, ends, strict=True))

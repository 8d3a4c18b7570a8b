"""The table of fields: what is honoured, refused, harmless or unknown, for every request body."""

import logging
from typing import Any

import httpx
import msgspec
import pytest
from tests.over_http import refused

from transom.server import protocol
from transom.server.errors import Refused
from transom.server.fields import HARMLESS, NAMES_TOLD_MAX, REFUSED, IgnoredFields, is_neutral

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
READERS: dict[str, tuple[protocol.Reader[Any], dict[str, Any]]] = {
    "completion": (protocol.read_completion, {"prompt": "x"}),
    "chat": (protocol.read_chat, {"messages": [{"role": "user", "content": "x"}]}),
    "abort": (protocol.read_abort, {}),
    "pause": (protocol.read_pause, {}),
    "update": (protocol.read_update, {"model_path": "x"}),
}
REQUESTS: list[Any] = [0, 1, -2, 0.5, 7.25, True, False, "words", ["x"], {"type": "object"}, [{}], "", [], {}]
"""Values of every JSON type, neutral and not."""


def read(endpoint: str, **fields: Any) -> tuple[str, ...]:
    reader, least = READERS[endpoint]
    _, unknown = reader.read(msgspec.json.encode({**least, **fields}))
    return unknown


def refusal(endpoint: str, body: bytes) -> Refused:
    with pytest.raises(Refused) as caught:
        READERS[endpoint][0].read(body)
    return caught.value


@pytest.mark.parametrize("endpoint", READERS)
def test_every_refused_field_passes_with_its_neutral_values_only(endpoint: str) -> None:
    reader, least = READERS[endpoint]
    honoured = reader.read(msgspec.json.encode(least))[0].__struct_fields__
    for name, (neutral, _) in REFUSED.items():
        if name in honoured:
            continue
        for value in (None, *neutral):
            assert read(endpoint, **{name: value}) == ()
        for value in REQUESTS:
            if not is_neutral(value, neutral):
                with pytest.raises(Refused) as caught:
                    read(endpoint, **{name: value})
                problem = caught.value.problem
                assert (problem.status, problem.param, problem.code) == (400, name, "unsupported_value")
                assert name in problem.message
                assert msgspec.json.encode(value).decode() in problem.message


@pytest.mark.parametrize(
    ("value", "neutral", "expected"),
    [
        (0, (0,), True),
        (0.0, (0,), True),
        (-0.0, (0,), True),
        (False, (0,), False),
        (0, (False,), False),
        (1, (True,), False),
        (True, (1,), False),
        ("", (0,), False),
        ([], ({},), False),
        ({}, ({},), True),
        (None, (), True),
    ],
)
def test_a_neutral_value_has_the_neutral_type(value: Any, neutral: tuple[Any, ...], expected: bool) -> None:
    assert is_neutral(value, neutral) is expected


def test_no_name_is_in_two_places() -> None:
    assert not HARMLESS & REFUSED.keys()
    for kind in (protocol.CompletionRequest, protocol.ChatRequest):
        assert not HARMLESS & set(kind.__struct_fields__)


@pytest.mark.parametrize("endpoint", READERS)
def test_harmless_fields_are_silent_and_unknown_ones_are_named(endpoint: str) -> None:
    assert read(endpoint, store=True, metadata={"deep": [1]}, service_tier="auto", rid2=1, ähm=2) == (
        "rid2",
        "ähm",
    )


def test_a_refused_value_of_any_size_is_shown_short_and_need_not_be_valid() -> None:
    for value in (b'"' + b"x" * 100_000 + b'"', b'"\xff"', b"1" * 6000, b"1e999"):
        error = refusal("completion", b'{"prompt": "x", "structural_tag": ' + value + b"}").problem
        assert error.param == "structural_tag"
        assert len(error.message) < 400 and error.message.isascii()


@pytest.mark.parametrize(
    ("body", "field", "key"),
    [
        (b'{"prompt":"x","n":1,"n":12}', "n", "n"),
        (b'{"prompt":"x","n":12,"n":1}', "n", "n"),
        (b'{ "n" : 1 , "prompt" : "x" , "n" : 1 }', "n", "n"),
        (b'{"prompt":"x","n":2,"\\u006e":2}', "n", "n"),
        (b'{"prompt":"x","prompt":["a","b"]}', "prompt", "prompt"),
        (b'{"prompt":["a"],"prompt":"x"}', "prompt", "prompt"),
        (b'{"prompt":"x","stream_options":{"include_usage":true,"include_usage":false},"stream":true}',
         "stream_options", "include_usage"),
        (b'{"prompt":"x","other":[1,{"a":[{"b":1,"b":2}]}]}', "other", "b"),
    ],
)  # fmt: skip
def test_a_key_that_occurs_twice_is_refused_by_name(body: bytes, field: str, key: str) -> None:
    problem = refusal("completion", body).problem
    assert (problem.status, problem.param) == (400, field)
    assert repr(key) in problem.message


def test_keys_that_only_look_alike_are_not_duplicates() -> None:
    for other in (b'"n ":1', b'"N":1', b'"":1', b'"a\\"b":1,"a":"\\\\"', b'"x":{"n":1},"y":{"n":1}'):
        protocol.read_completion.read(b'{"n":1,"prompt":"\\"n\\":2 {}[],",' + other + b"}")


def test_a_body_of_many_fields_or_objects_is_refused() -> None:
    many = b",".join(b'"f%d":1' % number for number in range(600))
    assert "512" in refusal("completion", b'{"prompt":"x",' + many + b"}").problem.message
    objects = b'{"prompt":"x","other":[' + b'{"a":1},' * 20_000 + b"{}]}"
    assert "20000" in refusal("completion", objects).problem.message


def test_unknown_names_are_logged_once_and_cannot_forge_a_line(caplog: pytest.LogCaptureFixture) -> None:
    fields = IgnoredFields()
    with caplog.at_level(logging.WARNING, "transom.server"):
        assert fields.tell(["plain", "two words", "a\r\nb: c", "ä\x1b[31m", "x" * 1000]) is not None
        told = fields.tell(["plain", "a\r\nb: c"])
    assert told is not None and told.isascii() and told.isprintable()
    assert len(caplog.records) == 5
    assert all(record.getMessage().isprintable() for record in caplog.records)
    assert fields.tell([]) is None
    many = fields.tell([f"name{number}" for number in range(2000)])
    assert many is not None and len(many) < NAMES_TOLD_MAX * 70
    assert many.endswith("and 1984 more")


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("stream", [False, True])
def test_a_header_names_the_unknown_fields(http: httpx.Client, path: str, stream: bool) -> None:
    least = {"prompt": "x", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    del least["messages" if path == COMPLETIONS else "prompt"]
    body = {**least, "stream": stream, "an_odd_field": 1, "store": True, "tools": []}
    answer = http.post(path, json=body)
    assert answer.status_code == 200
    assert answer.headers["x-transom-ignored-fields"] == "an_odd_field"
    assert "x-transom-ignored-fields" not in http.post(path, json={**least, "stream": stream}).headers
    body["max_tokens"] = -1
    assert http.post(path, json=body).headers["x-transom-ignored-fields"] == "an_odd_field"
    assert refused(http.post(path, json={**least, "structural_tag": ["a", "b"]}))["param"] == "structural_tag"
    paused = http.post("/abort_request", json={"rid": "x", "abort_everything": True})
    assert paused.headers["x-transom-ignored-fields"] == "abort_everything"


SEEN_IGNORED: dict[str, Any] = {
    "guided_json": {"type": "object"},
    "guided_regex": "a+",
    "guided_choice": ["a"],
    "structured_outputs": {"regex": "a"},
    "regex": "a+",
    "ebnf": "root ::= 'a'",
    "json_schema": {"type": "object"},
    "grammar": "root ::= 'a'",
    "allowed_token_ids": [5],
    "bad_words": ["a"],
    "banned_tokens": ["a"],
    "repeat_penalty": 1.1,
    "typical_p": 0.9,
    "mirostat": 2,
    "dry_multiplier": 0.8,
    "xtc_probability": 0.5,
    "length_penalty": 0.5,
    "use_beam_search": True,
    "include_stop_str_in_output": True,
    "no_stop_trim": True,
    "skip_special_tokens": False,
    "prompt_logprobs": 1,
    "return_token_ids": True,
    "n_predict": 5,
    "max_new_tokens": 5,
    "truncate_prompt_tokens": 5,
    "add_special_tokens": False,
    "logits_processors": ["a"],
    "lora_path": "a",
    "min_length": 5,
    "ban_eos_token": True,
    "continue_final_message": True,
    "add_generation_prompt": False,
    "chat_template": "{{ messages }}",
    "chat_template_kwargs": {"enable_thinking": False},
    "documents": [{"text": "a"}],
    "function_call": {"name": "f"},
    "modalities": ["audio"],
    "audio": {"voice": "a"},
    "format": "json",
    "seed": 5,
    "stop_regex": "a",
    "extra_body": {"guided_json": {}},
}
"""Fields of vLLM, SGLang, llama.cpp, Ollama and OpenAI that were once taken without effect."""


@pytest.mark.parametrize("endpoint", ["completion", "chat"])
def test_no_field_that_asks_for_another_answer_is_ignored(endpoint: str) -> None:
    reader, least = READERS[endpoint]
    honoured = reader.read(msgspec.json.encode(least))[0].__struct_fields__
    for name, value in SEEN_IGNORED.items():
        if name not in honoured and (name, endpoint) != ("add_special_tokens", "chat"):
            body = msgspec.json.encode({**least, name: value})
            assert refusal(endpoint, body).problem.param == name

"""Tools over HTTP, of a tiny random model in a real server: it calls a tool because a grammar forces it."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema
import pytest
from openai import OpenAI
from tests.over_http import events, refused
from tests.serving import serving
from tests.tiny_llama import CHAT_TEMPLATE, write_tiny_llama

CHAT = "/v1/chat/completions"
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 6}, "days": {"type": "integer", "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "d", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "now"}},
]
HERMES_TEMPLATE = "{% if tools %}Tools: {{ tools | tojson }} in <tool_call>\n{% endif %}" + (
    CHAT_TEMPLATE.replace("{{ message.content }}", "{{ message.content }}{{ message.tool_calls | default }}")
)
LLAMA_TEMPLATE = HERMES_TEMPLATE.replace("<tool_call>", "<|python_tag|>")
ASK: dict[str, Any] = {
    "messages": [{"role": "user", "content": "hi"}],
    "tools": TOOLS,
    "temperature": 1,
    "seed": 3,
}


@pytest.fixture(
    scope="module", params=[HERMES_TEMPLATE, LLAMA_TEMPLATE, CHAT_TEMPLATE], ids=["hermes", "llama3", "none"]
)
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    path = write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf", chat_template=request.param)
    with serving(model=path) as server, server.client() as client:
        yield client


def answer(http: httpx.Client, **fields: Any) -> dict[str, Any]:
    response = http.post(CHAT, json={**ASK, "max_tokens": 300, **fields})
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


def check_call(call: dict[str, Any]) -> None:
    assert call["type"] == "function" and call["id"].startswith("call_")
    arguments = json.loads(call["function"]["arguments"])
    if call["function"]["name"] == "weather":
        jsonschema.validate(arguments, PARAMETERS)
    else:
        assert call["function"]["name"] == "now" and isinstance(arguments, dict)


def test_a_named_tool_is_called_once_with_valid_arguments_by_every_choice(tiny: httpx.Client) -> None:
    named = {"type": "function", "function": {"name": "weather"}}
    body = answer(tiny, tool_choice=named, n=3)
    for choice in body["choices"]:
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["content"] is None
        (call,) = choice["message"]["tool_calls"]
        assert call["function"]["name"] == "weather"
        check_call(call)


def test_a_stream_of_calls_adds_up_to_the_whole_answer(tiny: httpx.Client) -> None:
    fields = {"tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 300}
    (whole,) = answer(tiny, **fields)["choices"]
    chunks = events(tiny, CHAT, {**ASK, **fields})
    calls: list[dict[str, Any]] = []
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        assert not choice["delta"].get("content")
        for entry in choice["delta"].get("tool_calls", []):
            if "id" in entry:
                assert entry["index"] == len(calls)
                calls.append({"id": entry["id"], "type": entry["type"], "function": dict(entry["function"])})
            else:
                calls[entry["index"]]["function"]["arguments"] += entry["function"]["arguments"]
    assert [call["function"] for call in calls] == [
        call["function"] for call in whole["message"]["tool_calls"]
    ]
    assert chunks[-1]["choices"][0]["finish_reason"] == whole["finish_reason"] == "tool_calls"
    for call in calls:
        check_call(call)


def test_a_call_that_max_tokens_cuts_says_length(tiny: httpx.Client) -> None:
    (choice,) = answer(tiny, tool_choice="required", max_tokens=25)["choices"]
    assert choice["finish_reason"] == "length"


def test_without_a_choice_the_model_answers_in_words_and_none_forbids_calls(tiny: httpx.Client) -> None:
    for choice in ("auto", "none", None):
        (found,) = answer(tiny, tool_choice=choice, max_tokens=8)["choices"]
        assert "tool_calls" not in found["message"]
        assert isinstance(found["message"]["content"], str)


def test_with_a_schema_an_answer_is_a_call_or_fits_the_schema(tiny: httpx.Client) -> None:
    schema = {"enum": [17, "x"]}
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    body = answer(tiny, response_format=form, n=8, parallel_tool_calls=False)
    for choice in body["choices"]:
        if calls := choice["message"].get("tool_calls"):
            check_call(calls[0])
        else:
            jsonschema.validate(json.loads(choice["message"]["content"]), schema)


def test_calls_and_results_are_part_of_the_prompt(tiny: httpx.Client) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    history = [
        {"role": "user", "content": "When is it?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "noon"},
    ]
    short = answer(tiny, messages=history[:1], max_tokens=1)["usage"]["prompt_tokens"]
    assert answer(tiny, messages=history, max_tokens=1)["usage"]["prompt_tokens"] > short + 10
    assert answer(tiny, messages=history[:1], tools=[], max_tokens=1)["usage"]["prompt_tokens"] < short


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "retrieval", "function": {"name": "x"}}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [TOOLS[1], TOOLS[1]]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": f"f{i}"}} for i in range(129)]}, "tools"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": [1]}}]},
            "tools[0].function.parameters",
        ),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "missing"}}}, "tool_choice.function.name"),
        ({"tool_choice": "required", "tools": []}, "tool_choice"),
        ({"regex": "a"}, "tool_choice"),
        (
            {
                "tools": [
                    {
                        "type": "function",
                        "function": {"name": "f", "parameters": {"properties": {"a": {"type": "y"}}}},
                    }
                ],
                "tool_choice": "required",
            },
            "tools[0].function.parameters.properties.a",
        ),
        (
            {
                "messages": [
                    {"role": "assistant", "tool_calls": [{"function": {"name": "now", "arguments": "{"}}]}
                ]
            },
            "messages[0].tool_calls[0].function.arguments",
        ),
    ],
)
def test_a_refusal_names_the_field(tiny: httpx.Client, fields: dict[str, Any], param: str) -> None:
    assert refused(tiny.post(CHAT, json={**ASK, **fields}))["param"] == param


@pytest.mark.model
def test_the_openai_client_reads_a_forced_call_of_the_default_model(openai: OpenAI) -> None:
    fields: dict[str, Any] = {
        "model": "default",
        "messages": [{"role": "user", "content": "What is the weather in Paris for 3 days?"}],
        "tools": TOOLS,
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
        "parallel_tool_calls": False,
        "temperature": 0,
        "max_tokens": 200,
    }
    (choice,) = openai.chat.completions.create(**fields).choices
    assert choice.finish_reason == "tool_calls" and choice.message.tool_calls is not None
    whole = choice.message.tool_calls[0].function
    jsonschema.validate(json.loads(whole.arguments), PARAMETERS)
    with openai.chat.completions.stream(**fields) as stream:
        final = stream.get_final_completion().choices[0].message
    assert final.tool_calls is not None
    assert final.tool_calls[0].function.arguments == whole.arguments

"""Tool calls: every format is read alike however the text is split, and its grammar forces what is read."""

import json
import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from tests.text.walk import random_text

from transom.errors import BadRequest
from transom.text.chat import GEMMA_TEMPLATE
from transom.text.tool_calls import Arguments, CallBegun, CallParser, Content, Piece
from transom.text.tools import (
    GEMMA,
    HERMES,
    LLAMA3,
    MISTRAL,
    MISTRAL_ARGS,
    Tool,
    ToolFormat,
    arguments_object,
    call_grammar,
    described,
    format_of,
)

NAMES = frozenset({"get_weather", "add"})
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
ADD = {"properties": {"a": {"$ref": "#/$defs/n"}}, "required": ["a"], "$defs": {"n": {"type": "integer"}}}
TOOLS = (Tool("get_weather", WEATHER, "tools[0]"), Tool("add", ADD, "tools[1]"))
FORMATS = (HERMES, MISTRAL, MISTRAL_ARGS, LLAMA3, GEMMA)

PARIS = ("get_weather", '{"city": "Paris, \\"}{\\" [TOOL"}')
THREE = ("add", '{"a": 3}')

Read = tuple[str, list[tuple[str, str]]]

TEXTS: list[tuple[ToolFormat, str, Read]] = [
    (HERMES, "Hello <tool and } done", ("Hello <tool and } done", [])),
    (HERMES, f'<tool_call>\n{{"name": "get_weather", "arguments": {PARIS[1]}}}\n</tool_call>', ("", [PARIS])),
    (
        HERMES,
        f'Let me see.\n\n<tool_call>\n{{"name": "get_weather", "arguments": {PARIS[1]}}}\n</tool_call>\n'
        f'<tool_call>{{"arguments": {THREE[1]}, "name": "add"}}</tool_call>\nDone. ',
        ("Let me see.Done. ", [PARIS, THREE]),
    ),
    (HERMES, '<tool_call>{"name": "other", "id": [1, {"x": "y"}]}</tool_call>', ("", [("other", "{}")])),
    (HERMES, '<tool_call>{"name": "add", "arguments": {"a": ', ("", [("add", '{"a":')])),
    (HERMES, '<tool_call>{"na', ("", [])),
    (HERMES, "ends with <tool_", ("ends with <tool_", [])),
    (HERMES, "", ("", [])),
    (
        MISTRAL,
        f'[TOOL_CALLS] [{{"name": "get_weather", "arguments": {PARIS[1]}}}, '
        f'{{"name": "add", "arguments": {THREE[1]}}}]',
        ("", [PARIS, THREE]),
    ),
    (MISTRAL, '[1, 2] and {"name": "add"}', ('[1, 2] and {"name": "add"}', [])),
    (
        MISTRAL_ARGS,
        f"Yes. [TOOL_CALLS]get_weather[ARGS]{PARIS[1]}[TOOL_CALLS]add[ARGS]{THREE[1]}",
        ("Yes.", [PARIS, THREE]),
    ),
    (LLAMA3, f'{{"name": "get_weather", "parameters": {PARIS[1]}}}', ("", [PARIS])),
    (
        LLAMA3,
        f'<|python_tag|>{{"name": "get_weather", "parameters": {PARIS[1]}}}; '
        f'{{"name": "add", "parameters": {THREE[1]}}}',
        ("", [PARIS, THREE]),
    ),
    (LLAMA3, '{"name": "unknown", "parameters": {}} x', ('{"name": "unknown", "parameters": {}} x', [])),
    (LLAMA3, ' {"city": "Paris"}', (' {"city": "Paris"}', [])),
    (LLAMA3, "<|python", ("<|python", [])),
    (LLAMA3, 'Sure: {"name": "add"}', ('Sure: {"name": "add"}', [])),
    (GEMMA, f'```json\n{{"name": "add", "parameters": {THREE[1]}}}\n```', ("", [THREE])),
    (
        GEMMA,
        f'{{"name": "add", "parameters": {THREE[1]}}}\n{{"name": "add", "parameters": {{}}}}',
        ("", [THREE, ("add", "{}")]),
    ),
    (GEMMA, "```json\n[1]\n```", ("```json\n[1]\n```", [])),
    (GEMMA, '{"name": "ad', ('{"name": "ad', [])),
]


def read(form: ToolFormat, parts: Sequence[str], **options: Any) -> Read:
    parser = CallParser(form, NAMES, **options)
    pieces: list[Piece] = [piece for part in parts for piece in parser.feed(part)]
    pieces += parser.finish()
    content, calls = "", list[tuple[str, str]]()
    for piece in pieces:
        match piece:
            case Content(text):
                assert text, "an empty piece"
                content += text
            case CallBegun(number, name):
                assert number == len(calls), "numbers count from 0"
                calls.append((name, ""))
            case Arguments(number, text):
                assert number == len(calls) - 1, "arguments belong to the last call"
                calls[number] = (calls[number][0], calls[number][1] + text)
    return content, calls


@pytest.mark.parametrize(("form", "text", "expected"), TEXTS)
def test_a_text_and_every_split_of_it_give_the_same_calls(
    form: ToolFormat, text: str, expected: Read
) -> None:
    assert read(form, [text]) == expected
    assert read(form, list(text)) == expected
    for at in range(len(text)):
        assert read(form, [text[:at], text[at:]]) == expected, at


def test_random_splits_of_random_texts_give_what_the_whole_gives() -> None:
    """Texts of fragments of all formats, whole and broken ones."""
    rng = random.Random(7)
    fragments = [*'{}[]",:; \n', "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>"]
    fragments += [
        '"name"',
        '"add"',
        '"arguments"',
        '"parameters"',
        "```json",
        "```",
        "text",
        "\\",
        '{"a": 1}',
    ]
    fragments += ['{"name": "add", "arguments": {"a": 1}}', '{"name": "get_weather", "parameters": {}}']
    for form in FORMATS:
        for _ in range(300):
            text = "".join(rng.choices(fragments, k=rng.randrange(1, 14)))
            cuts = sorted(rng.choices(range(len(text) + 1), k=4))
            parts = [text[start:end] for start, end in pairwise([0, *cuts, len(text)])]
            assert read(form, parts) == read(form, [text]), (form.name, text, parts)


def test_arguments_are_streamed_as_they_arrive() -> None:
    parser = CallParser(HERMES, NAMES)
    parser.feed('<tool_call>\n{"name": "add", "arguments": {"a"')
    assert parser.feed(": 12") == [Arguments(0, ": 12")]


@pytest.mark.parametrize(("form", "text", "expected"), [one for one in TEXTS if len(one[2][1]) == 2])
def test_without_parallel_calls_only_the_first_one_counts(
    form: ToolFormat, text: str, expected: Read
) -> None:
    assert read(form, [text], parallel=False)[1] == expected[1][:1]


# ---------------------------------------------------------------- grammars


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
@pytest.mark.parametrize("parallel", [False, True])
def test_a_text_of_the_grammar_is_read_as_calls_with_valid_arguments(
    form: ToolFormat, parallel: bool
) -> None:
    grammar = call_grammar(form, TOOLS, lambda literal: None, parallel=parallel)
    rng = random.Random(3)
    counts = set()
    for _ in range(8):
        content, calls = read(form, [random_text(grammar, rng)])
        assert not content
        counts.add(len(calls))
        for name, text in calls:
            arguments = json.loads(text)
            if name == "add":
                assert isinstance(arguments["a"], int)
            else:
                assert isinstance(arguments["city"], str)
    assert counts == {1} or (parallel and min(counts) >= 1 and max(counts) > 1)


def test_a_marker_that_is_a_control_token_is_forced_by_its_id() -> None:
    grammar = call_grammar(MISTRAL, TOOLS, {"[TOOL_CALLS]": 9}.get, parallel=True)
    assert grammar.startswith("start: <[9]> ")
    assert '"[TOOL_CALLS]"' not in grammar


def test_a_bad_schema_of_a_tool_is_refused_at_its_place() -> None:
    bad = Tool("add", {"properties": {"a": {"type": "wrong"}}}, "tools[3].function.parameters")
    with pytest.raises(BadRequest) as refused:
        call_grammar(HERMES, [TOOLS[0], bad], lambda literal: None, parallel=True)
    assert refused.value.param == "tools[3].function.parameters.properties.a"


# ---------------------------------------------------------------- formats and prompts


@pytest.mark.parametrize(
    ("template", "form"),
    [
        ("{{ tools }} <tool_call>", HERMES),
        ("{{ tools }} [TOOL_CALLS]", MISTRAL),
        ("{{ tools }} [TOOL_CALLS] [ARGS]", MISTRAL_ARGS),
        ("{{ tools }} <|python_tag|>", LLAMA3),
    ],
)
def test_the_markers_of_a_template_tell_its_format(template: str, form: ToolFormat) -> None:
    assert format_of(template, has_tools=True) is form
    assert format_of(GEMMA_TEMPLATE, has_tools=False) is GEMMA


def test_a_template_without_tools_gets_them_as_texts_in_alternating_turns() -> None:
    messages = [
        {"role": "user", "content": "Add."},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "c1", "function": {"name": "add", "arguments": {"a": 1}}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
        {"role": "tool", "content": [{"type": "text", "text": "3"}]},
        {"role": "user", "content": "Thanks."},
    ]
    tools = [{"type": "function", "function": {"name": "add"}}]
    system, *turns = described(messages, tools)
    assert system["role"] == "system" and '{"name": "add"}' in system["content"]
    assert [turn["role"] for turn in turns] == ["user", "assistant", "user"]
    assert turns[1]["content"] == '{"name": "add", "parameters": {"a": 1}}'
    assert turns[2]["content"] == "Result of add:\n2\n\nResult of the function:\n3\n\nThanks."


def test_the_description_of_tools_joins_a_system_message() -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    system, _ = described(messages, [{"function": {"name": "add"}}])
    assert system["content"].startswith("Be brief.\n\nYou can call functions.")
    assert described(messages, []) == messages


def test_arguments_in_a_message_are_an_object_or_its_json() -> None:
    assert arguments_object('{"a": 1}', "w") == arguments_object({"a": 1}, "w") == {"a": 1}
    assert arguments_object("", "w") == {}
    for bad in ("[1]", "{", 3, None, "[" * 100_000):
        with pytest.raises(BadRequest) as refused:
            arguments_object(bad, "w")
        assert refused.value.param == "w"

"""Fields that constrain the outputs: every dialect becomes the same grammar, or a refusal that names it."""

import json
from typing import Any

import pytest

from transom.errors import BadRequest
from transom.server.errors import Refused
from transom.server.grammars import grammar_of, is_constrained
from transom.server.protocol import read_chat
from transom.text.grammar import (
    NO_WHITESPACE,
    choice_grammar,
    ebnf_grammar,
    regex_grammar,
    schema_grammar,
)

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
EBNF = 'root ::= "a" | "b"'


def grammar(**fields: Any) -> str:
    body = json.dumps({"messages": [{"role": "user", "content": "hi"}], **fields}).encode()
    request, unknown = read_chat.read(body)
    assert not unknown, unknown
    made = grammar_of(request)
    assert is_constrained(request) == bool(made)
    return made


def test_every_name_of_a_schema_means_the_same() -> None:
    expected = schema_grammar(SCHEMA, "s")
    for fields in (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "strict": True, "schema": SCHEMA},
            }
        },
        {"response_format": {"type": "json_schema", "schema": SCHEMA}},
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        {"guided_json": SCHEMA},
        {"guided_json": json.dumps(SCHEMA)},
        {"structured_outputs": {"json": SCHEMA}},
        {"structured_outputs": {"json": json.dumps(SCHEMA)}},
        {"json_schema": json.dumps(SCHEMA)},
        {"json_schema": SCHEMA},
    ):
        assert grammar(**fields) == expected, fields


def test_every_name_of_an_object_a_choice_an_expression_and_a_grammar_means_the_same() -> None:
    any_object = schema_grammar({"type": "object"}, "s")
    assert grammar(response_format={"type": "json_object"}) == any_object
    assert grammar(structured_outputs={"json_object": True}) == any_object
    for field in ("guided_choice", "choice"):
        fields = {field: ["a", "b"]}
        given = {"structured_outputs": fields} if field == "choice" else fields
        assert grammar(**given) == choice_grammar(["a", "b"], "c")
    for given in ({"guided_regex": "a+"}, {"regex": "a+"}, {"structured_outputs": {"regex": "a+"}}):
        assert grammar(**given) == regex_grammar("a+", "r")
    for given in (
        {"guided_grammar": EBNF},
        {"ebnf": EBNF},
        {"grammar": EBNF},
        {"structured_outputs": {"grammar": EBNF}},
    ):
        assert grammar(**given) == ebnf_grammar(EBNF, "g")


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"response_format": None},
        {"response_format": {"type": "text"}},
        {"structured_outputs": {}},
        {"structured_outputs": {"json_object": False}},
        {"guided_json": None, "regex": None, "guided_whitespace_pattern": "[ ]?"},
    ],
)
def test_a_request_that_constrains_nothing_has_no_grammar(fields: dict[str, Any]) -> None:
    assert grammar(**fields) == ""


def test_whitespace_follows_vllms_fields() -> None:
    assert grammar(guided_json=SCHEMA, guided_whitespace_pattern="[ ]?") == schema_grammar(
        SCHEMA, "s", "[ ]?"
    )
    fields = {"json": SCHEMA, "whitespace_pattern": "[ ]?"}
    assert grammar(structured_outputs=fields) == schema_grammar(SCHEMA, "s", "[ ]?")
    fields = {"json": SCHEMA, "disable_any_whitespace": True}
    assert grammar(structured_outputs=fields) == schema_grammar(SCHEMA, "s", NO_WHITESPACE)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {}}},
            "response_format.json_schema.schema",
        ),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_object", "schema": [1]}}, "response_format.schema"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": {"type": "wrong"}}, "guided_json"),
        ({"guided_json": SCHEMA, "guided_whitespace_pattern": "(a"}, "guided_whitespace_pattern"),
        ({"guided_json": {"properties": {"x": {"type": "wrong"}}}}, "guided_json.properties.x"),
        ({"guided_choice": []}, "guided_choice"),
        ({"regex": "(a"}, "regex"),
        ({"ebnf": "root"}, "ebnf"),
        ({"regex": "a", "guided_choice": ["a"]}, "guided_choice"),
        ({"response_format": {"type": "json_object"}, "regex": "a"}, "regex"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs.choice"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag"),
        (
            {"structured_outputs": {"json": SCHEMA, "disable_additional_properties": True}},
            "structured_outputs.disable_additional_properties",
        ),
    ],
)
def test_a_refusal_names_the_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises((BadRequest, Refused)) as refused:
        grammar(**fields)
    error = refused.value
    found = error.problem.param if isinstance(error, Refused) else error.param
    assert found == param

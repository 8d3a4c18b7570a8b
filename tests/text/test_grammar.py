"""Grammars from schemas, expressions, choices and EBNF: refusals say where, and everything is bounded."""

import json
import random
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
from tests.text.walk import accepts, random_text

from transom.errors import BadRequest
from transom.limits import LIMITS
from transom.text.grammar import (
    NO_WHITESPACE,
    WHITESPACE,
    choice_grammar,
    ebnf_grammar,
    fault,
    regex_grammar,
    schema_grammar,
)


@pytest.mark.parametrize(
    ("schema", "where", "words"),
    [
        ({"properties": {"b": {"items": {"type": "foo"}}}}, "s.properties.b.items", "foo"),
        ({"anyOf": [{"type": "null"}, {"pattern": "(a"}]}, "s.anyOf.1", "unclosed group"),
        ({"properties": {"a": {"$ref": "#/$defs/T"}}, "$defs": {"T": {"type": "x"}}}, "s.$defs.T", "x"),
        ({"properties": {"a": {"uniqueItems": True}}}, "s.properties.a", "uniqueItems"),
        ({"$ref": "#/$defs/missing"}, "s", "missing"),
        ({"$ref": "https://example.com/schema"}, "s", "example.com"),
        ({"type": "integer", "minimum": 5, "maximum": 3}, "s", "minimum"),
        (["type"], "s", "an object"),
        (False, "s", "an object"),
        ({"const": float("nan")}, "s", "JSON"),
        ({"const": {1}}, "s", "JSON"),
        ({"const": "\ud800"}, "s", "Unicode"),
    ],
)
def test_a_bad_schema_is_refused_at_the_place_of_its_fault(schema: Any, where: str, words: str) -> None:
    with pytest.raises(BadRequest) as refused:
        schema_grammar(schema, "s")
    assert refused.value.param == where
    assert words in refused.value.message


@pytest.mark.parametrize(
    ("build", "value"),
    [
        (regex_grammar, "(a"),
        (regex_grammar, "a(?=b)"),
        (regex_grammar, "(" * 1000 + ")" * 1000),
        (choice_grammar, []),
        (choice_grammar, ["a", ""]),
        (ebnf_grammar, ""),
        (ebnf_grammar, "start: missing"),
        (ebnf_grammar, 'root ::= "a" missing'),
        (ebnf_grammar, "root ::= [a-"),
        (ebnf_grammar, "start: " + "(" * 1000 + '"a"' + ")" * 1000),
    ],
)
def test_a_bad_text_is_refused_by_its_name(build: Callable[[Any, str], str], value: Any) -> None:
    with pytest.raises(BadRequest) as refused:
        build(value, "field")
    assert refused.value.param == "field"
    assert len(refused.value.message) < 1200


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "null"}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    "build",
    [
        lambda over: schema_grammar(nested(LIMITS.schema_depth - 1 + 2 * over), "f"),
        lambda over: schema_grammar(
            {"properties": {f"p{i}": {"type": "null"} for i in range(LIMITS.schema_properties // 8 + over)}}
            if not over
            else {"properties": {f"p{i}": {} for i in range(LIMITS.schema_properties + 1)}},
            "f",
        ),
        lambda over: schema_grammar({"enum": ["x" * (LIMITS.grammar_bytes if over else 1000)]}, "f"),
        lambda over: regex_grammar("x" * (LIMITS.grammar_bytes + 1 if over else 1000), "f"),
        lambda over: ebnf_grammar('start: "' + "x" * (LIMITS.grammar_bytes if over else 1000) + '"', "f"),
        lambda over: choice_grammar([f"c{i}" for i in range(LIMITS.choices + over)], "f"),
    ],
    ids=["depth", "properties", "schema bytes", "regex bytes", "ebnf bytes", "choices"],
)
def test_every_size_has_a_limit(build: Callable[[int], str]) -> None:
    assert fault(build(0)) == ""
    with pytest.raises(BadRequest, match=r"at most|nested deeper"):
        build(1)


def test_unknown_formats_are_annotations_and_known_ones_constrain() -> None:
    schema = {
        "properties": {
            "format": {"type": "string", "format": "password"},
            "at": {"type": "string", "format": "date"},
        },
        "const": {"format": "password"},
    }
    made = json.loads(schema_grammar(schema, "s"))["grammars"][0]["json_schema"]
    assert made["properties"] == {"format": {"type": "string"}, "at": {"type": "string", "format": "date"}}
    assert made["const"] == {"format": "password"}, "a value, not a schema"
    assert schema["properties"]["format"]["format"] == "password", "the client's schema is unchanged"


def test_true_is_the_schema_that_accepts_everything() -> None:
    assert fault(schema_grammar(True, "s")) == ""


@pytest.mark.parametrize("text", ["plain", 'a "quoted" \\ one', "two\nlines", "😀 ä", "\x01", "a|b", "<eos>"])
def test_a_choice_is_taken_literally(text: str) -> None:
    grammar = choice_grammar(["other", text], "choice")
    assert accepts(grammar, text) and accepts(grammar, "other")
    assert not accepts(grammar, text + "x") and not accepts(grammar, "oth")


@pytest.mark.parametrize("pattern", ["^[0-9]{2}$", "[0-9]{2}"])
def test_an_expression_matches_the_whole_output(pattern: str) -> None:
    grammar = regex_grammar(pattern, "regex")
    assert accepts(grammar, "12") and not accepts(grammar, "123") and not accepts(grammar, "a12")


@pytest.mark.parametrize("text", ['start: "a" start | "b"', 'root ::= "a" root | "b"'])
def test_lark_and_gbnf_are_both_understood(text: str) -> None:
    grammar = ebnf_grammar(text, "ebnf")
    assert accepts(grammar, "aab") and not accepts(grammar, "aa")


def test_whitespace_between_the_parts_of_json_is_bounded_or_absent() -> None:
    schema = {"properties": {"a": {"type": "null"}}, "required": ["a"], "additionalProperties": False}
    usual, compact = schema_grammar(schema, "s"), schema_grammar(schema, "s", NO_WHITESPACE)
    for text in ('{"a":null}', '{"a": null}', '{\n    "a": null\n}'):
        assert accepts(usual, text)
        assert accepts(compact, text) == (" " not in text)
    assert not accepts(usual, '{"a":' + " " * 200 + "null}")


# ---------------------------------------------------------------- every text is valid


def random_schema(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    """A schema of the keywords that llguidance implements."""
    kinds = ["string", "integer", "number", "boolean", "enum", "const", "pattern"]
    kinds += ["object", "array", "anyOf", "ref"] if depth < 3 else []

    def inner() -> dict[str, Any]:
        return random_schema(rng, depth + 1)

    match rng.choice(kinds):
        case "string":
            return {"type": "string", "minLength": rng.randrange(3), "maxLength": rng.randrange(3, 8)}
        case "integer":
            low = rng.randrange(-20, 20)
            return {"type": "integer", "minimum": low, "maximum": low + rng.randrange(50)}
        case "number":
            return {"type": "number", "minimum": -1.5, "exclusiveMaximum": 10}
        case "boolean":
            return {"type": ["boolean", "null"]}
        case "enum":
            return {"enum": rng.sample(["a", 'b"\\', 3, None, True, {"x": []}], 3)}
        case "const":
            return {"const": [1, {"k": "v"}]}
        case "pattern":
            return {
                "type": "string",
                "pattern": rng.choice(["^[a-c]{2,5}$", "x[0-9]+$", "a|b"]),
                "maxLength": 9,
            }
        case "object":
            names = rng.sample(["a", "b c", "é", "format", "required"], rng.randrange(1, 4))
            return {
                "type": "object",
                "properties": {name: inner() for name in names},
                "required": [name for name in names if rng.random() < 0.5],
                "additionalProperties": rng.choice([False, {"type": "integer", "minimum": 0, "maximum": 9}]),
            }
        case "array":
            least = rng.randrange(3)
            return {
                "type": "array",
                "items": inner(),
                "minItems": least,
                "maxItems": least + rng.randrange(3),
            }
        case "anyOf":
            return {"anyOf": [inner(), inner()]}
    return {"$ref": "#/$defs/node"}


def test_random_texts_of_random_schemas_are_valid() -> None:
    rng = random.Random(11)
    node = {"type": "object", "properties": {"next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}}}
    compared = 0
    for number in range(150):
        schema = {**random_schema(rng), "$defs": {"node": {**node, "additionalProperties": False}}}
        grammar = schema_grammar(schema, "s", NO_WHITESPACE if number % 2 else WHITESPACE)
        for _ in range(3):
            jsonschema.validate(json.loads(random_text(grammar, rng)), schema)
            compared += 1
    assert compared == 450


@pytest.mark.parametrize(
    "pattern",
    [
        "(a{1000}){1000}",
        "((a{100}){100}){100}",
        "a{1000000}",
        "(ab{300}){300}",
        "a{5000}" * 3,
        "a{1,99999999999}",
    ],
)
def test_repetitions_that_would_make_a_mask_take_seconds_are_refused(pattern: str) -> None:
    for build, value, param in (
        (regex_grammar, pattern, "f"),
        (ebnf_grammar, f"start: /{pattern}/", "f"),
        (schema_grammar, {"items": {"pattern": pattern}}, "f.items.pattern"),
        (schema_grammar, {"patternProperties": {pattern: {}}}, "f.patternProperties"),
    ):
        with pytest.raises(BadRequest, match="10000 times") as refused:
            build(value, "f")  # type: ignore[operator]
        assert refused.value.param == param


@pytest.mark.parametrize(
    "pattern", ["a{9999}", "(ab{9}){99}", r"[{(]{3}\(\{5}", "x" * 30_000, "a{2,}(b|c){5}"]
)
def test_ordinary_repetitions_are_accepted(pattern: str) -> None:
    assert fault(regex_grammar(pattern, "f")) == ""

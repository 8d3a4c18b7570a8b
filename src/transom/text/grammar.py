"""Grammars that constrain outputs, made from JSON Schemas, regular expressions, choices and EBNF.

A grammar is a text in the format of llguidance. The text is sent to the engine as it is and names the
compiled grammar there, so equal grammars are compiled once. Nothing here needs a tokenizer: the server checks
a grammar before the engine sees it. `engine/masks.py` turns grammars into masks.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from transom.errors import BadRequest
from transom.limits import LIMITS

if TYPE_CHECKING:
    # llguidance is imported where it is first needed: most processes never constrain an output.
    from llguidance import LLParserLimits

WHITESPACE = r"( |\r?\n[ \t]{0,48})?"
"""Between the parts of a JSON text: a space, or a line break and indentation.

Without a bound, a model may write spaces until `max_tokens`.
"""
NO_WHITESPACE = ""

FAULT_CHECKS_MAX = 200
"""Parts of a refused schema that are checked to find the one at fault."""

REASON_CHARACTERS_MAX = 500
CHECKED_KEPT = 256
"""Grammars whose check is remembered."""

FORMATS = frozenset(
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "unknown"]
)
"""Values of `format` that constrain the text. By JSON Schema, other values are annotations."""


def parser_limits() -> "LLParserLimits":
    """Bounds of compiling a grammar and of computing one mask: about 20 milliseconds each."""
    from llguidance import LLParserLimits

    # Without its verbose errors, llguidance's messages hold neither backtraces nor the text of the output.
    return LLParserLimits(
        max_lexer_states=LIMITS.lexer_states,
        # An object with a thousand optional properties has 4000 items in a row.
        max_items_in_row=5000,
        step_max_items=200_000,
        verbose_errors=False,
    )


@lru_cache(maxsize=CHECKED_KEPT)
def fault(grammar: str) -> str:
    """Why the grammar cannot be compiled, in llguidance's words; empty if it can."""
    from llguidance import LLMatcher

    try:
        failed, messages = LLMatcher.validate_grammar_with_warnings(grammar, limits=parser_limits())
    except BaseException as error:
        # A panic of the Rust code is no Exception.
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        return f"{type(error).__name__}: {error}"
    return messages[0] if failed else ""


# ---------------------------------------------------------------- texts


def regex_grammar(pattern: str, param: str) -> str:
    """Outputs that match `pattern` as a whole, in the syntax of Rust's `regex`. BadRequest."""
    from llguidance import LLMatcher

    _check_size(pattern, param)
    _check_repetitions(pattern, param)
    return require_valid(LLMatcher.grammar_from_regex(pattern), param)


def choice_grammar(choices: Sequence[str], param: str) -> str:
    """Outputs that are one of the texts. BadRequest."""
    from llguidance import LLMatcher

    if not choices or not all(choices):
        raise BadRequest(f"{param} must list at least one text, and no empty one", param=param)
    if len(choices) > LIMITS.choices:
        raise BadRequest(
            f"{param} lists {len(choices)} texts; at most {LIMITS.choices} are allowed", param=param
        )
    # Lark's literals have JSON's escapes.
    literals = [json.dumps(choice, ensure_ascii=False) for choice in choices]
    _check_size("".join(literals), param)
    return require_valid(LLMatcher.grammar_from_lark("start: " + " | ".join(literals)), param)


def ebnf_grammar(text: str, param: str) -> str:
    """A grammar in llguidance's Lark dialect or in llama.cpp's GBNF. BadRequest."""
    from llguidance import grammar_from

    _check_size(text, param)
    _check_repetitions(text, param)
    try:
        grammar = grammar_from("ebnf", text)
    except Exception as error:  # the converter from GBNF raises what its parsing happens to meet
        raise _refused(param, str(error)) from error
    return require_valid(grammar, param)


def one_grammar(given: Mapping[str, Any]) -> str:
    """The grammar of the one of GRAMMAR_OPTIONS that is given; empty if none is. BadRequest."""
    set_ones = [name for name, value in given.items() if value is not None]
    if len(set_ones) > 1:
        first, second, *_ = set_ones
        raise BadRequest(
            f"{first} and {second} both constrain the output; only one of them may", param=second
        )
    return next((GRAMMAR_OPTIONS[name](given[name], name) for name in set_ones), "")


def _check_size(text: str, param: str) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise BadRequest(
            f"{param} is not valid Unicode: {error.reason} at character {error.start}", param=param
        ) from error
    if size > LIMITS.grammar_bytes:
        raise BadRequest(f"{param} has {size} bytes; at most {LIMITS.grammar_bytes} are allowed", param=param)


_PART = re.compile(r"\\.|\[(?:\\.|[^\]\\])*+\]|\{(\d+)(?:,(\d*))?\}|.", re.DOTALL)
"""Of an expression: an escape, a class, a counted repetition or a character."""


def _check_repetitions(pattern: str, param: str) -> None:
    """BadRequest if counted repetitions make an expression too large: one mask would then take seconds."""
    # The size of the part before a repetition, and of each group that is open, outermost first.
    last, open_groups = 0, [0]
    for part in _PART.finditer(pattern):
        match part[0]:
            case "(":
                open_groups.append(0)
                last = 0
            case ")" if len(open_groups) > 1:
                last = open_groups.pop()
                open_groups[-1] += last
            case text if part[1] is not None and text.startswith("{"):
                # The first nine digits of a number are enough to be beyond the limit.
                times = max(int(part[1][:9]), int((part[2] or "0")[:9]))
                open_groups[-1] += last * max(0, times - 1)
                last *= times
            case _:
                last = 1
                open_groups[-1] += 1
        if open_groups[-1] > LIMITS.repetitions + len(pattern):
            raise BadRequest(
                f"{param} repeats its parts more than {LIMITS.repetitions} times in all, the maximum",
                param=param,
            )


def require_valid(grammar: str, param: str) -> str:
    """The grammar. BadRequest if it cannot be compiled or is too large."""
    _check_size(grammar, param)
    reason = fault(grammar)
    if reason:
        raise _refused(param, reason)
    return grammar


def _refused(param: str, reason: str) -> BadRequest:
    # One line: llguidance draws the client's text, with a mark below the place at fault.
    return BadRequest(f"{param} cannot constrain an output: {one_line(reason)}", param=param)


def one_line(reason: str) -> str:
    """A message of llguidance, which may quote much of a client's grammar, on one line of bounded length."""
    return " ".join(reason.split())[:REASON_CHARACTERS_MAX]


# ---------------------------------------------------------------- JSON Schema

JSON_OBJECT: Mapping[str, object] = {"type": "object"}

# Definitions come first: a fault in one also shows in each schema that refers to it.
_OF_NAMES = ("$defs", "definitions", "properties", "patternProperties", "dependentSchemas")
_OF_LISTS = ("anyOf", "allOf", "oneOf", "prefixItems", "items")
_OF_SCHEMAS = ("items", "additionalProperties", "not", "contains", "propertyNames", "if", "then", "else")

Schema = Mapping[str, Any]


def schema_grammar(schema: object, param: str, whitespace: str = WHITESPACE) -> str:
    """JSON texts that are valid under the schema, with properties in its order. BadRequest says where.

    `whitespace` is the pattern between the parts of the text.
    """
    if schema is True:  # JSON Schema's short form of the schema that accepts everything
        schema = {}
    if not isinstance(schema, Mapping):
        raise BadRequest(f"{param} must be a JSON Schema, which is an object", param=param)
    _check_depth(schema, param)
    try:
        _check_size(json.dumps(schema, ensure_ascii=False, allow_nan=False), param)
    except (TypeError, ValueError) as error:
        raise BadRequest(f"{param} is not JSON: {error}", param=param) from error
    whole: Schema = _without_annotations(schema)
    for path, expression in _patterns(whole):
        _check_repetitions(expression, ".".join((param, *path)))
    properties = sum(len(names) for names in _all_properties(whole))
    if properties > LIMITS.schema_properties:
        raise BadRequest(
            f"{param} has {properties} properties; at most {LIMITS.schema_properties} are allowed",
            param=param,
        )
    grammar = _schema_text(whole, whitespace)
    reason = fault(grammar)
    if reason:
        path = _path_of_fault(whole, reason, whitespace)
        raise _refused(".".join((param, *path)), reason)
    return grammar


def _schema_text(schema: Schema, whitespace: str) -> str:
    from llguidance import LLMatcher

    options: dict[str, Any] = {"whitespace_pattern": whitespace}
    if whitespace == NO_WHITESPACE:
        options = {"whitespace_flexible": False}
    return LLMatcher.grammar_from_json_schema(
        json.dumps(schema, ensure_ascii=False),
        overrides=options,  # type: ignore[arg-type]
    )


def _check_depth(value: object, param: str) -> None:
    """BadRequest if the JSON is nested too deeply. Not recursive: its depth is the question."""
    level: list[object] = [value]
    for _ in range(LIMITS.schema_depth + 1):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return
    raise BadRequest(f"{param} is nested deeper than {LIMITS.schema_depth} levels, the maximum", param=param)


def _inside(value: object) -> Iterator[object]:
    if isinstance(value, Mapping):
        yield from value.values()
    elif isinstance(value, list | tuple):
        yield from value


def _children(schema: Schema) -> Iterator[tuple[tuple[str, ...], Schema]]:
    """The schemas directly inside a schema, with their paths."""
    for keyword in _OF_NAMES:
        if isinstance(named := schema.get(keyword), Mapping):
            yield from (((keyword, name), one) for name, one in named.items() if isinstance(one, Mapping))
    for keyword in _OF_LISTS:
        if isinstance(listed := schema.get(keyword), list | tuple):
            yield from (
                ((keyword, str(number)), one) for number, one in enumerate(listed) if isinstance(one, Mapping)
            )
    for keyword in _OF_SCHEMAS:
        if isinstance(one := schema.get(keyword), Mapping):
            yield (keyword,), one


def _all_properties(schema: Schema) -> Iterator[Schema]:
    if isinstance(named := schema.get("properties"), Mapping):
        yield named
    for _, child in _children(schema):
        yield from _all_properties(child)


def _patterns(schema: Schema, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """The expressions in a schema, with their paths."""
    if isinstance(pattern := schema.get("pattern"), str):
        yield (*path, "pattern"), pattern
    if isinstance(named := schema.get("patternProperties"), Mapping):
        yield from (((*path, "patternProperties"), name) for name in named)
    for step, child in _children(schema):
        yield from _patterns(child, (*path, *step))


def _without_annotations(schema: Any) -> Any:
    """A copy without values of `format` that llguidance does not know, which it would refuse."""
    if not isinstance(schema, Mapping):
        return schema
    copy: dict[str, Any] = {}
    for keyword, value in schema.items():
        if keyword in _OF_NAMES and isinstance(value, Mapping):
            copy[keyword] = {name: _without_annotations(one) for name, one in value.items()}
        elif keyword in _OF_LISTS and isinstance(value, list | tuple):
            copy[keyword] = [_without_annotations(one) for one in value]
        elif keyword in _OF_SCHEMAS:
            copy[keyword] = _without_annotations(value)
        elif keyword != "format" or value in FORMATS:
            copy[keyword] = value
    return copy


def _path_of_fault(schema: Schema, reason: str, whitespace: str) -> tuple[str, ...]:
    """The path of the innermost schema that is refused for the same reason. llguidance names none."""
    definitions = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    path: tuple[str, ...] = ()
    inside = _children(schema)
    for _ in range(FAULT_CHECKS_MAX):
        step, child = next(inside, ((), None))
        if child is None:
            break
        # References are resolved from the root, so the definitions come along.
        found = fault(_schema_text({**definitions, **child}, whitespace))
        if found and _without_place(found) == _without_place(reason):
            path, inside = (*path, *step), _children(child)
    return path


def _without_place(reason: str) -> str:
    """A reason without the reference through which llguidance came to the schema at fault."""
    return reason.partition("while processing json-schema:")[0].strip()


GRAMMAR_OPTIONS: Mapping[str, Callable[[Any, str], str]] = {
    "json_schema": schema_grammar,
    "regex": regex_grammar,
    "choice": choice_grammar,
    "ebnf": ebnf_grammar,
}
"""Constraints by the names of the options of `LLM`."""

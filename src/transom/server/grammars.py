"""The fields that constrain an output, by the names of OpenAI, vLLM, SGLang and llama.cpp, as one grammar."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from transom.json_text import JsonError, object_of
from transom.server.errors import Refused, bad_request
from transom.server.protocol import ConstrainedRequest, OutputFormat, StructuredOutputs
from transom.text.grammar import (
    JSON_OBJECT,
    NO_WHITESPACE,
    WHITESPACE,
    choice_grammar,
    ebnf_grammar,
    regex_grammar,
    schema_grammar,
)

Build = Callable[[], str]
"""Makes the grammar. BadRequest or Refused, naming the field."""


def is_constrained(request: ConstrainedRequest) -> bool:
    """Whether any field constrains the outputs: then `grammar_of` has work for a thread."""
    return next(_given(request), None) is not None


def grammar_of(request: ConstrainedRequest) -> str:
    """The grammar of the outputs; empty if they are free. BadRequest or Refused, naming the field."""
    given = dict(_given(request))
    if len(given) > 1:
        first, second, *_ = given
        raise bad_request(f"{first} and {second} both constrain the output; only one of them may", second)
    return next((build() for build in given.values()), "")


def _given(request: ConstrainedRequest) -> Iterator[tuple[str, Build]]:
    """The fields that are set, with their grammars."""
    whitespace = _whitespace(request.guided_whitespace_pattern, "guided_whitespace_pattern")
    form = request.response_format
    if form is not None and form.type != "text":
        yield "response_format", partial(_of_format, form)
    if request.structured_outputs is not None:
        yield from _structured(request.structured_outputs)
    for name in ("guided_json", "json_schema"):
        if (schema := getattr(request, name)) is not None:
            yield name, partial(_of_schema, schema, name, whitespace)
    yield from _of_texts(guided_regex=request.guided_regex, regex=request.regex, build=regex_grammar)
    yield from _of_texts(
        guided_grammar=request.guided_grammar,
        ebnf=request.ebnf,
        grammar=request.grammar,
        build=ebnf_grammar,
    )
    if (choices := request.guided_choice) is not None:
        yield "guided_choice", partial(choice_grammar, choices, "guided_choice")


def _of_texts(*, build: Callable[[str, str], str], **fields: str | None) -> Iterator[tuple[str, Build]]:
    for name, text in fields.items():
        if text is not None:
            yield name, partial(build, text, name)


def _structured(fields: StructuredOutputs) -> Iterator[tuple[str, Build]]:
    """vLLM's object of constraints."""
    within = "structured_outputs"
    if fields.structural_tag is not None:
        raise _unsupported(f"{within}.structural_tag", "structural tags are not supported")
    if fields.disable_additional_properties:
        name = f"{within}.disable_additional_properties"
        raise _unsupported(name, "set additionalProperties to false in the schema")
    whitespace = _whitespace(fields.whitespace_pattern, f"{within}.whitespace_pattern")
    whitespace = NO_WHITESPACE if fields.disable_any_whitespace else whitespace
    if (schema := fields.json) is not None:
        yield f"{within}.json", partial(_of_schema, schema, f"{within}.json", whitespace)
    if fields.json_object:
        yield f"{within}.json_object", partial(schema_grammar, JSON_OBJECT, within, whitespace)
    if (pattern := fields.regex) is not None:
        yield f"{within}.regex", partial(regex_grammar, pattern, f"{within}.regex")
    if (choices := fields.choice) is not None:
        yield f"{within}.choice", partial(choice_grammar, choices, f"{within}.choice")
    if (text := fields.grammar) is not None:
        yield f"{within}.grammar", partial(ebnf_grammar, text, f"{within}.grammar")


def _whitespace(pattern: str | None, name: str) -> str:
    if pattern is None:
        return WHITESPACE
    regex_grammar(pattern, name)
    return pattern


def _of_format(form: OutputFormat) -> str:
    match form.type:
        case "json_object":
            # The schema is an extension of llama.cpp and others.
            schema = JSON_OBJECT if form.schema is None else form.schema
            return schema_grammar(schema, "response_format.schema")
        case "json_schema":
            # Others write the schema directly, without OpenAI's object around it.
            schema = form.schema if form.json_schema is None else form.json_schema.schema
            name = "response_format.json_schema.schema"
            if schema is None:
                raise bad_request(f"{name} is required", name, "missing_required_parameter")
            return schema_grammar(schema, name)
    kinds = "text, json_object and json_schema"
    raise _unsupported("response_format.type", f"it is {form.type[:40]!r}; supported are {kinds}")


def _of_schema(schema: Any, name: str, whitespace: str) -> str:
    """The schema may be an object, or its JSON as a text."""
    if isinstance(schema, str):
        try:
            schema = object_of(schema.encode())
        except JsonError as error:
            raise bad_request(f"{name}: {error.message}", name) from None
    return schema_grammar(schema, name, whitespace)


def _unsupported(name: str, reason: str) -> Refused:
    return bad_request(f"{name} is not supported: {reason}", name, "unsupported_value")

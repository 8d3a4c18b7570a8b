"""Structured outputs over HTTP, of a tiny random model in a real server."""

import json
from collections.abc import Iterator

import httpx
import jsonschema
import pytest
from openai import OpenAI
from tests.over_http import complete, events, refused, streamed_text
from tests.serving import serving
from tests.tiny import write_tiny_gguf

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "at": {"type": "string", "format": "date"}},
    "required": ["name", "at"],
    "additionalProperties": False,
}
COMPACT = {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    path = write_tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf")
    with serving(model=path) as server, server.client() as client:
        yield client


def test_all_choices_are_valid_and_a_stream_has_the_same_text(tiny: httpx.Client) -> None:
    fields = {"temperature": 1, "seed": 5, "n": 3, "max_tokens": 100, **COMPACT}
    texts = [choice["text"] for choice in complete(tiny, "hello", **fields)["choices"]]
    for text in texts:
        jsonschema.validate(json.loads(text), SCHEMA)
    chunks = events(tiny, "/v1/completions", {"prompt": "hello", **fields})
    assert [streamed_text(chunks, index) for index in range(3)] == texts


def test_log_probabilities_are_those_among_the_allowed_tokens(tiny: httpx.Client) -> None:
    answer = complete(tiny, "hello", guided_choice=["x", "y"], logprobs=3, max_tokens=4)
    (choice,) = answer["choices"]
    first = choice["logprobs"]["top_logprobs"][0]
    assert {name for name, logprob in first.items() if logprob > -9999} == {"x", "y"}
    assert choice["logprobs"]["token_logprobs"][1] == 0, "only the end is left"
    assert choice["finish_reason"] == "stop"


def test_an_output_that_max_tokens_cuts_says_so(tiny: httpx.Client) -> None:
    (choice,) = complete(tiny, "hello", regex="[0-9]{20}", max_tokens=7)["choices"]
    assert len(choice["text"]) == 7 and choice["text"].isdigit()
    assert choice["finish_reason"] == "length"


def test_a_stop_string_ends_a_constrained_output(tiny: httpx.Client) -> None:
    (choice,) = complete(tiny, "hello", regex="ab[0-9]{20}", stop="b")["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("a", "stop")


def test_a_constrained_output_ends_where_its_grammar_ends_even_if_the_end_is_ignored(
    tiny: httpx.Client,
) -> None:
    (choice,) = complete(tiny, "hello", regex="ab", ignore_eos=True, max_tokens=50)["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("ab", "stop")


def test_a_bad_schema_is_refused_at_the_place_of_its_fault(tiny: httpx.Client) -> None:
    schema = {"type": "object", "properties": {"age": {"type": "nmuber"}}}
    body = {"prompt": "x", "response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}
    error = refused(tiny.post("/v1/completions", json=body))
    assert error["param"] == "response_format.json_schema.schema.properties.age"


def test_a_grammar_that_only_the_engine_can_refuse_is_refused_too(tiny: httpx.Client) -> None:
    """The server knows no tokens; this grammar names one that the model lacks."""
    error = refused(tiny.post("/v1/completions", json={"prompt": "x", "grammar": "start: <|missing|>"}))
    assert "missing" in error["message"]


@pytest.mark.model
def test_the_default_model_answers_the_openai_client_in_json(openai: OpenAI) -> None:
    answer = openai.chat.completions.create(
        model="default",
        messages=[{"role": "user", "content": "Give me the date of the first of May 2024, as JSON."}],
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "entry", "schema": SCHEMA, "strict": True},
        },
        temperature=0,
        max_tokens=120,
    )
    content = answer.choices[0].message.content
    assert content is not None
    jsonschema.validate(json.loads(content), SCHEMA)

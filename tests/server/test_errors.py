"""Every refusal: OpenAI's shape, the right status, the field's name, numbers in the message."""

from typing import Any

import httpx
import openai
import pytest
from tests.over_http import refused
from tests.server.toy import BODY_BYTES_MAX, CONTEXT, Running

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
HUGE = 10**30


BOTH: list[tuple[str, Any]] = [
    ("temperature", -0.1),
    ("temperature", 2.1),
    ("temperature", "hot"),
    ("top_p", -0.1),
    ("top_p", 1.1),
    ("top_k", -2),
    ("top_k", 2**31),
    ("top_k", HUGE),
    ("top_k", 1.5),
    ("min_p", -0.1),
    ("min_p", 1.1),
    ("seed", 2**64),
    ("seed", -(2**63) - 1),
    ("seed", HUGE),
    ("seed", 0.5),
    ("max_tokens", -1),
    ("max_tokens", "4"),
    ("max_tokens", 1.5),
    ("stop", [""]),
    ("stop", ""),
    ("stop", ["x"] * 17),
    ("stop", "x" * 1025),
    ("stop", [letter * 1000 for letter in "abcde"]),
    ("stop", [1]),
    ("stop_token_ids", [-1]),
    ("stop_token_ids", [258]),
    ("stop_token_ids", [HUGE]),
    ("stop_token_ids", list(range(65))),
    ("ignore_eos", "yes"),
    ("stream", 1),
    ("stream_options", {"include_usage": True}),
    ("n", 0),
    ("n", 129),
    ("n", HUGE),
    ("timeout", 0),
    ("timeout", -1.5),
    ("timeout", 1e9),
    ("timeout", "soon"),
    ("presence_penalty", 2.5),
    ("presence_penalty", "much"),
    ("frequency_penalty", -2.1),
    ("repetition_penalty", 0),
    ("repetition_penalty", -1.5),
    ("repetition_penalty", 101),
    ("logit_bias", {"5": 101}),
    ("logit_bias", {"258": 1}),
    ("logit_bias", {"-1": 1}),
    ("logit_bias", {"x": 1}),
    ("logit_bias", {"1_0": 1}),
    ("logit_bias", {"٣": 1}),
    ("logit_bias", {"5": 1, "05": 1}),
    ("logit_bias", {"9" * 5000: 1}),
    ("logit_bias", {str(token): 1 for token in range(1025)}),
    ("logit_bias", [1]),
    ("min_tokens", -1),
    ("min_tokens", 2),
    ("min_tokens", HUGE),
    ("allowed_token_ids", []),
    ("allowed_token_ids", [258]),
    ("allowed_token_ids", [-1]),
    ("allowed_token_ids", [HUGE]),
    ("allowed_token_ids", [1] * 4097),
    ("bad_words", [""]),
    ("bad_words", ["  "]),
    ("bad_words", ["x" * 129]),
    ("bad_words", ["x"] * 129),
    ("bad_words", [5]),
    ("skip_special_tokens", 1),
    ("include_stop_str_in_output", "yes"),
    ("max_completion_tokens", -1),
    ("prompt_logprobs", -1),
    ("prompt_logprobs", 21),
    ("prompt_logprobs", True),
    ("return_token_ids", "all"),
    ("response_format", {"type": "xml"}),
    ("cache_salt", "x" * 257),
    ("cache_salt", 3),
    ("priority", 101),
    ("priority", -HUGE),
    ("model", 5),
    ("user", 5),
]
ONLY_COMPLETIONS: list[tuple[str, Any]] = [
    ("prompt", ""),
    ("prompt", None),
    ("prompt", 5),
    ("prompt", []),
    ("prompt", [[]]),
    ("prompt", [258]),
    ("prompt", [-1]),
    ("prompt", [HUGE]),
    ("prompt", [1.5]),
    ("prompt", ["a", 5]),
    ("prompt", ["a"] * 257),
    ("prompt", [["a"]]),
    ("max_tokens", -1),
    ("echo", 1),
    ("best_of", 2),
    ("best_of", 0),
    ("suffix", "x"),
    ("logprobs", -1),
    ("logprobs", 21),
    ("logprobs", HUGE),
    ("logprobs", True),
]
ONLY_CHAT: list[tuple[str, Any]] = [
    ("messages", []),
    ("messages", "hello"),
    ("messages", [{"content": "x"}]),
    ("messages", [{"role": "user"}]),
    ("messages", [{"role": "user", "content": 5}]),
    ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]),
    ("messages", [{"role": "wizard", "content": "x"}]),
    ("messages", [{"role": "assistant", "content": "x", "tool_calls": [{}]}]),
    ("max_tokens", 0),
    ("logprobs", 1),
    ("top_logprobs", 1),
    ("top_logprobs", 21),
    ("tools", [{}]),
    ("functions", [{}]),
    ("tool_choice", "required"),
]
GOOD: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": "x", "max_tokens": 1},
    CHAT: {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1},
}


@pytest.mark.parametrize(
    ("path", "field", "value"),
    [
        (path, field, value)
        for path, cases in ((COMPLETIONS, BOTH + ONLY_COMPLETIONS), (CHAT, BOTH + ONLY_CHAT))
        for field, value in cases
        if (path, field, value) != (COMPLETIONS, "prompt", "")
    ],
)
def test_a_wrong_value_is_refused_by_name(http: httpx.Client, path: str, field: str, value: Any) -> None:
    error = refused(http.post(path, json={**GOOD[path], field: value}))
    assert error["type"] == "invalid_request_error"
    assert str(error["param"]).split(".")[0].split("[")[0] == field
    assert field.split("[")[0] in error["message"] or field in ("messages", "prompt")
    assert len(error["message"]) < 400


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": None, "top_p": None, "stop": None, "stream": None, "n": None, "seed": None},
        {"temperature": 0, "top_p": 1, "top_k": -1, "min_p": 0, "seed": -5, "n": 1},
        {"temperature": 2, "top_p": 0, "top_k": 0, "min_p": 1, "seed": 2**64 - 1, "user": "me"},
        {"presence_penalty": 0.0, "frequency_penalty": 0, "logit_bias": {}, "repetition_penalty": 1.0},
        {"response_format": {"type": "text"}, "stop": [], "stop_token_ids": [], "cache_salt": ""},
        {"an_unknown_field": {"deep": [1]}, "priority": 100, "model": ""},
        {"model": "default"},
    ],
)
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_null_neutral_and_unknown_fields_are_accepted(
    http: httpx.Client, path: str, fields: dict[str, Any]
) -> None:
    answer = http.post(path, json={**GOOD[path], **fields})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"text"',
        b"nonsense",
        b'{"prompt": "x", "temperature": NaN}',
        b'{"prompt": "x", "temperature": 1e999}',
        b'{"prompt": "x", "temperature": Infinity}',
        b'{"prompt": "\xff"}',
        b'{"prompt": "\\ud800 alone"}',
        b'{"prompt": ' + b"[" * 50_000,
        b'{"prompt": "x", "other": ' + b"[" * 40_000 + b"]" * 40_000 + b"}",
    ],
)
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_a_body_that_is_not_a_json_object_is_a_400(http: httpx.Client, path: str, body: bytes) -> None:
    refused(http.post(path, content=body, headers={"content-type": "application/json"}))


def test_a_missing_prompt_and_missing_messages_are_named(http: httpx.Client) -> None:
    assert refused(http.post(COMPLETIONS, json={}))["param"] == "prompt"
    assert refused(http.post(CHAT, json={}))["param"] == "messages"


def test_a_prompt_beyond_the_context_is_refused_with_the_numbers(http: httpx.Client) -> None:
    error = refused(http.post(COMPLETIONS, json={"prompt": "x" * CONTEXT, "max_tokens": 1}))
    assert error["code"] == "context_length_exceeded"
    assert error["param"] == "prompt"
    assert str(CONTEXT) in error["message"]
    assert str(CONTEXT + 1) in error["message"]
    body = {"messages": [{"role": "user", "content": "x" * 6000}]}
    assert refused(http.post(CHAT, json=body))["param"] == "messages"
    fits = http.post(COMPLETIONS, json={"prompt": "x" * (CONTEXT - 2), "max_tokens": 5})
    assert fits.json()["usage"]["total_tokens"] == CONTEXT


def test_one_bad_prompt_refuses_its_whole_batch_and_leaves_no_request(http: httpx.Client) -> None:
    refused(http.post(COMPLETIONS, json={"prompt": ["a", "b" * CONTEXT, "c"], "max_tokens": 500}))
    refused(http.post(COMPLETIONS, json={"prompt": ["STALL", "REJECT", "c"], "max_tokens": 500}))
    assert 'num_running_reqs{model_name="toy"} 0.0' in settled_metrics(http)


def settled_metrics(http: httpx.Client) -> str:
    """The metrics after the engine has processed the last abort: a flush, sent after it, waits for that."""
    http.post("/flush_cache")
    return http.get("/metrics").text


@pytest.mark.parametrize("stream", [False, True])
def test_a_refusal_of_the_engine_is_a_400_even_for_a_stream(http: httpx.Client, stream: bool) -> None:
    error = refused(http.post(COMPLETIONS, json={"prompt": "REJECT", "stream": stream}))
    assert error["code"] == "context_length_exceeded"
    assert error["message"] == "no pool holds it"
    assert error["param"] == "prompt"
    messages = [{"role": "user", "content": "REJECT"}]
    assert refused(http.post(CHAT, json={"messages": messages, "stream": stream}))["param"] == "messages"


def test_a_step_that_fails_is_a_500_for_its_request_only(http: httpx.Client) -> None:
    error = refused(http.post(COMPLETIONS, json={"prompt": "FAIL"}), 500)
    assert error["type"] == "server_error"
    assert http.get("/health").status_code == 200


def test_an_unknown_model_is_a_404_that_names_the_served_one(http: httpx.Client) -> None:
    for answer in (
        http.post(COMPLETIONS, json={"prompt": "x", "model": "gpt-9"}),
        http.get("/v1/models/gpt-9"),
    ):
        error = refused(answer, 404)
        assert error["code"] == "model_not_found"
        assert "toy" in error["message"]


def test_unknown_paths_and_methods_have_the_same_shape(http: httpx.Client) -> None:
    refused(http.get("/nowhere"), 404)
    refused(http.post("/v1/embeddings", json={}), 404)
    wrong = http.get(COMPLETIONS)
    refused(wrong, 405)
    assert "POST" in wrong.headers["allow"]


def test_a_body_above_the_limit_is_a_413(http: httpx.Client) -> None:
    large = b'{"prompt": "' + b"x" * BODY_BYTES_MAX + b'"}'
    assert (
        str(BODY_BYTES_MAX)
        in refused(http.post(COMPLETIONS, content=large, headers={"content-type": "application/json"}), 413)[
            "message"
        ]
    )

    def pieces() -> Any:
        yield from (large[i : i + 10_000] for i in range(0, len(large), 10_000))

    refused(http.post(COMPLETIONS, content=pieces(), headers={"content-type": "application/json"}), 413)


def test_the_clients_request_id_is_returned_or_one_is_made(http: httpx.Client) -> None:
    assert http.get("/health", headers={"x-request-id": "abc-1"}).headers["x-request-id"] == "abc-1"
    assert len(http.get("/nowhere").headers["x-request-id"]) == 32
    assert len(http.get("/health", headers={"x-request-id": "x" * 200}).headers["x-request-id"]) == 32


def test_the_openai_package_understands_our_errors(toy: Running) -> None:
    with openai.OpenAI(base_url=f"{toy.url}/v1", api_key="none", max_retries=0) as client:
        with pytest.raises(openai.BadRequestError) as caught:
            client.completions.create(model="toy", prompt="x" * 600)
        assert caught.value.code == "context_length_exceeded"
        assert caught.value.param == "prompt"
        assert caught.value.type == "invalid_request_error"
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve("other")


def test_prompts_times_n_has_a_limit(http: httpx.Client) -> None:
    error = refused(http.post(COMPLETIONS, json={"prompt": ["a"] * 5, "n": 128, "max_tokens": 1}))
    assert error["param"] == "n"
    assert "640" in error["message"]
    assert "512" in error["message"]

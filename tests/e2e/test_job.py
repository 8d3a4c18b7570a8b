"""The main job, end to end: the default model, served as by `make serve`, with plain and OpenAI clients."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import islice
from typing import Any

import httpx
import openai as openai_package
import pytest
from openai import OpenAI
from tests.english import passage
from tests.over_http import (
    DEADLINE_SECONDS,
    cached_tokens,
    chat,
    complete,
    events,
    is_alive,
    is_settled,
    refused,
    samples,
    streamed_text,
    until,
)
from tests.serving import Serving, serving

from transom.weights.builtin import resolve_model

pytestmark = pytest.mark.model

MODEL = "gemma-3-270m"
FRANCE = "The capital of France is"
STORIES = [
    "Once upon a time",
    "The three primary colours are",
    "def fibonacci(n):",
    "Le plus grand océan du monde est",
    "漢字は",
    "1, 2, 3, 4,",
]


# ---------------------------------------------------------------- the screen


@pytest.mark.parametrize(
    "line",
    [
        r"model +gemma-3-270m \(gemma3\), 3 full layers, 15 layers of window 512",
        r"weights +\d+(\.\d)? MiB",
        r"KV memory +\d+(\.\d)? [MG]iB, shared by all layers",
        r"KV full +up to [\d,]+ tokens",
        r"KV window +up to [\d,]+ tokens",
        r"context +[\d,]+ tokens served",
        r"steps +up to 32 requests, 512 tokens; pages of 16",
        r"threads +\d+, \w+",
        r"ready +in \d+\.\d s at http://127\.0\.0\.1:\d+",
    ],
)
def test_the_startup_screen_states_the_model_and_the_sizes(server: Serving, line: str) -> None:
    assert [printed for printed in server.screen if re.fullmatch(line, printed)], server.screen


def test_the_curl_line_of_the_screen_works_when_pasted(server: Serving) -> None:
    pasted = subprocess.run(
        server.curl, shell=True, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=True
    )
    answer = json.loads(pasted.stdout)
    assert answer["model"] == MODEL
    assert answer["usage"]["completion_tokens"] == 16
    assert answer["choices"][0]["text"]


# ---------------------------------------------------------------- answers


def test_the_model_continues_a_sequence_of_numbers(openai: OpenAI) -> None:
    answer = openai.completions.create(model=MODEL, prompt="1, 2, 3, 4,", max_tokens=12, temperature=0)
    assert answer.choices[0].text.startswith(" 5, 6, 7,")
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 12
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 12


@pytest.mark.parametrize(
    "sampling", [{"temperature": 0}, {"temperature": 1, "seed": 11}, {"top_k": 40, "seed": 5}]
)
@pytest.mark.parametrize("prompt", STORIES[:5])
def test_a_streamed_text_equals_the_unstreamed_one(
    http: httpx.Client, prompt: str, sampling: dict[str, Any]
) -> None:
    fields = {**sampling, "max_tokens": 24, "ignore_eos": True}
    plain = complete(http, prompt, **fields)
    options = {"stream_options": {"include_usage": True}}
    chunks = events(http, "/v1/completions", {"prompt": prompt, **fields, **options})
    assert streamed_text(chunks) == plain["choices"][0]["text"]
    for count in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert chunks[-1]["usage"][count] == plain["usage"][count]
    assert plain["usage"]["completion_tokens"] == 24


def test_the_openai_package_streams_the_text_that_it_gets_unstreamed(openai: OpenAI) -> None:
    fields: dict[str, Any] = {"model": MODEL, "prompt": FRANCE, "max_tokens": 12, "temperature": 0}
    whole = openai.completions.create(**fields)
    pieces = list(openai.completions.create(**fields, stream=True))
    assert len(pieces) > 2
    assert "".join(piece.choices[0].text for piece in pieces) == whole.choices[0].text


def test_a_streamed_chat_answer_equals_the_unstreamed_one(openai: OpenAI) -> None:
    fields: dict[str, Any] = {
        "model": MODEL,
        "messages": [
            {"role": "system", "content": "Answer briefly."},
            {"role": "user", "content": "Name a colour."},
            {"role": "assistant", "content": "Blue."},
            {"role": "user", "content": "Name another."},
        ],
        "max_tokens": 16,
        "temperature": 0,
    }
    whole = openai.chat.completions.create(**fields)
    stream = openai.chat.completions.create(**fields, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == (
        whole.choices[0].message.content
    )
    assert whole.usage is not None and chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens > 20


def test_concurrent_requests_get_the_texts_that_each_gets_alone(http: httpx.Client) -> None:
    prompts = [*STORIES, passage(1, 2500), passage(2, 900), passage(1, 2500)[:1800]]

    def text(prompt: str) -> str:
        answer = complete(http, prompt, max_tokens=20, temperature=0, ignore_eos=True)
        assert answer["usage"]["completion_tokens"] == 20
        words: str = answer["choices"][0]["text"]
        return words

    with ThreadPoolExecutor(len(prompts)) as threads:
        together = list(threads.map(text, prompts))
    for prompt, words in zip(prompts, together, strict=True):
        http.post("/flush_cache")
        assert text(prompt) == words, prompt


def test_a_batch_equals_its_prompts_one_by_one_and_token_ids_equal_their_text(http: httpx.Client) -> None:
    fields = {"max_tokens": 8, "temperature": 0, "ignore_eos": True}
    alone = [complete(http, prompt, **fields) for prompt in STORIES]
    batch = complete(http, STORIES, **fields)
    assert [c["text"] for c in batch["choices"]] == [a["choices"][0]["text"] for a in alone]
    for count in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert batch["usage"][count] == sum(answer["usage"][count] for answer in alone)
    ids = [2, 818, 5279, 529, 7001, 563]
    assert complete(http, ids, **fields)["choices"] == complete(http, FRANCE, **fields)["choices"]
    both = complete(http, [ids, ids[:3]], **fields)
    assert both["choices"][0]["text"] == complete(http, FRANCE, **fields)["choices"][0]["text"]
    assert both["usage"]["prompt_tokens"] == 9


def test_a_repeated_prompt_is_computed_once(http: httpx.Client) -> None:
    prompt = "No earlier test sends this prompt: " + passage(3, 4000)
    first, again = (complete(http, prompt, max_tokens=4, temperature=0) for _ in range(2))
    assert cached_tokens(first) < 16
    whole_pages = first["usage"]["prompt_tokens"] // 16 * 16
    assert cached_tokens(again) >= whole_pages
    assert again["choices"] == first["choices"]


def test_logprobs_belong_to_the_text_and_do_not_depend_on_the_temperature(http: httpx.Client) -> None:
    greedy = complete(http, FRANCE, max_tokens=10, temperature=0, logprobs=1)["choices"][0]
    logprobs = greedy["logprobs"]
    assert "".join(logprobs["tokens"]) == greedy["text"]
    assert len(logprobs["token_logprobs"]) == 10
    assert all(-20 < value <= 0 for value in logprobs["token_logprobs"])
    for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        assert greedy["text"].startswith(token, offset)
    likeliest = complete(http, FRANCE, max_tokens=10, temperature=2, top_k=1, seed=3, logprobs=1)
    assert likeliest["choices"][0]["logprobs"] == logprobs
    messages = [{"role": "user", "content": "Say something."}]
    body = {"messages": messages, "max_tokens": 6, "temperature": 0, "logprobs": True}
    choice = http.post("/v1/chat/completions", json=body).json()["choices"][0]
    spelled = b"".join(bytes(entry["bytes"]) for entry in choice["logprobs"]["content"])
    assert choice["message"]["content"] in spelled.decode()


def test_a_stop_string_ends_the_text_before_it(http: httpx.Client) -> None:
    whole = complete(http, FRANCE, max_tokens=40, temperature=0)["choices"][0]["text"]
    stop = whole[30:36]
    body = {"max_tokens": 40, "temperature": 0, "stop": [stop, "never said"]}
    stopped = complete(http, FRANCE, **body)
    assert stopped["choices"][0]["text"] == whole[: whole.index(stop)]
    assert stopped["choices"][0]["finish_reason"] == "stop"
    assert stopped["usage"]["completion_tokens"] < 40
    chunks = events(http, "/v1/completions", {"prompt": FRANCE, **body})
    assert streamed_text(chunks) == stopped["choices"][0]["text"]
    until(lambda: is_settled(http))


def test_a_seed_determines_the_text_and_unseeded_texts_differ(http: httpx.Client) -> None:
    def text(**fields: int) -> str:
        answer = complete(http, "Once upon a time", max_tokens=24, temperature=1, **fields)
        words: str = answer["choices"][0]["text"]
        return words

    assert text(seed=1) == text(seed=1)
    assert len({text(seed=1), text(seed=2), text(), text()}) == 4


# ---------------------------------------------------------------- clients that disconnect


def test_the_pages_of_a_disconnected_client_are_freed(http: httpx.Client) -> None:
    until(lambda: is_settled(http))
    before = samples(http).get("transom:request_finish_total/disconnect", 0)
    body = {"prompt": passage(4, 6000), "max_tokens": 20_000, "ignore_eos": True, "stream": True}
    with http.stream("POST", "/v1/completions", json=body) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data: ")
        until(lambda: samples(http)["transom:num_running_reqs"] == 1)
        assert samples(http)["transom:full_used_tokens"] > 1000
    until(lambda: is_settled(http))
    assert samples(http)["transom:request_finish_total/disconnect"] == before + 1


# ---------------------------------------------------------------- refusals


def test_a_prompt_beyond_the_context_is_refused_with_both_numbers(http: httpx.Client) -> None:
    context = http.get("/v1/models").json()["data"][0]["max_model_len"]
    error = refused(http.post("/v1/completions", json={"prompt": [5] * (context + 7)}))
    assert error["code"] == "context_length_exceeded"
    assert error["param"] == "prompt"
    assert str(context) in error["message"] and str(context + 7) in error["message"]
    text = " a" * (context + 10)
    assert (
        refused(http.post("/v1/completions", json={"prompt": text, "stream": True}))["code"] == error["code"]
    )


def test_the_openai_package_raises_its_own_errors(openai: OpenAI) -> None:
    with pytest.raises(openai_package.BadRequestError) as caught:
        openai.completions.create(model=MODEL, prompt=FRANCE, temperature=3)
    assert caught.value.param == "temperature"
    with pytest.raises(openai_package.NotFoundError, match=MODEL):
        openai.completions.create(model="gpt-9", prompt=FRANCE)


@pytest.mark.parametrize(
    ("send", "status"),
    [
        (
            lambda http: http.post(
                "/v1/completions", content=b"{", headers={"content-type": "application/json"}
            ),
            400,
        ),
        (
            lambda http: http.post(
                "/v1/completions",
                content=b'{"prompt": "\xff\xfe"}',
                headers={"content-type": "application/json"},
            ),
            400,
        ),
        (lambda http: http.post("/v1/completions", json={"prompt": {"no": 1}}), 400),
        (lambda http: http.post("/v1/completions", json={"prompt": [1, 262_144]}), 400),
        (lambda http: http.post("/v1/completions", json={"prompt": "x", "max_tokens": "many"}), 400),
        (lambda http: http.post("/v1/chat/completions", json={"messages": [{"role": 1}]}), 400),
        (lambda http: http.post("/v1/completions", json={"prompt": "x", "model": "gpt-9"}), 404),
        (lambda http: http.post("/v1/nothing", json={}), 404),
        (lambda http: http.get("/v1/completions"), 405),
        (lambda http: http.put("/v1/chat/completions", json={}), 405),
    ],
)
def test_a_wrong_request_is_refused_and_the_server_stays_up(
    http: httpx.Client, send: Callable[[httpx.Client], httpx.Response], status: int
) -> None:
    refused(send(http), status)
    assert http.get("/health").status_code == 200
    assert chat(http, "hi", max_tokens=1)["usage"]["completion_tokens"] == 1


# ---------------------------------------------------------------- crashes and shutdown


def streams(http: httpx.Client, count: int, open_streams: ExitStack) -> list[Iterator[str]]:
    """Long streams that are running: the first event of each has arrived."""
    found = []
    for number in range(count):
        body = {"prompt": passage(number, 400), "max_tokens": 20_000, "ignore_eos": True, "stream": True}
        answer = open_streams.enter_context(http.stream("POST", "/v1/completions", json=body))
        lines = answer.iter_lines()
        assert next(lines).startswith("data: ")
        found.append(lines)
    return found


def final_error(lines: Iterator[str]) -> str:
    """The message of the error that ends a stream. [DONE] must follow it."""
    *_, last, done = [line for line in lines if line]
    assert done == "data: [DONE]"
    error = json.loads(last.removeprefix("data: "))["error"]
    assert error["type"] == "server_error"
    message: str = error["message"]
    return message


def test_a_killed_engine_is_replaced_and_every_stream_continues() -> None:
    resolve_model(None)
    with serving() as server, server.client() as http:
        before = complete(http, FRANCE, max_tokens=12, temperature=0)["choices"][0]["text"]
        engine = server.engine_pid
        with ExitStack() as open_streams:
            running = streams(http, 3, open_streams)
            os.kill(engine, signal.SIGKILL)
            until(lambda: http.get("/health").status_code == 503)
            # The new engine is still loading the model: this request waits for it.
            late = complete(http, FRANCE, max_tokens=12, temperature=0)["choices"][0]["text"]
            assert late == before
            for lines in running:
                following = [line for line in islice(lines, 40) if line]
                assert following and not any('"error"' in line for line in following)
        assert not is_alive(engine) and server.engine_pid != engine
        assert server.stop() == 0


def test_the_server_stops_on_a_signal_during_a_stream_and_starts_again() -> None:
    resolve_model(None)
    texts = []
    for number in (signal.SIGTERM, signal.SIGINT):
        with serving("--finish-seconds", "1") as server, server.client() as http:
            texts.append(complete(http, FRANCE, max_tokens=12, temperature=0)["choices"][0]["text"])
            with ExitStack() as open_streams:
                running = streams(http, 2, open_streams)
                engine = server.engine_pid
                server.process.send_signal(number)
                assert all("shutting down" in final_error(lines) for lines in running)
            assert server.process.wait(DEADLINE_SECONDS) == 0
            assert not is_alive(engine)
    assert texts[0] == texts[1]

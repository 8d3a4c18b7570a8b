"""Requests that tests send to a server over HTTP, and readers of its answers, streams and metrics."""

import json
import os
import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

Json = dict[str, Any]

DEADLINE_SECONDS = 120
"""No request takes this long; a test that would hang fails instead."""


def until(condition: Callable[[], bool]) -> None:
    """Polls until the condition holds; fails after the deadline."""
    end = monotonic() + DEADLINE_SECONDS
    while not condition():
        assert monotonic() < end, f"the condition did not hold within {DEADLINE_SECONDS} s"
        threading.Event().wait(0.005)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def complete(http: httpx.Client, prompt: Any, **fields: Any) -> Json:
    answer = http.post("/v1/completions", json={"prompt": prompt, **fields})
    assert answer.status_code == 200, answer.text
    body: Json = answer.json()
    return body


def chat(http: httpx.Client, content: Any, **fields: Any) -> Json:
    messages = [{"role": "user", "content": content}]
    answer = http.post("/v1/chat/completions", json={"messages": messages, **fields})
    assert answer.status_code == 200, answer.text
    body: Json = answer.json()
    return body


def events(http: httpx.Client, path: str, body: Json) -> list[Json]:
    """The chunks of a stream. The stream must end with [DONE]."""
    with http.stream("POST", path, json={**body, "stream": True}) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in answer.iter_lines() if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def streamed_text(chunks: list[Json], index: int = 0) -> str:
    choices = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
    return "".join(c["text"] if "text" in c else c["delta"].get("content", "") for c in choices)


def cached_tokens(answer: Json) -> int:
    count: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return count


def refused(answer: httpx.Response, status: int = 400) -> Json:
    """The error of a refused request: it must have the fields of an OpenAI error and a one-line message."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert set(body) == {"error"}
    error: Json = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert "\n" not in error["message"]
    return error


def samples(http: httpx.Client) -> dict[str, float]:
    """Every sample of /metrics, keyed by its name followed by "/value" for each label except model_name."""
    answer = http.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    found = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            assert sample.labels["model_name"]
            rest = "".join(f"/{v}" for k, v in sorted(sample.labels.items()) if k != "model_name")
            found[sample.name + rest] = sample.value
    return found


def is_settled(http: httpx.Client) -> bool:
    """Whether no request runs or waits, and no request owns a page in any pool."""
    found = samples(http)
    names = ("num_running_reqs", "num_queue_reqs", "full_used_tokens", "swa_used_tokens")
    return not any(found[f"transom:{name}"] for name in names)

"""Kills of the engine under load: every answer is whole and equal to the cold one, none doubled or lost."""

import json
import os
import random
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from tests.over_http import Json, complete, samples, until
from tests.serving import Serving, serving
from tests.tiny import write_tiny_gguf

KILLS = int(os.environ.get("CRASH_KILLS", "100"))
STOPS = int(os.environ.get("CRASH_STOPS", "20"))
CLIENTS = 12
FLAGS = ("--page-size", "16", "--chunked-prefill-size", "64", "--max-total-tokens", "6000", "--threads", "1")

Answer = tuple[object, ...]


def bodies() -> list[Json]:
    """Plain, several outputs, log-probabilities of outputs and prompts, batches; greedy and sampled."""
    rng = random.Random(1)
    stem = "".join(rng.choices("the anrios", k=300))
    common = [{"prompt": stem[: rng.randrange(20, 300)], "max_tokens": 400, "seed": n} for n in range(12)]
    kinds: list[Json] = [
        {"temperature": 0},
        {"temperature": 1, "n": 3},
        {"temperature": 1, "logprobs": 3, "n": 2},
        {"temperature": 1, "logprobs": 2, "echo": True},
    ]
    rules = {"repetition_penalty": 1.2, "presence_penalty": 0.5, "bad_words": ["an"], "logit_bias": {"40": 2}}
    ruled: list[Json] = [{}, {}, rules]
    singles = [
        {**body, **kinds[number % 4], **ruled[number % 3], "ignore_eos": True}
        for number, body in enumerate(common)
    ]
    batch = {"prompt": [stem[:50], stem[:120], stem[100:]], "max_tokens": 200, "temperature": 1, "seed": 5}
    return [*singles, {**batch, "ignore_eos": True}]


def plain(http: httpx.Client, body: Json) -> Answer:
    answer = complete(http, **body)
    usage = answer["usage"]
    return (
        [_choice(choice) for choice in answer["choices"]],
        usage["prompt_tokens"],
        usage["completion_tokens"],
    )


def _choice(choice: Json) -> Answer:
    scores = choice.get("logprobs") or {}
    return (
        choice["text"],
        choice["finish_reason"],
        scores.get("tokens", []),
        scores.get("token_logprobs", []),
        scores.get("top_logprobs", []),
    )


@dataclass
class Pauses:
    """The longest time between two events of a stream. Mutable."""

    longest: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def see(self, seconds: float) -> None:
        with self.lock:
            self.longest = max(self.longest, seconds)


def streamed(http: httpx.Client, body: Json, pauses: Pauses) -> Answer:
    """The same answer, put together from the events of a stream."""
    choices: dict[int, Json] = {}
    usage: Json = {}
    last: float | None = None  # the first event may wait for an update of the weights
    request = {**body, "stream": True, "stream_options": {"include_usage": True}}
    with http.stream("POST", "/v1/completions", json=request) as answer:
        assert answer.status_code == 200, answer.read()
        lines = []
        for line in answer.iter_lines():
            if line:
                now = time.monotonic()
                pauses.see(now - (last or now))
                last = now
                lines.append(line.removeprefix("data: "))
    assert lines[-1] == "[DONE]" and not any('"error"' in line for line in lines), lines[-3:]
    for event in map(json.loads, lines[:-1]):
        usage = event.get("usage") or usage
        for part in event["choices"]:
            whole = choices.setdefault(part["index"], {"text": "", "finish_reason": None, "logprobs": {}})
            assert whole["finish_reason"] is None, "an event after the end"
            whole["text"] += part["text"]
            whole["finish_reason"] = part["finish_reason"]
            for name, values in (part.get("logprobs") or {}).items():
                whole["logprobs"].setdefault(name, []).extend(values)
    ordered = [_choice(choices[index]) for index in sorted(choices)]
    return ordered, usage["prompt_tokens"], usage["completion_tokens"]


def cold(http: httpx.Client, asked: Sequence[Json]) -> list[Answer]:
    answers = []
    for body in asked:
        assert http.post("/flush_cache").status_code == 200
        answers.append(plain(http, body))
    return answers


@pytest.mark.slow
def test_kills_under_load_change_no_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = [write_tiny_gguf(tmp_path / f"{seed}.gguf", seed) for seed in range(2)]
    pauses, asked, rng = Pauses(), bodies(), random.Random(2)
    folder = ("--weights-dir", str(tmp_path))
    with serving(*FLAGS, *folder, model=weights[0]) as server, server.client() as http:
        expected = []
        for path in reversed(weights):
            update(http, path)
            expected.append(cold(http, asked))
        assert expected[0] != expected[1]
        with load(server, asked, expected, pauses) as answered:
            for number in range(KILLS + STOPS):
                hit(server, http, number, stop=number % 6 == 5 and number // 6 < STOPS)
                if number % 10 == 9:
                    update(http, rng.choice(weights))
                threading.Event().wait(rng.uniform(0, 0.6))
        restarts = int(samples(http)["transom:engine_restarts_total"])
    assert restarts == KILLS + STOPS
    with capsys.disabled():
        print(
            f"\n{KILLS} kills and {STOPS} stops: {len(answered)} answers, all equal to the cold ones; "
            f"longest pause of a stream {pauses.longest:.1f} s"
        )


def update(http: httpx.Client, path: Path) -> None:
    answer = http.post("/update_weights_from_disk", json={"model_path": str(path), "mode": "drain"})
    assert answer.status_code == 200, answer.text


def hit(server: Serving, http: httpx.Client, number: int, *, stop: bool) -> None:
    """Kills or stops the engine, and waits until the next one serves."""
    os.kill(server.engine_pid, signal.SIGSTOP if stop else signal.SIGKILL)
    until(lambda: samples(http)["transom:engine_restarts_total"] == number + 1)


@contextmanager
def load(
    server: Serving, asked: Sequence[Json], expected: Sequence[Sequence[Answer]], pauses: Pauses
) -> Iterator[list[int]]:
    """Clients that ask all the time. At the end of the block each one finishes its last request."""
    over = threading.Event()
    answered: list[int] = []

    def client(seed: int) -> None:
        rng = random.Random(seed)
        with server.client() as http:
            while not over.is_set():
                which = rng.randrange(len(asked))
                body = asked[which]
                found = streamed(http, body, pauses) if rng.random() < 0.6 else plain(http, body)
                assert found in [answers[which] for answers in expected], (which, found)
                answered.append(which)

    with ThreadPoolExecutor(CLIENTS) as threads:
        clients = [threads.submit(client, seed) for seed in range(CLIENTS)]
        try:
            yield answered
        finally:
            over.set()
        for one in clients:
            one.result()

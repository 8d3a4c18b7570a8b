"""Many storms on one server, for minutes: texts equal a cold run, no page leaks, memory does not grow."""

import os
import random
import statistics
from pathlib import Path

import httpx
import pytest
from tests.e2e.storm import FLAGS, WINDOW, requests, require_cold, storm
from tests.over_http import Json, is_settled, samples, until
from tests.serving import Serving, serving
from tests.tiny import TinyShape, write_tiny_gguf

ROUNDS = int(os.environ.get("SOAK_ROUNDS", "60"))
REQUESTS, COMPARED = 160, 8
GROWTH_MIB = 8
"""Allowed growth of resident memory from the middle third of the rounds to the last third.

The first third is left out: allocators and caches fill in it.
"""

WRONG_BODIES: tuple[Json, ...] = (
    {"prompt": [1, -4]},
    {"prompt": "a", "max_tokens": -1},
    {"prompt": "a" * 100_000},
    {"prompt": "a", "n": 0},
    {"prompt": "a", "temperature": "hot"},
    {"prompt": {"a": 1}},
    {"prompt": "a", "model": "another"},
)


def extended(rng: random.Random, body: Json) -> Json:
    """The body with several choices or log-probabilities added, at random."""
    return {**body, "n": rng.choice([1, 1, 1, 3]), "logprobs": rng.choice([None, None, 0, 4])}


def resident_mib(pid: int) -> float:
    """Resident memory of a process."""
    (line,) = [
        line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS")
    ]
    return int(line.split()[1]) / 1024


def send_wrong_requests(http: httpx.Client) -> None:
    for body in WRONG_BODIES:
        answer = http.post("/v1/completions", json=body)
        assert answer.status_code in (400, 404), answer.text
    assert (
        http.post(
            "/v1/completions", content=b'{"prompt": ', headers={"content-type": "application/json"}
        ).status_code
        == 400
    )


@pytest.mark.slow
@pytest.mark.timeout(0)  # no limit for the test: each request has its own
def test_many_storms_leak_neither_pages_nor_memory(tmp_path: Path) -> None:
    assert ROUNDS >= 6, "too few to see a trend"
    rng = random.Random(11)
    model = write_tiny_gguf(tmp_path / "tiny.gguf", shape=TinyShape(window=WINDOW))
    memory: list[tuple[float, float]] = []
    with serving(*FLAGS, model=model) as server, server.client() as http:
        engine = server.engine_pid
        for _ in range(ROUNDS):
            bodies = [extended(rng, body) for body in requests(rng, REQUESTS)]
            answers = storm(http, rng, bodies)
            send_wrong_requests(http)
            until(lambda: is_settled(http))
            for number in rng.sample([*answers], COMPARED):
                require_cold(http, bodies[number], answers[number])
            memory.append((resident_mib(server.process.pid), resident_mib(engine)))
        require_intact(server, http, engine)
    for name, of_process in zip(("server", "engine"), zip(*memory, strict=True), strict=True):
        early, late = of_process[ROUNDS // 3 : 2 * ROUNDS // 3], of_process[-ROUNDS // 3 :]
        print(f"{name}: {statistics.median(early):.1f} MiB, at the end {statistics.median(late):.1f} MiB")
        assert statistics.median(late) < statistics.median(early) + GROWTH_MIB, of_process


def require_intact(server: Serving, http: httpx.Client, engine: int) -> None:
    """Requires that the engine was not restarted, no step failed, and no request owns pages."""
    found = samples(http)
    print({name: value for name, value in found.items() if name.endswith("_total")})
    assert server.engine_pid == engine
    assert found["transom:num_failed_steps_total"] == 0
    assert found["transom:num_retracted_requests_total"] > 0 and is_settled(http)

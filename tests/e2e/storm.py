"""Concurrent clients over HTTP: some read to the end, some disconnect, some flush or retract all requests."""

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import httpx
from tests.over_http import Json, complete

CLIENTS = 24
FLAGS = (
    *("--page-size", "16", "--chunked-prefill-size", "64", "--max-total-tokens", "4000"),
    *("--swa-full-tokens-ratio", "0.12", "--threads", "1", "--paranoid"),
)
"""Pools too small for all clients, on a tiny model with a window of 160 (`WINDOW`)."""

WINDOW = 160
KINDS = {"stay": 60, "leave": 30, "flush": 5, "retract": 5}
"""Behaviours of clients, with their weights in the random draw."""

Answer = tuple[object, ...]


def requests(rng: random.Random, count: int) -> list[Json]:
    """Request bodies. Many prompts share a prefix; greedy and sampled, with and without stop strings."""
    stem = "".join(rng.choices("the anrios", k=200))
    return [
        {
            "prompt": stem[: rng.randrange(200)] + str(number) * rng.randrange(8),
            "max_tokens": rng.randrange(1, 120),
            "temperature": rng.choice([0, 1]),
            "seed": number,
            "ignore_eos": rng.random() < 0.8,
            "repetition_penalty": rng.choice([1, 1, 1.2]),
            "min_tokens": rng.choice([0, 1]),
            "stop": rng.choice([None, None, ["th", rng.choice("eanrs")]]),
        }
        for number in range(count)
    ]


def storm(http: httpx.Client, rng: random.Random, bodies: Sequence[Json]) -> dict[int, Answer]:
    """Sends all requests at once. Returns the answers of the clients that stayed, by request number."""
    kinds = rng.choices([*KINDS], weights=[*KINDS.values()], k=len(bodies))
    early = [rng.randrange(20) for _ in bodies]

    def play(number: int) -> Answer | None:
        match kinds[number]:
            case "leave":
                leave_early(http, bodies[number], early[number])
            case "flush":
                assert http.post("/flush_cache").status_code == 200
            case "retract":
                assert http.post("/pause_generation", json={"mode": "retract"}).status_code == 200
                assert http.post("/continue_generation").status_code == 200
            case _:
                return compared(complete(http, **bodies[number]))
        return None

    with ThreadPoolExecutor(CLIENTS) as threads:
        answers = list(threads.map(play, range(len(bodies))))
    return {number: answer for number, answer in enumerate(answers) if answer is not None}


def leave_early(http: httpx.Client, body: Json, lines: int) -> None:
    """Reads a few lines of a stream, then disconnects."""
    with http.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
        assert answer.status_code == 200
        for number, _ in enumerate(answer.iter_lines()):
            if number >= lines:
                return


def compared(answer: Json) -> Answer:
    """The part of an answer that must not depend on the cache or on other requests."""
    return answer["choices"], answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]


def require_cold(http: httpx.Client, body: Json, answer: Answer) -> None:
    """Requires the same answer from an empty cache, with no other request running."""
    assert http.post("/flush_cache").status_code == 200
    assert compared(complete(http, **body)) == answer, body

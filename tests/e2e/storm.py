"""Everything at once over HTTP: clients that stay, leave, flush, and have everybody retracted."""

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
"""Pools too small for them, on a tiny model with a window of 160."""

WINDOW = 160
KINDS = {"stay": 60, "leave": 30, "flush": 5, "retract": 5}

Told = tuple[object, ...]


def requests(rng: random.Random, count: int) -> list[Json]:
    """Prompts of which many share a beginning; greedy and sampled, with and without stop strings."""
    stem = "".join(rng.choices("the anrios", k=200))
    return [
        {
            "prompt": stem[: rng.randrange(200)] + str(number) * rng.randrange(8),
            "max_tokens": rng.randrange(1, 120),
            "temperature": rng.choice([0, 1]),
            "seed": number,
            "ignore_eos": rng.random() < 0.8,
            "stop": rng.choice([None, None, ["th", rng.choice("eanrs")]]),
        }
        for number in range(count)
    ]


def storm(http: httpx.Client, rng: random.Random, bodies: Sequence[Json]) -> dict[int, Told]:
    """What those were told who stayed."""
    kinds = rng.choices([*KINDS], weights=[*KINDS.values()], k=len(bodies))
    early = [rng.randrange(20) for _ in bodies]

    def play(number: int) -> Told | None:
        match kinds[number]:
            case "leave":
                leave_early(http, bodies[number], early[number])
            case "flush":
                assert http.post("/flush_cache").status_code == 200
            case "retract":
                assert http.post("/pause_generation", json={"mode": "retract"}).status_code == 200
                assert http.post("/continue_generation").status_code == 200
            case _:
                return told(complete(http, **bodies[number]))
        return None

    with ThreadPoolExecutor(CLIENTS) as threads:
        answers = list(threads.map(play, range(len(bodies))))
    return {number: answer for number, answer in enumerate(answers) if answer is not None}


def leave_early(http: httpx.Client, body: Json, lines: int) -> None:
    """Reads a few lines of a stream, then is gone."""
    with http.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
        assert answer.status_code == 200
        for number, _ in enumerate(answer.iter_lines()):
            if number >= lines:
                return


def told(answer: Json) -> Told:
    return answer["choices"], answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]


def require_cold(http: httpx.Client, body: Json, answer: Told) -> None:
    """The answer is what it is on an empty cache, alone."""
    assert http.post("/flush_cache").status_code == 200
    assert told(complete(http, **body)) == answer, body

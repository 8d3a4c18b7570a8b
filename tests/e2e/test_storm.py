"""Everything at once over HTTP, pools too small, invariants checked after every step; texts stay cold.

How often pools too small lead to a retraction hangs on how fast requests come, and so on the machine. So some
are asked for.
"""

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from tests.over_http import Json, complete, is_settled, samples, until
from tests.serving import serving
from tests.tiny import TinyShape, write_tiny_gguf

REQUESTS, CLIENTS, COMPARED = 160, 24, 40
FLAGS = (
    *("--page-size", "16", "--chunked-prefill-size", "64", "--max-total-tokens", "4000"),
    *("--swa-full-tokens-ratio", "0.12", "--threads", "1", "--paranoid"),
)


def requests(rng: random.Random) -> list[Json]:
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
        for number in range(REQUESTS)
    ]


def leave_early(http: httpx.Client, body: Json, lines: int) -> None:
    """Reads a few lines of a stream, then is gone."""
    with http.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
        assert answer.status_code == 200
        for number, _ in enumerate(answer.iter_lines()):
            if number >= lines:
                return


@pytest.mark.parametrize("seed", [5])
def test_texts_stay_cold_while_clients_come_leave_flush_and_retract(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    bodies = requests(rng)
    kinds = rng.choices(["stay", "leave", "flush", "retract"], weights=[60, 30, 5, 5], k=REQUESTS)
    early = [rng.randrange(20) for _ in bodies]
    model = write_tiny_gguf(tmp_path / "tiny.gguf", shape=TinyShape(window=160))
    with serving(*FLAGS, model=model) as server, server.client() as http:

        def play(number: int) -> tuple[object, ...] | None:
            if kinds[number] == "leave":
                leave_early(http, bodies[number], early[number])
            elif kinds[number] == "flush":
                assert http.post("/flush_cache").status_code == 200
            elif kinds[number] == "retract":
                assert http.post("/pause_generation", json={"mode": "retract"}).status_code == 200
                assert http.post("/continue_generation").status_code == 200
            else:
                return told(complete(http, **bodies[number]))
            return None

        with ThreadPoolExecutor(CLIENTS) as threads:
            answers = list(threads.map(play, range(REQUESTS)))
        until(lambda: is_settled(http))
        assert samples(http)["transom:num_retracted_requests_total"] > 0
        assert samples(http)["transom:cached_tokens_total"] > 0
        stayed = [number for number, answer in enumerate(answers) if answer is not None]
        for number in rng.sample(stayed, COMPARED):
            http.post("/flush_cache")
            assert told(complete(http, **bodies[number])) == answers[number], bodies[number]


def told(answer: Json) -> tuple[object, ...]:
    return answer["choices"], answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]

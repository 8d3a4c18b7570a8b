"""Report A over HTTP: a window pool a tenth of the full pool, chunks of 128, eight clients, too few pages.

Short answers come first. The scheduler then expects short outputs and admits more requests than fit to the
end, so that some must be retracted.
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from tests.english import passage, random_words
from tests.over_http import Json, complete, events, samples, streamed_text, until
from tests.serving import Serving, serving
from tests.tiny import TinyShape, write_tiny_gguf

from transom.weights.builtin import resolve_model

CLIENTS = 8
FLAGS = ("--swa-full-tokens-ratio", "0.1", "--threads", "1")
WAITING = "transom:num_queue_reqs"
RETRACTIONS = "transom:num_retracted_requests_total"
LENGTHS = "transom:request_finish_total/length"
SHORT, SHORT_TOKENS = 12, 32
"""Enough finished requests for the scheduler to trust their lengths.

Before that it assumes the worst case, and admits no request that might not fit.
"""
NO_CACHE = "--disable-radix-cache"


@dataclass(frozen=True)
class ClientRequest:
    """One client's request. It is sampled with its own seed, so that the text does not become repetitive."""

    prompt: str
    tokens: int
    seed: int

    def fields(self) -> Json:
        return {"max_tokens": self.tokens, "temperature": 0.7, "seed": self.seed, "ignore_eos": True}


@pytest.mark.slow  # half a minute each; the fast lane has the tiny model below, and the same model in process
@pytest.mark.model
@pytest.mark.parametrize("flags", [pytest.param((), id="cached"), pytest.param((NO_CACHE,), id="uncached")])
def test_retraction_over_http_on_the_default_model(flags: tuple[str, ...]) -> None:
    """Eight prompts fit together, but not with their outputs. Some share a prefix; one exceeds the window."""
    resolve_model(None)
    prompts = [
        *(f"{passage(1, 200)}\n{random_words(n, 10)}" for n in range(3)),
        passage(20, 2600),
        *(passage(10 + n, 200) for n in range(4)),
    ]
    requests = [ClientRequest(prompt, 72, seed) for seed, prompt in enumerate(prompts)]
    with serving(*FLAGS, "--chunked-prefill-size", "128", "--max-total-tokens", "6080", *flags) as server:
        texts_survive_retraction(server, requests)


@pytest.mark.parametrize(
    ("page_size", "flags"),
    [
        pytest.param("1", (), id="1-cached"),
        pytest.param("4", (NO_CACHE,), id="4-uncached"),
        pytest.param("4", (), id="4-cached", marks=pytest.mark.slow),
        pytest.param("1", (NO_CACHE,), id="1-uncached", marks=pytest.mark.slow),
    ],
)
def test_retraction_over_http_with_every_invariant_checked(
    tmp_path: Path, page_size: str, flags: tuple[str, ...]
) -> None:
    """The same on a tiny model with a window of 160. The engine checks all invariants after every step."""
    stem = "the rain in the hat"
    prompts = [stem[: 3 * n] + random_words(n, 2) for n in range(CLIENTS)]
    requests = [ClientRequest(prompt, 100, seed) for seed, prompt in enumerate(prompts)]
    sizes = ("--page-size", page_size, "--chunked-prefill-size", "16", "--max-total-tokens", "2000")
    model = write_tiny_gguf(tmp_path / "tiny.gguf", shape=TinyShape(window=160))
    with serving(*FLAGS, *sizes, "--paranoid", *flags, model=model) as server:
        texts_survive_retraction(server, requests)


def texts_survive_retraction(server: Serving, requests: Sequence[ClientRequest]) -> None:
    """Requires the same texts from all requests at once and from each alone on an empty cache.

    The engine is paused while the requests arrive, so that their order is fixed. Half of them are streamed.
    """
    assert len(requests) == CLIENTS
    with server.client() as http:
        with ThreadPoolExecutor(CLIENTS) as threads:
            warm_up = [
                threads.submit(complete, http, "so", max_tokens=SHORT_TOKENS, ignore_eos=True)
                for _ in range(SHORT)
            ]
            assert all(answer.result() for answer in warm_up)
            assert samples(http)[LENGTHS] == SHORT
            before = samples(http)[RETRACTIONS]
            http.post("/flush_cache")
            http.post("/pause_generation")
            futures: list[Future[str]] = []
            for request in requests:
                futures.append(threads.submit(text, http, request, stream=request.seed % 2 == 0))
                until(lambda: samples(http)[WAITING] == len(futures))
            http.post("/continue_generation")
            together = [answer.result() for answer in futures]
        assert samples(http)[RETRACTIONS] > before
        assert samples(http)[LENGTHS] == SHORT + CLIENTS
        for request, words in zip(requests, together, strict=True):
            http.post("/flush_cache")
            assert text(http, request, stream=False) == words, request


def text(http: httpx.Client, request: ClientRequest, *, stream: bool) -> str:
    if stream:
        options = {"stream_options": {"include_usage": True}}
        body = {"prompt": request.prompt, **request.fields(), **options}
        chunks = events(http, "/v1/completions", body)
        assert chunks[-1]["usage"]["completion_tokens"] == request.tokens
        return streamed_text(chunks)
    answer = complete(http, request.prompt, **request.fields())
    assert answer["usage"]["completion_tokens"] == request.tokens
    words: str = answer["choices"][0]["text"]
    return words

"""Figures of one run of a workload: latencies, throughput, and prompt tokens found in the cache."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from transom.bench.play import Played
from transom.bench.server import Answer, Failed
from transom.bench.workloads import Workload

FOUND_SHARE = 0.9
"""The share of common tokens that a cache must find. It cannot find all: the last page of a prefix may not
be whole, and at the seam of two texts the tokenizer may split differently."""
CHANCE_TOKENS = 8
"""Tokens per prompt that may be found by chance: the first token of every text, or a repeated random word."""


@dataclass(frozen=True, slots=True)
class Hits:
    """Prompt tokens found in a cache, and the range in which they lie if the cache was empty at the start.

    For `least`, each prompt finds `FOUND_SHARE` of the common prefix or of its previous turn.
    """

    found: int
    least: int
    most: int


@dataclass(frozen=True, slots=True)
class Figures:
    """Times are in milliseconds, and NaN without a measurement. `itl` is the time between pieces of text.

    seconds, client_cpu_seconds
                of the whole run; CPU time of this process, to show whether the client was the bottleneck
    tpot_ms_p50 time from an answer's first to its last token, divided by the tokens after the first
    hits        None if the server does not report cached tokens
    texts       answers in the order of the prompts; "" for failed requests
    """

    requests: int
    failed: int
    seconds: float
    client_cpu_seconds: float
    prompt_tokens: int
    output_tokens: int
    output_tokens_per_s: float
    prompt_tokens_per_s: float
    ttft_ms_p50: float
    ttft_ms_p95: float
    itl_ms_p50: float
    itl_ms_p95: float
    itl_ms_max: float
    tpot_ms_p50: float
    hits: Hits | None
    first_failure: str | None
    texts: tuple[str, ...]


def figures_of(workload: Workload, played: Played) -> Figures:
    everything = [answer for answers in played.conversations for answer in answers]
    answers = [answer for answer in everything if isinstance(answer, Answer)]
    failures = [answer.reason for answer in everything if isinstance(answer, Failed)]
    prompt, output = sum(a.prompt_tokens for a in answers), sum(a.output_tokens for a in answers)
    ttft = [1e3 * (a.times[0] - a.began) for a in answers if a.times]
    itl = [1e3 * (later - sooner) for a in answers for sooner, later in pairwise(a.times)]
    return Figures(
        requests=workload.requests,
        failed=workload.requests - len(answers),
        seconds=played.seconds,
        client_cpu_seconds=played.client_cpu_seconds,
        prompt_tokens=prompt,
        output_tokens=output,
        output_tokens_per_s=output / played.seconds,
        prompt_tokens_per_s=prompt / played.seconds,
        ttft_ms_p50=percentile(ttft, 50),
        ttft_ms_p95=percentile(ttft, 95),
        itl_ms_p50=percentile(itl, 50),
        itl_ms_p95=percentile(itl, 95),
        itl_ms_max=percentile(itl, 100),
        tpot_ms_p50=percentile([*_tpot_ms(answers)], 50),
        hits=_hits(played),
        first_failure=failures[0] if failures else None,
        texts=tuple(_texts(workload, played)),
    )


def percentile(values: Sequence[float], share: float) -> float:
    return float(np.percentile(values, share)) if values else float("nan")


def _tpot_ms(answers: Iterable[Answer]) -> Iterator[float]:
    for answer in answers:
        if answer.output_tokens > 1 and answer.times:
            yield 1e3 * (answer.times[-1] - answer.times[0]) / (answer.output_tokens - 1)


def _texts(workload: Workload, played: Played) -> Iterator[str]:
    for answers in played.conversations:
        texts = [answer.text if isinstance(answer, Answer) else "" for answer in answers]
        yield from texts
        yield from [""] * (workload.turns - len(texts))


def _hits(played: Played) -> Hits | None:
    """None if the server does not report cached tokens."""
    # The first prompt computes the common prefix, so it counts once less than there are conversations.
    found, shared, most = 0, -played.shared_tokens, -played.shared_tokens
    for answers in played.conversations:
        before: Answer | None = None
        for answer in answers:
            if isinstance(answer, Failed):
                break
            if answer.cached_tokens is None:
                return None
            found += answer.cached_tokens
            shared += before.prompt_tokens if before else played.shared_tokens
            most += CHANCE_TOKENS + (
                before.prompt_tokens + before.output_tokens if before else played.shared_tokens
            )
            before = answer
    return Hits(found, int(FOUND_SHARE * max(0, shared)), most)

"""A simulation in numbers: what its users felt, what the cache saved, what memory it took."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from transom_lab.sim.player import Played
from transom_lab.sim.records import Cause, Life


@dataclass(frozen=True, slots=True)
class Spread:
    """Of values in one unit. All 0 where there are none."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class PoolUse:
    """Bytes of one component, by samples: used by requests, and with what is cached beside that."""

    name: str
    used_bytes_max: int
    bytes_max: int
    used_bytes_mean: int


@dataclass(frozen=True, slots=True)
class Summary:
    """Tokens are of prompts, by how they began at first admission, unless said otherwise."""

    workload: str
    requests: int
    refused: int
    duration_s: float
    """From the first arrival to the last end."""
    busy_s: float
    """In steps."""
    output_tokens_per_s: float
    prompt_tokens_per_s: float
    requests_per_s: float
    ttft_ms: Spread
    itl_ms: Spread
    queue_ms: Spread
    """From being asked to the first step."""
    latency_ms: Spread
    prompt_tokens: int
    output_tokens: int
    hit_tokens: dict[Cause, int]
    """By cause; those of `cold` were computed."""
    begins: dict[Cause, int]
    """Requests by cause."""
    computed_tokens: int
    repaired_tokens: int
    retractions: int
    recomputed_tokens: int
    recompute_tax: float
    """Of tokens computed, the share computed again after a retraction."""
    steps: int
    spans: int
    pools: tuple[PoolUse, ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def hit_share(self) -> float:
        return 1.0 - self.hit_tokens[Cause.COLD] / max(1, self.prompt_tokens)


def summary_of(played: Played) -> Summary:
    stats = played.stats
    served = [life for life in played.lives if life.begun_at is not None]
    began = min((life.asked_at for life in played.lives), default=0.0)
    duration = max(played.ended_at - began, 1e-12)
    prompt = sum(life.prompt_tokens for life in served)
    output = sum(len(life.token_times) for life in served)
    return Summary(
        workload=played.trace.name,
        requests=len(played.lives),
        refused=len(played.lives) - len(served),
        duration_s=duration,
        busy_s=played.busy_s,
        output_tokens_per_s=output / duration,
        prompt_tokens_per_s=prompt / duration,
        requests_per_s=len(served) / duration,
        ttft_ms=spread(ttft_ms(played)),
        itl_ms=spread(_between_tokens(served)),
        queue_ms=spread(_since_asked(life, life.begun_at) for life in served),
        latency_ms=spread(_since_asked(life, life.ended_at) for life in served),
        prompt_tokens=prompt,
        output_tokens=output,
        hit_tokens=_tokens_by_cause(served),
        begins={cause: sum(life.found is cause for life in served) for cause in Cause},
        computed_tokens=stats.computed_tokens,
        repaired_tokens=stats.repaired_tokens,
        retractions=stats.retractions,
        recomputed_tokens=stats.recomputed_tokens,
        recompute_tax=stats.recomputed_tokens / max(1, stats.computed_tokens),
        steps=stats.steps,
        spans=stats.spans,
        pools=_pools(played),
    )


def ttft_ms(played: Played) -> list[float]:
    """Times to first token, of requests that got one."""
    return [1e3 * (life.token_times[0] - life.asked_at) for life in played.lives if life.token_times]


def spread(values: Iterable[float]) -> Spread:
    array = np.fromiter(values, np.float64)
    if not len(array):
        return Spread(0.0, 0.0, 0.0, 0.0, 0.0)
    p50, p90, p99 = np.percentile(array, (50, 90, 99)).tolist()
    return Spread(float(array.mean()), p50, p90, p99, float(array.max()))


def _since_asked(life: Life, moment: float | None) -> float:
    assert moment is not None, life
    return 1e3 * (moment - life.asked_at)


def _between_tokens(lives: Iterable[Life]) -> Iterable[float]:
    return (1e3 * (later - sooner) for life in lives for sooner, later in pairwise(life.token_times))


def _tokens_by_cause(lives: Iterable[Life]) -> dict[Cause, int]:
    tokens = dict.fromkeys(Cause, 0)
    for life in lives:
        tokens[life.found] += life.cached_tokens
        tokens[Cause.COLD] += life.prompt_tokens - life.cached_tokens
    return tokens


def _pools(played: Played) -> tuple[PoolUse, ...]:
    names = [component.name for component in played.sizing.layout.components]
    used = np.array([sample.used_bytes for sample in played.samples], np.int64)
    cached = np.array([sample.cached_bytes for sample in played.samples], np.int64)
    return tuple(
        PoolUse(
            name,
            int(used[:, number].max()),
            int((used + cached)[:, number].max()),
            int(used[:, number].mean()),
        )
        for number, name in enumerate(names)
    )

"""A simulation in figures: latencies, throughput, hits and memory. And a table that compares runs."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from rich import box
from rich.table import Table

from transom_lab.sim.player import Played
from transom_lab.sim.records import RequestRecord, StartKind


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean and percentiles of values in one unit. All are 0 if there are no values."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class PoolUse:
    """Bytes of one component over all samples: held by requests (`used`), and with cached pages."""

    name: str
    used_bytes_max: int
    bytes_max: int
    used_bytes_mean: int


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of one run. Fields have the names of the JSON that `transom simulate` writes.

    Hits are counted at a request's first admission. Tokens found again after a retraction are not hits.
    """

    workload: str
    requests: int
    refused: int
    duration_s: float
    """From the first arrival to the end of the last answer."""
    busy_s: float
    """Spent in steps."""
    output_tokens_per_s: float
    prompt_tokens_per_s: float
    requests_per_s: float
    ttft_ms: Spread
    itl_ms: Spread
    queue_ms: Spread
    """From the arrival to the beginning of the first step."""
    latency_ms: Spread
    prompt_tokens: int
    output_tokens: int
    hit_tokens: dict[StartKind, int]
    """Prompt tokens found, by kind of start; `cold` counts computed tokens."""
    begins: dict[StartKind, int]
    """Requests by kind of start."""
    computed_tokens: int
    repaired_tokens: int
    retractions: int
    recomputed_tokens: int
    recompute_tax: float
    """The share of computed tokens that were computed again after a retraction."""
    steps: int
    spans: int
    pools: tuple[PoolUse, ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def hit_share(self) -> float:
        return 1.0 - self.hit_tokens[StartKind.COLD] / max(1, self.prompt_tokens)


def summary_of(played: Played) -> Summary:
    stats = played.stats
    served = [record for record in played.records if record.started_at is not None]
    began = min((record.sent_at for record in played.records), default=0.0)
    duration = max(played.ended_at - began, 1e-12)  # an assumed cost of zero must not divide by zero
    prompt = sum(record.prompt_tokens for record in served)
    output = sum(len(record.token_times) for record in served)
    return Summary(
        workload=played.trace.name,
        requests=len(played.records),
        refused=len(played.records) - len(served),
        duration_s=duration,
        busy_s=played.busy_s,
        output_tokens_per_s=output / duration,
        prompt_tokens_per_s=prompt / duration,
        requests_per_s=len(served) / duration,
        ttft_ms=spread(ttft_ms(played)),
        itl_ms=spread(_between_tokens_ms(served)),
        queue_ms=spread(_since_sent_ms(record, record.started_at) for record in served),
        latency_ms=spread(_since_sent_ms(record, record.ended_at) for record in served),
        prompt_tokens=prompt,
        output_tokens=output,
        hit_tokens=_tokens_by_kind(served),
        begins={kind: sum(record.start_kind is kind for record in served) for kind in StartKind},
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
    """Times to first token. Requests that got no token are left out."""
    return [1e3 * (record.token_times[0] - record.sent_at) for record in played.records if record.token_times]


def spread(values: Iterable[float]) -> Spread:
    array = np.fromiter(values, np.float64)
    if not len(array):
        return Spread(0.0, 0.0, 0.0, 0.0, 0.0)
    p50, p90, p99 = np.percentile(array, (50, 90, 99)).tolist()
    return Spread(float(array.mean()), p50, p90, p99, float(array.max()))


def _since_sent_ms(record: RequestRecord, moment: float | None) -> float:
    assert moment is not None, record
    return 1e3 * (moment - record.sent_at)


def _between_tokens_ms(records: Iterable[RequestRecord]) -> Iterable[float]:
    return (1e3 * (later - sooner) for record in records for sooner, later in pairwise(record.token_times))


def _tokens_by_kind(records: Iterable[RequestRecord]) -> dict[StartKind, int]:
    tokens = dict.fromkeys(StartKind, 0)
    for record in records:
        tokens[record.start_kind] += record.cached_tokens
        tokens[StartKind.COLD] += record.prompt_tokens - record.cached_tokens
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


# ---------------------------------------------------------------- as a table


def table_of(summaries: Mapping[str, Summary]) -> Table:
    """One column per summary, under its name."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("", no_wrap=True)
    for name in summaries:
        table.add_column(name, justify="right")
    for section in SECTIONS:
        for words, figure in section:
            table.add_row(words, *map(figure, summaries.values()))
        table.add_section()
    _add_pools(table, list(summaries.values()))
    return table


def _add_pools(table: Table, summaries: list[Summary]) -> None:
    for number, pool in enumerate(summaries[0].pools):
        pools = [summary.pools[number] for summary in summaries]
        table.add_row(f"{pool.name} memory, most used", *[_bytes(p.used_bytes_max) for p in pools])
        table.add_row(f"{pool.name} memory, most with cached", *[_bytes(p.bytes_max) for p in pools])


def _percentiles(spread: Spread) -> str:
    return f"{_ms(spread.p50)} / {_ms(spread.p90)} / {_ms(spread.p99)}"


def _ms(value: float) -> str:
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def _bytes(count: int) -> str:
    return f"{count / 2**30:,.2f} GiB" if count >= 10 * 2**30 else f"{count / 2**20:,.1f} MiB"


def _part(tokens: int, whole: int) -> str:
    return f"{tokens:,} ({tokens / max(1, whole):.1%})"


def _hits(kind: StartKind) -> Callable[[Summary], str]:
    return lambda s: _part(s.hit_tokens[kind], s.prompt_tokens)


def _requests(summary: Summary) -> str:
    return f"{summary.requests:,}" + (f", {summary.refused:,} refused" if summary.refused else "")


SECTIONS: tuple[tuple[tuple[str, Callable[[Summary], str]], ...], ...] = (
    (
        ("requests", _requests),
        ("virtual time, s", lambda s: f"{s.duration_s:,.1f}"),
        ("computing", lambda s: f"{s.busy_s / s.duration_s:.1%}"),
        ("output tokens/s", lambda s: f"{s.output_tokens_per_s:,.1f}"),
        ("prompt tokens/s", lambda s: f"{s.prompt_tokens_per_s:,.1f}"),
    ),
    (
        ("ms, p50 / p90 / p99", lambda s: ""),
        ("  to first token", lambda s: _percentiles(s.ttft_ms)),
        ("  between tokens", lambda s: _percentiles(s.itl_ms)),
        ("  in the queue", lambda s: _percentiles(s.queue_ms)),
        ("  whole answer", lambda s: _percentiles(s.latency_ms)),
    ),
    (
        ("prompt tokens", lambda s: f"{s.prompt_tokens:,}"),
        ("  island hits", _hits(StartKind.ISLAND)),
        ("  repairs", _hits(StartKind.REPAIR)),
        ("  computed", _hits(StartKind.COLD)),
        ("retractions", lambda s: f"{s.retractions:,}"),
        ("recompute tax", lambda s: _part(s.recomputed_tokens, s.computed_tokens)),
        ("steps", lambda s: f"{s.steps:,}"),
    ),
)
"""Label and figure of each row."""

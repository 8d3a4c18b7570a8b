"""Summaries side by side, as a table for the terminal."""

from collections.abc import Callable, Mapping

from rich import box
from rich.table import Table

from transom_lab.sim.records import Cause
from transom_lab.sim.summary import Spread, Summary

Row = tuple[str, Callable[[Summary], str]]


def table_of(summaries: Mapping[str, Summary]) -> Table:
    """A column for each summary, by name."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("", no_wrap=True)
    for name in summaries:
        table.add_column(name, justify="right")
    for group in GROUPS:
        for words, figure in group:
            table.add_row(words, *map(figure, summaries.values()))
        table.add_section()
    _add_pools(table, list(summaries.values()))
    return table


def _add_pools(table: Table, summaries: list[Summary]) -> None:
    for number, pool in enumerate(summaries[0].pools):
        pools = [summary.pools[number] for summary in summaries]
        table.add_row(f"{pool.name} memory, most used", *[_bytes(p.used_bytes_max) for p in pools])
        table.add_row(f"{pool.name} memory, most with cached", *[_bytes(p.bytes_max) for p in pools])


def _spread(spread: Spread) -> str:
    return f"{_ms(spread.p50)} / {_ms(spread.p90)} / {_ms(spread.p99)}"


def _ms(value: float) -> str:
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def _bytes(count: int) -> str:
    return f"{count / 2**30:,.2f} GiB" if count >= 10 * 2**30 else f"{count / 2**20:,.1f} MiB"


def _part(tokens: int, whole: int) -> str:
    return f"{tokens:,} ({tokens / max(1, whole):.1%})"


def _hits(cause: Cause) -> Callable[[Summary], str]:
    return lambda s: _part(s.hit_tokens[cause], s.prompt_tokens)


def _requests(summary: Summary) -> str:
    return f"{summary.requests:,}" + (f", {summary.refused:,} refused" if summary.refused else "")


GROUPS: tuple[tuple[Row, ...], ...] = (
    (
        ("requests", _requests),
        ("virtual time, s", lambda s: f"{s.duration_s:,.1f}"),
        ("computing", lambda s: f"{s.busy_s / s.duration_s:.1%}"),
        ("output tokens/s", lambda s: f"{s.output_tokens_per_s:,.1f}"),
        ("prompt tokens/s", lambda s: f"{s.prompt_tokens_per_s:,.1f}"),
    ),
    (
        ("ms, p50 / p90 / p99", lambda s: ""),
        ("  to first token", lambda s: _spread(s.ttft_ms)),
        ("  between tokens", lambda s: _spread(s.itl_ms)),
        ("  in the queue", lambda s: _spread(s.queue_ms)),
        ("  whole answer", lambda s: _spread(s.latency_ms)),
    ),
    (
        ("prompt tokens", lambda s: f"{s.prompt_tokens:,}"),
        ("  island hits", _hits(Cause.ISLAND)),
        ("  repairs", _hits(Cause.REPAIR)),
        ("  computed", _hits(Cause.COLD)),
        ("retractions", lambda s: f"{s.retractions:,}"),
        ("recompute tax", lambda s: _part(s.recomputed_tokens, s.computed_tokens)),
        ("steps", lambda s: f"{s.steps:,}"),
    ),
)

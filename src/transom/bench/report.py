"""Reports runs of workloads: a table and notes on the terminal, JSON, charts."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from math import isfinite
from statistics import median

from rich import box
from rich.table import Table

from transom.bench.charts.bars import Group, bars_svg
from transom.bench.charts.page import Chart
from transom.bench.figures import Figures
from transom.bench.files import screen, write_files
from transom.bench.runs import Pair, Run, figures_for, median_of, pairs_of, warm_repeats, workloads_of
from transom.bench.server import Server, printable
from transom.bench.sheet import ResultFiles, machine_line, write_json

Figure = Callable[[Figures], float]

HEADINGS = (
    "workload",
    "server",
    "output\ntokens/s",
    "first token\nms, p50 / p95",
    "between tokens\nms, p50 / p95",
    "prompt tokens\ncached",
)
CHARTS: tuple[tuple[str, str, str, Figure], ...] = (
    ("output", "Output tokens per second", "tokens/s", lambda f: f.output_tokens_per_s),
    ("first-token", "Time to first token, median", "ms", lambda f: f.ttft_ms_p50),
    ("between-tokens", "Time between tokens, median", "ms", lambda f: f.itl_ms_p50),
)
LABELS = {
    "output_tokens_per_s": "output tokens/s",
    "ttft_ms_p50": "first token",
    "itl_ms_p50": "between tokens",
}


def report(servers: Sequence[Server], runs: Sequence[Run], failed: Sequence[str], files: ResultFiles) -> None:
    """Prints the results and writes the files. ConfigError if a file cannot be written."""
    console = screen()
    for server in servers:
        console.print(f"{server.label}: {server.access.address}, {_about(server)}")
    pairs = pairs_of(runs, servers)
    console.print(_table(servers, runs, pairs))
    for line in (*_ratio_lines(pairs), *_equal_answer_lines(runs, pairs)):
        console.print(line)
    for line in failed:
        console.print(f"WRONG: {line}", style="bold red")
    if files.json is not None:
        write_json(files.json, "serve", _figures(servers, runs, pairs, failed))
    if files.svg is not None:
        for path in write_files(files.svg, _charts(servers, runs)):
            console.print(f"wrote {path}")


def _about(server: Server) -> str:
    return printable(f"{server.model} ({server.owner or 'unknown owner'})")


# ---------------------------------------------------------------- for the terminal


def _table(servers: Sequence[Server], runs: Sequence[Run], pairs: Sequence[Pair]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if "\n" not in heading else "right", no_wrap=True)
    for workload in workloads_of(runs):
        for server in servers:
            table.add_row(workload, server.label, *_cells(figures_for(runs, workload, server.label)))
        ratios = [pair.ratios for pair in pairs if pair.workload == workload]
        if ratios:
            medians = (f"{median(each[name] for each in ratios):.2f}" for name in LABELS)
            table.add_row(workload, "A / B", *medians, style="bold")
        table.add_section()
    return table


def _cells(figures: Sequence[Figures]) -> Iterator[str]:
    """Cells of one row: medians over repeats."""
    yield f"{median_of(figures, lambda f: f.output_tokens_per_s):,.1f}"
    yield _p50_and_p95(figures, lambda f: f.ttft_ms_p50, lambda f: f.ttft_ms_p95)
    yield _p50_and_p95(figures, lambda f: f.itl_ms_p50, lambda f: f.itl_ms_p95)
    yield _found(figures)


def _p50_and_p95(figures: Sequence[Figures], p50: Figure, p95: Figure) -> str:
    return f"{_ms(median_of(figures, p50))} / {_ms(median_of(figures, p95))}"


def _ms(value: float) -> str:
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def _found(figures: Sequence[Figures]) -> str:
    """Share of prompt tokens that were cached, over all repeats."""
    reported = [f for f in figures if f.hits is not None]
    if not reported:
        return "not reported"
    found = sum(f.hits.found for f in reported if f.hits is not None)
    return f"{found / max(1, sum(f.prompt_tokens for f in reported)):.1%}"


def _ratio_lines(pairs: Sequence[Pair]) -> Iterator[str]:
    """The ratios of each pair, for workloads with several pairs: the table has only their medians."""
    for workload in dict.fromkeys(pair.workload for pair in pairs):
        ratios = [pair.ratios for pair in pairs if pair.workload == workload]
        if len(ratios) > 1:
            parts = (
                f"{label} {', '.join(f'{each[name]:.2f}' for each in ratios)}"
                for name, label in LABELS.items()
            )
            yield f"{workload}, A / B pair by pair: {'; '.join(parts)}"


def _equal_answer_lines(runs: Sequence[Run], pairs: Sequence[Pair]) -> Iterator[str]:
    for pair in pairs:
        where = f"{pair.workload}, repeat {pair.repeat + 1}"
        yield f"{where}: {pair.same} of {pair.answers} answers are the same from A and B"
    for again in warm_repeats(runs):
        where = f"{again.workload} on {again.server}, repeat {again.repeat + 1}"
        yield f"{where}: {again.same} of {again.answers} answers are the same as in repeat 1"


# ---------------------------------------------------------------- for files


def _figures(
    servers: Sequence[Server], runs: Sequence[Run], pairs: Sequence[Pair], failed: Sequence[str]
) -> dict[str, object]:
    return {
        "servers": [_server(server) for server in servers],
        "runs": [_run(run) for run in runs],
        "pairs": [_finite(asdict(pair)) for pair in pairs],
        "again": [asdict(again) for again in warm_repeats(runs)],
        "wrong": list(failed),
    }


def _server(server: Server) -> dict[str, object]:
    """Facts of a server, without its API key."""
    url, extra = str(server.access.address), [name for name, _ in server.extra]
    return {"label": server.label, "url": url, "model": server.model, "owner": server.owner, "extra": extra}


def _run(run: Run) -> dict[str, object]:
    values = asdict(run)
    figures = values.pop("figures")
    figures.pop("texts")
    return _finite({**values, **figures})


def _finite(figures: dict[str, object]) -> dict[str, object]:
    """Figures with null in place of NaN, which JSON does not have."""
    return {
        name: _finite(value)
        if isinstance(value, dict)
        else None
        if isinstance(value, float) and not isfinite(value)
        else value
        for name, value in figures.items()
    }


def _charts(servers: Sequence[Server], runs: Sequence[Run]) -> dict[str, str]:
    names = [f"{server.label}: {_about(server)}" for server in servers]
    about = machine_line()
    return {
        f"serve-{file}.svg": bars_svg(
            Chart(title, about, unit, ""),
            names,
            [
                Group(
                    name,
                    [_bar(median_of(figures_for(runs, name, server.label), figure)) for server in servers],
                )
                for name in workloads_of(runs)
            ],
        )
        for file, title, unit, figure in CHARTS
    }


def _bar(value: float) -> float | None:
    return value if isfinite(value) else None

"""Reports runs of workloads: a table, notes, JSON and charts."""

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
from transom.bench.runs import Pair, Run, again_of, middle, of, pairs_of, workloads_of
from transom.bench.server import Server, printable
from transom.bench.sheet import ResultFiles, machine_line, write_json

Figure = Callable[[Figures], float]

HEADINGS = (
    "workload",
    "server",
    "output\ntokens/s",
    "first token\nms, p50 / p95",
    "between tokens\nms, p50 / p95",
    "prompt tokens\nfound",
)
PICTURES: tuple[tuple[str, str, str, Figure], ...] = (
    ("output", "Output tokens per second", "tokens/s", lambda f: f.output_tokens_per_s),
    ("first-token", "Time to first token, median", "ms", lambda f: f.ttft_ms_p50),
    ("between-tokens", "Time between tokens, median", "ms", lambda f: f.itl_ms_p50),
)
WORDS = {
    "output_tokens_per_s": "output tokens/s",
    "ttft_ms_p50": "first token",
    "itl_ms_p50": "between tokens",
}


def report(servers: Sequence[Server], runs: Sequence[Run], wrong: Sequence[str], files: ResultFiles) -> None:
    """Raises ConfigError for a file that cannot be written."""
    console = screen()
    for server in servers:
        console.print(f"{server.label}: {server.access.address}, {_about(server)}")
    pairs = pairs_of(runs, servers)
    console.print(_table(servers, runs, pairs))
    for line in (*_ratios(pairs), *_equal_answers(runs, pairs)):
        console.print(line)
    for line in wrong:
        console.print(f"WRONG: {line}", style="bold red")
    if files.json is not None:
        write_json(files.json, "serve", _figures(servers, runs, pairs, wrong))
    if files.svg is not None:
        for path in write_files(files.svg, _pictures(servers, runs)):
            console.print(f"wrote {path}")


def _about(server: Server) -> str:
    return printable(f"{server.model} ({server.owner or 'no owner named'})")


# ---------------------------------------------------------------- terminal


def _table(servers: Sequence[Server], runs: Sequence[Run], pairs: Sequence[Pair]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if "\n" not in heading else "right", no_wrap=True)
    for workload in workloads_of(runs):
        for server in servers:
            table.add_row(workload, server.label, *_cells(of(runs, workload, server.label)))
        ratios = [pair.ratios for pair in pairs if pair.workload == workload]
        if ratios:
            medians = (f"{median(ratio[name] for ratio in ratios):.2f}" for name in WORDS)
            table.add_row(workload, "A / B", *medians, style="bold")
        table.add_section()
    return table


def _cells(figures: Sequence[Figures]) -> Iterator[str]:
    """The cells of one server, medians over the repeats."""
    yield f"{middle(figures, lambda f: f.output_tokens_per_s):,.1f}"
    yield _both(figures, lambda f: f.ttft_ms_p50, lambda f: f.ttft_ms_p95)
    yield _both(figures, lambda f: f.itl_ms_p50, lambda f: f.itl_ms_p95)
    yield _found(figures)


def _both(figures: Sequence[Figures], p50: Figure, p95: Figure) -> str:
    return f"{_ms(middle(figures, p50))} / {_ms(middle(figures, p95))}"


def _ms(value: float) -> str:
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def _found(figures: Sequence[Figures]) -> str:
    reported = [f for f in figures if f.hits is not None]
    if not reported:
        return "not reported"
    found = sum(f.hits.found for f in reported if f.hits is not None)
    return f"{found / max(1, sum(f.prompt_tokens for f in reported)):.1%}"


def _ratios(pairs: Sequence[Pair]) -> Iterator[str]:
    """The ratios of the single pairs, for workloads with several repeats."""
    for workload in dict.fromkeys(pair.workload for pair in pairs):
        ratios = [pair.ratios for pair in pairs if pair.workload == workload]
        if len(ratios) > 1:
            lists = (
                f"{words} {', '.join(f'{r[name]:.2f}' for r in ratios)}" for name, words in WORDS.items()
            )
            yield f"{workload}, A / B pair by pair: {'; '.join(lists)}"


def _equal_answers(runs: Sequence[Run], pairs: Sequence[Pair]) -> Iterator[str]:
    for pair in pairs:
        yield _same(
            f"{pair.workload}, repeat {pair.repeat + 1}", pair.same, pair.answers, "the same from A and B"
        )
    for again in again_of(runs):
        where = f"{again.workload} on {again.server}, repeat {again.repeat + 1}"
        yield _same(where, again.same, again.answers, "the same as in repeat 1")


def _same(where: str, same: int, answers: int, words: str) -> str:
    return f"{where}: {same} of {answers} answers are {words}"


# ---------------------------------------------------------------- files


def _figures(
    servers: Sequence[Server], runs: Sequence[Run], pairs: Sequence[Pair], wrong: Sequence[str]
) -> dict[str, object]:
    return {
        "servers": [_server(server) for server in servers],
        "runs": [_run(run) for run in runs],
        "pairs": [_finite(asdict(pair)) for pair in pairs],
        "again": [asdict(again) for again in again_of(runs)],
        "wrong": list(wrong),
    }


def _server(server: Server) -> dict[str, object]:
    """The description of a server, without its API key."""
    url, extra = str(server.access.address), [name for name, _ in server.extra]
    return {"label": server.label, "url": url, "model": server.model, "owner": server.owner, "extra": extra}


def _run(run: Run) -> dict[str, object]:
    fields = asdict(run)
    figures = fields.pop("figures")
    figures.pop("texts")
    return _finite({**fields, **figures})


def _finite(figures: dict[str, object]) -> dict[str, object]:
    """NaN, a value that was not measured, becomes null: JSON has no NaN."""
    return {
        name: _finite(value)
        if isinstance(value, dict)
        else None
        if isinstance(value, float) and not isfinite(value)
        else value
        for name, value in figures.items()
    }


def _pictures(servers: Sequence[Server], runs: Sequence[Run]) -> dict[str, str]:
    names = [f"{server.label}: {_about(server)}" for server in servers]
    about = machine_line()
    return {
        f"serve-{file}.svg": bars_svg(
            Chart(title, about, unit, ""),
            names,
            [
                Group(name, [_bar(middle(of(runs, name, server.label), figure)) for server in servers])
                for name in workloads_of(runs)
            ],
        )
        for file, title, unit, figure in PICTURES
    }


def _bar(value: float) -> float | None:
    return value if isfinite(value) else None

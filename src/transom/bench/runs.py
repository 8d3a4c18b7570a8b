"""Compares runs of workloads: medians, ratios pair by pair, and checks."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from transom.bench.figures import Figures
from transom.bench.server import Server

COMPARED = ("output_tokens_per_s", "ttft_ms_p50", "itl_ms_p50")
"""Figures that are compared between two servers."""


@dataclass(frozen=True, slots=True)
class Run:
    """A workload played once against one server. `warm`: this server had the same prompts before."""

    workload: str
    server: str
    repeat: int
    seed: int
    prompts: str
    """The digest of the prompts."""
    warm: bool
    figures: Figures


@dataclass(frozen=True, slots=True)
class Pair:
    """The same prompts played against both servers, one right after the other.

    `ratios` are the first server's figures divided by the second's; `same` of `answers` answers are equal.
    """

    workload: str
    repeat: int
    ratios: dict[str, float]
    same: int
    answers: int


def workloads_of(runs: Sequence[Run]) -> list[str]:
    """The names, in the order in which they were played."""
    return list(dict.fromkeys(run.workload for run in runs))


def of(runs: Sequence[Run], workload: str, server: str) -> list[Figures]:
    """The figures of one workload on one server, by repeat."""
    return [run.figures for run in runs if (run.workload, run.server) == (workload, server)]


def middle(figures: Sequence[Figures], of: Callable[[Figures], float]) -> float:
    """The median over repeats."""
    return median(map(of, figures))


def pairs_of(runs: Sequence[Run], servers: Sequence[Server]) -> list[Pair]:
    """The pairs of runs with the same prompts; empty for a single server."""
    if len(servers) < 2:
        return []
    first, second = (server.label for server in servers)
    return [
        _pair(workload, repeat, one, other)
        for workload in workloads_of(runs)
        for repeat, (one, other) in enumerate(
            zip(of(runs, workload, first), of(runs, workload, second), strict=True)
        )
    ]


def _pair(workload: str, repeat: int, one: Figures, other: Figures) -> Pair:
    ratios = {name: _ratio(getattr(one, name), getattr(other, name)) for name in COMPARED}
    return Pair(workload, repeat, ratios, same_texts(one, other), len(one.texts))


def _ratio(one: float, other: float) -> float:
    return one / other if other else float("nan")


def same_texts(one: Figures, other: Figures) -> int:
    return sum(a == b for a, b in zip(one.texts, other.texts, strict=True))


@dataclass(frozen=True, slots=True)
class Again:
    """How many answers of a repeat equal the answers of the first repeat to the same prompts."""

    workload: str
    server: str
    repeat: int
    same: int
    answers: int


def again_of(runs: Sequence[Run]) -> list[Again]:
    firsts = {(run.workload, run.server): run.figures for run in runs if not run.warm}
    return [
        Again(run.workload, run.server, run.repeat, same_texts(first, run.figures), len(first.texts))
        for run in runs
        if run.warm and (first := firsts[run.workload, run.server])
    ]


# ---------------------------------------------------------------- checks


def complaints(runs: Sequence[Run], servers: Sequence[Server]) -> list[str]:
    """One line for each failed check: requests that failed, or cache hits outside the possible range."""
    by_label = {server.label: server for server in servers}
    return [
        f"{run.workload} on {run.server}, repeat {run.repeat + 1}: {words}"
        for run in runs
        for words in _wrong(run, by_label[run.server])
    ]


def _wrong(run: Run, server: Server) -> Iterator[str]:
    figures, hits = run.figures, run.figures.hits
    if figures.failed:
        yield f"{figures.failed} of {figures.requests} requests failed: {figures.first_failure}"
    if not figures.output_tokens:
        return
    if hits is not None and hits.found > hits.most and not run.warm:
        yield (
            f"{hits.found:,} prompt tokens were found, but a cache that was empty has at most {hits.most:,}: "
            f"the server had these prompts before; restart it, or use another --seed"
        )
    # Only Transom promises to find shared prefixes. Other servers may cache as they like.
    if server.is_transom and not figures.failed and (hits is None or hits.found < hits.least):
        found = "an unknown number of" if hits is None else f"{hits.found:,}"
        least = 0 if hits is None else hits.least
        yield f"{found} prompt tokens were found, of {least:,} that prompts share: is the memory too small?"

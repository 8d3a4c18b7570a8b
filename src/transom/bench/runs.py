"""Runs of workloads: medians, ratios between two servers, and checks of the results."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from transom.bench.figures import Figures
from transom.bench.server import Server

COMPARED = ("output_tokens_per_s", "ttft_ms_p50", "itl_ms_p50")
"""Figures that are compared between two servers."""


@dataclass(frozen=True, slots=True)
class Run:
    """One workload against one server, once. `warm`: the server has had the same prompts before."""

    workload: str
    server: str
    repeat: int
    seed: int
    prompts: str
    """Digest of the prompts."""
    warm: bool
    figures: Figures


@dataclass(frozen=True, slots=True)
class Pair:
    """Two runs with the same prompts, one per server, right after each other. Ratios are first / second."""

    workload: str
    repeat: int
    ratios: dict[str, float]
    same: int
    """Number of answers that are equal, out of `answers`."""
    answers: int


def workloads_of(runs: Sequence[Run]) -> list[str]:
    """Names of the workloads, in the order in which they ran."""
    return list(dict.fromkeys(run.workload for run in runs))


def figures_for(runs: Sequence[Run], workload: str, server: str) -> list[Figures]:
    """Figures of one workload on one server, by repeat."""
    return [run.figures for run in runs if (run.workload, run.server) == (workload, server)]


def median_of(figures: Sequence[Figures], figure: Callable[[Figures], float]) -> float:
    """The median of one figure over repeats."""
    return median(map(figure, figures))


def pairs_of(runs: Sequence[Run], servers: Sequence[Server]) -> list[Pair]:
    """The pairs of runs; an empty list for a single server."""
    if len(servers) < 2:
        return []
    first, second = (server.label for server in servers)
    return [
        _pair(workload, repeat, one, other)
        for workload in workloads_of(runs)
        for repeat, (one, other) in enumerate(
            zip(figures_for(runs, workload, first), figures_for(runs, workload, second), strict=True)
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
class WarmRepeat:
    """How many answers of a warm repeat equal those of the first repeat."""

    workload: str
    server: str
    repeat: int
    same: int
    answers: int


def warm_repeats(runs: Sequence[Run]) -> list[WarmRepeat]:
    firsts = {(run.workload, run.server): run.figures for run in runs if not run.warm}
    return [
        WarmRepeat(run.workload, run.server, run.repeat, same_texts(first, run.figures), len(first.texts))
        for run in runs
        if run.warm and (first := firsts[run.workload, run.server])
    ]


# ---------------------------------------------------------------- checks


def failed_checks(runs: Sequence[Run], servers: Sequence[Server]) -> list[str]:
    """A line for each failed check: requests that failed, and more or fewer cache hits than possible."""
    by_label = {server.label: server for server in servers}
    return [
        f"{run.workload} on {run.server}, repeat {run.repeat + 1}: {problem}"
        for run in runs
        for problem in _failed_checks(run, by_label[run.server])
    ]


def _failed_checks(run: Run, server: Server) -> Iterator[str]:
    figures, hits = run.figures, run.figures.hits
    if figures.failed:
        yield f"{figures.failed} of {figures.requests} requests failed: {figures.first_failure}"
    if not figures.output_tokens:
        return
    if hits is not None and hits.found > hits.most and not run.warm:
        yield (
            f"{hits.found:,} prompt tokens were cached, an initially empty cache has at most {hits.most:,}: "
            f"the server has had these prompts before; restart it, or choose another --seed"
        )
    # Other servers may cache as little as they like. Transom must find the prefixes that prompts share.
    if server.is_transom and not figures.failed and (hits is None or hits.found < hits.least):
        found = "an unknown number of" if hits is None else f"{hits.found:,}"
        least = 0 if hits is None else hits.least
        yield f"{found} prompt tokens were cached, of {least:,} that prompts share: is the memory too small?"

"""Runs of workloads side by side: medians, ratios pair by pair, and what is wrong with them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from transom.bench.figures import Figures
from transom.bench.server import Server

COMPARED = ("output_tokens_per_s", "ttft_ms_p50", "itl_ms_p50")
"""Figures whose ratio between two servers says something."""


@dataclass(frozen=True, slots=True)
class Run:
    """A workload played once against one server. `warm`: the same prompts were asked there before."""

    workload: str
    server: str
    repeat: int
    seed: int
    prompts: str
    """Their digest."""
    warm: bool
    figures: Figures


@dataclass(frozen=True, slots=True)
class Pair:
    """The same prompts to both servers, one right after the other. Ratios are the first's by the second's."""

    workload: str
    repeat: int
    ratios: dict[str, float]
    same: int
    """Answers that are the same, of so many."""
    answers: int


def workloads_of(runs: Sequence[Run]) -> list[str]:
    """In the order played."""
    return list(dict.fromkeys(run.workload for run in runs))


def of(runs: Sequence[Run], workload: str, server: str) -> list[Figures]:
    """By repeat."""
    return [run.figures for run in runs if (run.workload, run.server) == (workload, server)]


def middle(figures: Sequence[Figures], of: Callable[[Figures], float]) -> float:
    """The median over repeats."""
    return median(map(of, figures))


def pairs_of(runs: Sequence[Run], servers: Sequence[Server]) -> list[Pair]:
    """None for a single server."""
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
    """How many answers of a repeat are those of the first, to the same prompts."""

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


# ---------------------------------------------------------------- what is wrong


def complaints(runs: Sequence[Run], servers: Sequence[Server]) -> list[str]:
    """A line for each run that failed, or whose cache was not as the workload has it."""
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
            f"{hits.found:,} prompt tokens were found, and at most {hits.most:,} can be in an empty cache: "
            f"its prompts were asked here before; start the server anew, or take another --seed"
        )
    # What others find is theirs to say; that ours finds what is shared is what it is for.
    if server.is_transom and not figures.failed and (hits is None or hits.found < hits.least):
        found = "nobody says how many" if hits is None else f"{hits.found:,}"
        least = 0 if hits is None else hits.least
        yield f"{found} prompt tokens were found, of {least:,} that prompts share: is the memory too small?"

"""`transom bench serve`: plays workloads against one server, or against two in turns, pair by pair."""

import asyncio
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from transom.bench.figures import figures_of
from transom.bench.play import play
from transom.bench.report import report
from transom.bench.runs import Run, complaints
from transom.bench.server import Access, Server, meet
from transom.bench.sheet import Wanted
from transom.bench.workloads import WORKLOADS, Workload, chosen, make_prompts
from transom.errors import TransomError

LABELS = "AB"


@dataclass(frozen=True, slots=True)
class Asked:
    """What the user wants measured: one server or two; no `workloads` are all of them."""

    servers: tuple[Access, ...]
    workloads: tuple[str, ...]
    seed: int
    repeats: int
    same_prompts: bool
    wanted: Wanted


def bench_serve(asked: Asked, known: Mapping[str, Workload] = WORKLOADS) -> None:
    """Raises ConfigError, and TransomError if a server cannot be measured, or something was found wrong."""
    workloads = chosen(asked.workloads, known)
    asked.wanted.claim()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        servers, runs = runner.run(_measure(asked, workloads))
    wrong = complaints(runs, servers)
    report(servers, runs, wrong, asked.wanted)
    if wrong:
        raise TransomError(f"{len(wrong)} of what was checked is not as it should be; see above")


async def _measure(asked: Asked, workloads: Sequence[Workload]) -> tuple[list[Server], list[Run]]:
    servers = [await meet(label, access) for label, access in zip(LABELS, asked.servers, strict=False)]
    total = asked.repeats * len(servers) * sum(workload.requests for workload in workloads)
    runs = []
    with _progress(total) as told:
        for repeat in range(asked.repeats):
            seed = asked.seed + (0 if asked.same_prompts else repeat)
            for workload in workloads:
                prompts = make_prompts(workload, seed)
                for server in servers:
                    played = await play(server, workload, prompts, told(f"{workload.name}, {server.label}"))
                    runs.append(
                        Run(
                            workload=workload.name,
                            server=server.label,
                            repeat=repeat,
                            seed=seed,
                            prompts=prompts.digest,
                            warm=asked.same_prompts and repeat > 0,
                            figures=figures_of(workload, played),
                        )
                    )
    return servers, runs


@contextmanager
def _progress(total: int) -> Iterator[Callable[[str], Callable[[], None]]]:
    """On a terminal a bar; given a description, what is to be called for each answer."""
    if not sys.stderr.isatty():
        yield lambda words: lambda: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=4) as bar:
        task = bar.add_task("", total=total)

        def told(words: str) -> Callable[[], None]:
            bar.update(task, description=words)
            return lambda: bar.advance(task)

        yield told

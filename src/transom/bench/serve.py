"""`transom bench serve`: plays workloads against one server, or against two servers in turns."""

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
from transom.bench.sheet import ResultFiles
from transom.bench.workloads import WORKLOADS, Workload, chosen, make_prompts
from transom.errors import TransomError

LABELS = "AB"


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The flags of `transom bench serve`: one or two servers; without names of workloads, all."""

    servers: tuple[Access, ...]
    workloads: tuple[str, ...]
    seed: int
    repeats: int
    same_prompts: bool
    files: ResultFiles


def bench_serve(options: ServeOptions, known: Mapping[str, Workload] = WORKLOADS) -> None:
    """Raises ConfigError, and TransomError if a server cannot be measured or a check fails."""
    workloads = chosen(options.workloads, known)
    options.files.claim()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        servers, runs = runner.run(_measure(options, workloads))
    wrong = complaints(runs, servers)
    report(servers, runs, wrong, options.files)
    if wrong:
        raise TransomError(f"checks failed: {len(wrong)}; see above")


async def _measure(options: ServeOptions, workloads: Sequence[Workload]) -> tuple[list[Server], list[Run]]:
    servers = [await meet(label, access) for label, access in zip(LABELS, options.servers, strict=False)]
    total = options.repeats * len(servers) * sum(workload.requests for workload in workloads)
    runs = []
    with _progress(total) as on_answer:
        for repeat in range(options.repeats):
            seed = options.seed + (0 if options.same_prompts else repeat)
            for workload in workloads:
                prompts = make_prompts(workload, seed)
                for server in servers:
                    advance = on_answer(f"{workload.name}, {server.label}")
                    played = await play(server, workload, prompts, advance)
                    runs.append(
                        Run(
                            workload=workload.name,
                            server=server.label,
                            repeat=repeat,
                            seed=seed,
                            prompts=prompts.digest,
                            warm=options.same_prompts and repeat > 0,
                            figures=figures_of(workload, played),
                        )
                    )
    return servers, runs


@contextmanager
def _progress(total: int) -> Iterator[Callable[[str], Callable[[], None]]]:
    """A progress bar on a terminal. Yields a function that takes a description and returns `on_answer`."""
    if not sys.stderr.isatty():
        yield lambda words: lambda: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=4) as bar:
        task = bar.add_task("", total=total)

        def on_answer(words: str) -> Callable[[], None]:
            bar.update(task, description=words)
            return lambda: bar.advance(task)

        yield on_answer

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
from transom.bench.runs import Run, failed_checks
from transom.bench.server import Access, Server, connect
from transom.bench.sheet import ResultFiles
from transom.bench.workloads import WORKLOADS, Workload, make_prompts, select
from transom.errors import TransomError

LABELS = "AB"


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """Options of the command: one server or two. Empty `workloads` means all workloads."""

    servers: tuple[Access, ...]
    workloads: tuple[str, ...]
    seed: int
    repeats: int
    same_prompts: bool
    files: ResultFiles


def bench_serve(options: BenchOptions, known: Mapping[str, Workload] = WORKLOADS) -> None:
    """ConfigError for wrong options; TransomError if a server cannot be measured or a check fails."""
    workloads = select(options.workloads, known)
    options.files.check_writable()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        servers, runs = runner.run(_measure(options, workloads))
    failed = failed_checks(runs, servers)
    report(servers, runs, failed, options.files)
    if failed:
        raise TransomError(f"failed checks: {len(failed)}; see above")


async def _measure(options: BenchOptions, workloads: Sequence[Workload]) -> tuple[list[Server], list[Run]]:
    servers = [await connect(label, access) for label, access in zip(LABELS, options.servers, strict=False)]
    total = options.repeats * len(servers) * sum(workload.requests for workload in workloads)
    runs = []
    with _progress_bar(total) as progress:
        for repeat in range(options.repeats):
            seed = options.seed + (0 if options.same_prompts else repeat)
            for workload in workloads:
                prompts = make_prompts(workload, seed)
                for server in servers:
                    played = await play(
                        server, workload, prompts, progress(f"{workload.name}, {server.label}")
                    )
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
def _progress_bar(total: int) -> Iterator[Callable[[str], Callable[[], None]]]:
    """A progress bar on a terminal. Yields a function from a description to the callback for each answer."""
    if not sys.stderr.isatty():
        yield lambda description: lambda: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=4) as bar:
        task = bar.add_task("", total=total)

        def progress(description: str) -> Callable[[], None]:
            bar.update(task, description=description)
            return lambda: bar.advance(task)

        yield progress

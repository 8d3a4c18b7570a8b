"""`transom simulate`: plays a workload under one or several cache policies and reports the results."""

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as ProgressBar

from transom.bench.files import screen, writing
from transom.config import CACHE_POLICIES, EngineConfig
from transom.errors import ConfigError
from transom.weights.builtin import cache_folder
from transom_lab.regret.report import RegretTable, heading, regret_table, rich_table
from transom_lab.sim.costs import MachineCost, read_cost
from transom_lab.sim.model_shapes import (
    ASSUMED_GPUS,
    DEFAULT_MODEL_SHAPE,
    MODEL_SHAPES,
    assumed_cost,
    model_shape,
)
from transom_lab.sim.pictures import write_pictures
from transom_lab.sim.player import Played, Progress, Setting, play
from transom_lab.sim.summary import summary_of, table_of
from transom_lab.sim.trace import Trace, read_trace, write_trace
from transom_lab.sim.workloads import WORKLOADS, make_trace

TWO_XEON_CORES = MachineCost(
    choosing=16e-3,
    per_token=420e-6,
    per_choice=890e-6,
    per_copy=100e-6,
    per_decode_key=38e-9,
    per_decode_near_key=860e-9,
    per_chunk_key=82e-9,
    per_chunk_near_key=350e-9,
    per_fresh_key=410e-9,
    per_fresh_near_key=220e-9,
    window=512,
)
"""The default model on two cores of a virtual Intel Xeon at 2.6 GHz, fitted by `transom bench cost`. It is
good for a first look: other machines may be twice as fast. lab/LOG.md compares it with a real server."""


@dataclass(frozen=True, slots=True)
class SimulateOptions:
    """The flags of `transom simulate`, as docs/commands.md describes them; `compare` holds policy names."""

    workload: str
    trace: Path | None
    requests: int | None
    seed: int
    shape: str
    cost: str | None
    turnaround_s: float
    compare: tuple[str, ...]
    regret: bool
    json: Path | None
    svg: Path | None
    save_trace: Path | None


def simulate(options: SimulateOptions, engine: EngineConfig) -> None:
    """Raises ConfigError for options that cannot be played."""
    trace = _trace(options)
    shape = model_shape(options.shape)
    cost, origin = cost_of(options.cost, options.shape)
    setting = Setting(shape.spec(options.shape), engine, cost, options.turnaround_s)
    began = time.perf_counter()
    runs = {
        name: _play(name, trace, replace(setting, engine=config))
        for name, config in _configs(engine, options.compare).items()
    }
    wall_s = time.perf_counter() - began
    # The engine shortens the context if memory is short. Regret tries several sizes of memory, so undo that.
    layout = replace(next(iter(runs.values())).sizing.layout, context=shape.context)
    regret = regret_table(trace, layout) if options.regret else None
    _report(options, runs, origin, wall_s, regret)


def cost_of(wanted: str | None, shape: str) -> tuple[MachineCost, str]:
    """The cost model and where it comes from. `wanted` is a file, an assumed GPU, or None for the default.

    The default is the model fitted on this machine, otherwise `TWO_XEON_CORES`; for other model shapes than
    the default one, which are not measured, an assumed GPU.
    """
    if wanted is not None and wanted in ASSUMED_GPUS:
        gpu = assumed_cost(ASSUMED_GPUS[wanted], MODEL_SHAPES[shape])
        return gpu, f"assumed for an {wanted.upper()}, not measured"
    if wanted is not None:
        return read_cost(Path(wanted)), wanted
    if shape != DEFAULT_MODEL_SHAPE:
        gpu = assumed_cost(ASSUMED_GPUS["h200"], MODEL_SHAPES[shape])
        return gpu, "assumed for an H200, not measured"
    fitted = fitted_path(shape)
    if fitted.exists():
        return read_cost(fitted), f"fitted here: {fitted}"
    return TWO_XEON_CORES, "fitted on two cores of a Xeon; transom bench cost measures this machine"


def fitted_path(shape: str) -> Path:
    """The file in the cache folder that `transom bench cost` writes."""
    return cache_folder() / f"cost-{shape}.json"


# ---------------------------------------------------------------- playing


def _trace(options: SimulateOptions) -> Trace:
    if options.trace is None:
        trace = make_trace(options.workload, options.seed, options.requests)
    else:
        trace = read_trace(options.trace)
    if options.save_trace is not None:
        with writing(options.save_trace):
            write_trace(trace, options.save_trace)
    return trace


def _configs(engine: EngineConfig, compare: Sequence[str]) -> dict[str, EngineConfig]:
    """The engine configuration of each run, by the name of its cache policy."""
    if not compare:
        return {engine.cache_policy: engine}
    for name in compare:
        if name not in CACHE_POLICIES:
            raise ConfigError(f"--compare has {name!r}; it must be of {', '.join(CACHE_POLICIES)}")
    return {name: replace(engine, cache_policy=name) for name in compare}


def _play(name: str, trace: Trace, setting: Setting) -> Played:
    if not sys.stderr.isatty():  # a log file is no place for a progress bar
        return play(trace, setting)
    with _progress_bar(f"{trace.name}, {name}", len(trace.arrivals)) as progress:
        return play(trace, setting, progress)


@contextmanager
def _progress_bar(words: str, total: int) -> Iterator[Progress]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with ProgressBar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(words, total=total)
        yield lambda done, _: bar.update(task, completed=done)


# ---------------------------------------------------------------- reporting


def _report(
    options: SimulateOptions,
    runs: Mapping[str, Played],
    origin: str,
    wall_s: float,
    regret: RegretTable | None,
) -> None:
    summaries = {name: summary_of(played) for name, played in runs.items()}
    # Files first: the error of a path that cannot be written must not follow a table that looks like success.
    if options.json is not None:
        figures: dict[str, object] = {name: summary.as_json() for name, summary in summaries.items()}
        if regret is not None:
            figures["regret"] = regret.as_json()
        text = json.dumps(figures, indent=1)
        with writing(options.json):
            options.json.write_text(text + "\n", encoding="utf-8")
    pictures = [] if options.svg is None else write_pictures(runs, options.svg)
    console = screen()
    first = next(iter(runs.values()))
    console.print(_heading(options, first))
    console.print(table_of(summaries))
    console.print(f"cost of a step: {origin}")
    requests = len(runs) * len(first.records)
    console.print(f"{requests:,} requests simulated in {wall_s:.1f} s, {requests / wall_s:,.0f} a second")
    if regret is not None:
        console.print(heading(regret))
        console.print(rich_table(regret))
    for path in pictures:
        console.print(f"wrote {path}")


def _heading(options: SimulateOptions, played: Played) -> str:
    trace, layout = played.trace, played.sizing.layout
    about = "" if options.trace else f" ({WORKLOADS[options.workload].about}; seed {options.seed})"
    size = sum(played.sizing.bytes) if layout.budget is None else layout.budget
    return (
        f"{trace.name}{about}: {len(trace.arrivals):,} requests, {trace.prompt_tokens:,} prompt tokens, "
        f"{trace.output_tokens:,} output tokens\n"
        f"{options.shape}, {size / 2**20:,.0f} MiB for keys and values, pages of {layout.page_size} tokens, "
        f"context {layout.context:,}"
    )

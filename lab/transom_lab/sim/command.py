"""What `transom simulate` does: plays a workload under one policy or several, and says what came of it."""

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from transom.bench.files import screen, writing
from transom.config import CACHE_POLICIES, EngineConfig
from transom.errors import ConfigError
from transom.weights.builtin import cache_folder
from transom_lab.regret.report import RegretTable, heading, regret_table, rich_table
from transom_lab.sim.costs import MachineCost, read_cost
from transom_lab.sim.pictures import write_pictures
from transom_lab.sim.player import Played, Setting, play
from transom_lab.sim.player import Progress as Told
from transom_lab.sim.shapes import ASSUMED, DEFAULT_SHAPE, SHAPES, assumed_cost, shape_of
from transom_lab.sim.summary import summary_of
from transom_lab.sim.table import table_of
from transom_lab.sim.trace import Trace
from transom_lab.sim.tracefile import read_trace, write_trace
from transom_lab.sim.workloads import WORKLOADS, make_trace

TWO_CORES = MachineCost(
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
"""The default model on two cores of a virtual Intel Xeon of 2.6 GHz, by `transom bench cost`;
lab/LOG.md says how near it comes. For a first look: others are twice as fast."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What the user wants played, and to have."""

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


def simulate(asked: Asked, engine: EngineConfig) -> None:
    """Raises ConfigError for what cannot be played as asked."""
    trace = _trace(asked)
    shape = shape_of(asked.shape)
    cost, origin = cost_of(asked.cost, asked.shape)
    setting = Setting(shape.spec(asked.shape), engine, cost, asked.turnaround_s)
    began = time.perf_counter()
    runs = {
        name: _played(name, trace, replace(setting, engine=config))
        for name, config in _configs(engine, asked.compare).items()
    }
    wall_s = time.perf_counter() - began
    layout = replace(next(iter(runs.values())).sizing.layout, context=shape.context)
    regret = regret_table(trace, layout) if asked.regret else None
    _report(asked, runs, origin, wall_s, regret)


def cost_of(wanted: str | None, shape: str) -> tuple[MachineCost, str]:
    """The cost model, and where it is from. Without a word: as fitted here, else elsewhere, or assumed."""
    if wanted is not None and wanted in ASSUMED:
        return assumed_cost(ASSUMED[wanted], SHAPES[shape]), f"assumed for an {wanted.upper()}, not measured"
    if wanted is not None:
        return read_cost(Path(wanted)), wanted
    if shape != DEFAULT_SHAPE:
        return assumed_cost(ASSUMED["h200"], SHAPES[shape]), "assumed for an H200, not measured"
    fitted = fitted_path(shape)
    if fitted.exists():
        return read_cost(fitted), f"fitted here: {fitted}"
    return TWO_CORES, "fitted on two cores of a Xeon; transom bench cost measures this machine"


def fitted_path(shape: str) -> Path:
    """Where `transom bench cost` leaves what it found."""
    return cache_folder() / f"cost-{shape}.json"


# ---------------------------------------------------------------- playing


def _trace(asked: Asked) -> Trace:
    if asked.trace is None:
        trace = make_trace(asked.workload, asked.seed, asked.requests)
    else:
        trace = read_trace(asked.trace)
    if asked.save_trace is not None:
        with writing(asked.save_trace):
            write_trace(trace, asked.save_trace)
    return trace


def _configs(engine: EngineConfig, compare: Sequence[str]) -> dict[str, EngineConfig]:
    """By name: one run, or one for each policy to compare."""
    if not compare:
        return {engine.cache_policy: engine}
    for name in compare:
        if name not in CACHE_POLICIES:
            raise ConfigError(f"--compare has {name!r}; it must be of {', '.join(CACHE_POLICIES)}")
    return {name: replace(engine, cache_policy=name) for name in compare}


def _played(name: str, trace: Trace, setting: Setting) -> Played:
    if not sys.stderr.isatty():
        return play(trace, setting)
    with _progress(f"{trace.name}, {name}", len(trace.arrivals)) as told:
        return play(trace, setting, told)


@contextmanager
def _progress(words: str, total: int) -> Iterator[Told]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(words, total=total)
        yield lambda done, _: bar.update(task, completed=done)


# ---------------------------------------------------------------- telling


def _report(
    asked: Asked, runs: Mapping[str, Played], origin: str, wall_s: float, regret: RegretTable | None
) -> None:
    summaries = {name: summary_of(played) for name, played in runs.items()}
    if asked.json is not None:
        figures: dict[str, object] = {name: summary.as_json() for name, summary in summaries.items()}
        if regret is not None:
            figures["regret"] = regret.as_json()
        text = json.dumps(figures, indent=1)
        with writing(asked.json):
            asked.json.write_text(text + "\n", encoding="utf-8")
    pictures = [] if asked.svg is None else write_pictures(runs, asked.svg)
    console = screen()
    first = next(iter(runs.values()))
    console.print(_heading(asked, first))
    console.print(table_of(summaries))
    console.print(f"cost of a step: {origin}")
    played = len(runs) * len(first.lives)
    console.print(f"{played:,} requests simulated in {wall_s:.1f} s, {played / wall_s:,.0f} a second")
    if regret is not None:
        console.print(heading(regret))
        console.print(rich_table(regret))
    for path in pictures:
        console.print(f"wrote {path}")


def _heading(asked: Asked, played: Played) -> str:
    trace, layout = played.trace, played.sizing.layout
    about = "" if asked.trace else f" ({WORKLOADS[asked.workload].about}; seed {asked.seed})"
    size = sum(played.sizing.bytes) if layout.budget is None else layout.budget
    return (
        f"{trace.name}{about}: {len(trace.arrivals):,} requests, {trace.prompt_tokens:,} prompt tokens, "
        f"{trace.output_tokens:,} output tokens\n"
        f"{asked.shape}, {size / 2**20:,.0f} MiB for keys and values, pages of {layout.page_size} tokens, "
        f"context {layout.context:,}"
    )

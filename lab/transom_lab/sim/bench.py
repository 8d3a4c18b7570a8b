"""What `transom bench cost` does: times steps, fits the cost model, leaves it where `simulate` finds it."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from transom.bench.files import screen
from transom.config import EngineConfig
from transom.engine.engine import load_engine
from transom.errors import ConfigError
from transom_lab.sim.command import fitted_path
from transom_lab.sim.costs import RATES, write_cost
from transom_lab.sim.fit import Fit, Timed, fit
from transom_lab.sim.measure import BATCHES, Told, measure, window_of
from transom_lab.sim.shapes import DEFAULT_SHAPE

SHOWN = 16
"""Kinds of steps that are printed, those furthest off first."""
UNITS = {"base": (1e3, "ms"), "choosing": (1e3, "ms")}
"""Others are shown in microseconds, keys in nanoseconds."""


def bench_cost(config: EngineConfig, seed: int, output: Path | None) -> None:
    """Raises ModelFileError and ConfigError."""
    if config.model is not None and output is None:
        raise ConfigError(
            "--model needs --output: simulate looks in the cache folder for the default model's"
        )
    _, engine = load_engine(config)
    with _telling() as told:
        steps = measure(engine, BATCHES, seed, told)
    found = fit(steps, window_of(engine))
    path = output or fitted_path(DEFAULT_SHAPE)
    try:
        write_cost(found.cost, path)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    console = screen()
    console.print(_residuals(steps, found))
    console.print(_rates(found))
    console.print(f"{len(steps)} kinds of steps, relative error {found.error:.1%} (root of the mean square)")
    console.print(f"wrote {path}")


@contextmanager
def _telling() -> Iterator[Told | None]:
    if not sys.stderr.isatty():
        yield None
        return
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("timing steps", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _residuals(steps: list[Timed], found: Fit) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for words in ("requests x prompt", "took, ms", "cost says, ms", "error"):
        table.add_column(words, justify="left" if words.startswith("requests") else "right", no_wrap=True)
    worst = sorted(zip(steps, found.errors, strict=True), key=lambda pair: -abs(pair[1]))
    for step, error in worst[:SHOWN]:
        says = found.cost.of(step.load)
        table.add_row(step.name, f"{1e3 * step.seconds:.2f}", f"{1e3 * says:.2f}", f"{error:+.1%}")
    return table


def _rates(found: Fit) -> str:
    words = []
    for name, rate in zip(RATES, found.cost.rates(), strict=True):
        factor, unit = UNITS.get(name, (1e9, "ns") if name.endswith("key") else (1e6, "us"))
        words.append(f"{name} {rate * factor:.3g} {unit}")
    return ", ".join(words) + f"; {found.cost.tokens_free} tokens free"

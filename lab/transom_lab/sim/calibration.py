"""`transom bench cost`: times steps of the real engine on this machine and fits the cost model to them.

1. `measure` runs small batches of random prompts through the engine. Their shapes vary every count of the
   model. No batch has the shape of a workload: the model is to be judged on loads that it was not fitted to.
2. `fit` finds rates of at least 0 that minimize the squared relative errors.
3. `bench_cost` prints the steps that fit worst and writes the rates where `transom simulate` finds them.
"""

import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from transom.bench.files import screen
from transom.config import EngineConfig
from transom.engine.engine import Engine, load_engine
from transom.errors import ConfigError
from transom.kv.component_specs import Window
from transom.sched.loop import iterate
from transom.steps import StepResult, StepWork
from transom.values import Request, RequestId
from transom.wire import Submit
from transom_lab.sim.command import fitted_path
from transom_lab.sim.costs import RATES, MachineCost, StepLoad, counts_of, load_of, write_cost
from transom_lab.sim.model_shapes import DEFAULT_MODEL_SHAPE

Progressed = Callable[[int, int], None]
"""Called with the number of batches that have run, and of all."""


@dataclass(frozen=True, slots=True)
class TimedStep:
    """The median `seconds` of steps that are alike, and their mean load."""

    name: str
    load: StepLoad
    seconds: float


# ---------------------------------------------------------------- measuring


@dataclass(frozen=True, slots=True)
class Batch:
    """Requests sent at once. The first `shared` of the `prompt_tokens` tokens of each prompt are the same."""

    requests: int
    prompt_tokens: int
    shared: int = 0

    def __str__(self) -> str:
        shared = f" ({self.shared} shared)" if self.shared else ""
        return f"{self.requests} x {self.prompt_tokens}{shared}"


BATCHES = tuple(
    Batch(*numbers)
    for numbers in (
        (1, 24),
        (1, 190),
        (1, 700),
        (1, 2_600),
        (1, 6_000),
        (2, 45),
        (2, 480),
        (3, 130),
        (4, 240),
        (5, 900),
        (6, 70),
        (8, 40),
        (10, 180),
        (12, 400),
        (16, 50),
        (20, 220),
        (24, 90),
        (32, 30),
        (3, 2_200, 2_080),
        (6, 850, 800),
        (10, 1_250, 1_200),
        (14, 300, 240),
        (24, 640, 600),
    )
)
PASSES = 2
"""Over all batches, with new prompts in each. A disturbance of some seconds then affects only one pass."""
DECODES = 12
"""Output tokens per request."""


class _CountingRunner:
    """Runs steps on the engine's runner and records their loads. Mutable: the caller takes the loads away.

    The load is counted before the step, while rows still name the pages of requests that end with it.
    Counting is part of the measured time, but it takes microseconds of the milliseconds of a step.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._window = window_of(engine)
        self.loads: list[StepLoad] = []

    def run(self, work: StepWork) -> StepResult:
        self.loads.append(load_of(work, self._window, self._engine.cache))
        return self._engine.runner.run(work)


def measure(
    engine: Engine, batches: Sequence[Batch], seed: int, progress: Progressed | None = None
) -> list[TimedStep]:
    """Times the steps of all batches, in order. Steps of a batch that are alike become one."""
    generator = np.random.default_rng(seed)
    _run(engine, batches[0], generator)  # warms caches and threads up; not counted
    steps: list[TimedStep] = []
    runs = [*batches] * PASSES
    for number, batch in enumerate(runs):
        steps += _grouped(_run(engine, batch, generator), batch)
        if progress is not None:
            progress(number + 1, len(runs))
    return steps


def window_of(engine: Engine) -> int:
    """Tokens of the first window component; 0 without one."""
    windows = [c.window for c in engine.sizing.layout.components if isinstance(c, Window)]
    return windows[0] if windows else 0


def _run(engine: Engine, batch: Batch, generator: np.random.Generator) -> list[tuple[StepLoad, float]]:
    """The load and the seconds of every step until the whole batch has ended; seconds include scheduling."""
    runner = _CountingRunner(engine)
    commands = [Submit(request) for request in _requests(engine, batch, generator)]
    steps: list[tuple[StepLoad, float]] = []
    while True:
        began = time.perf_counter()
        iteration = iterate(engine.scheduler, commands, runner, time.monotonic())
        seconds = time.perf_counter() - began
        commands = []
        if iteration.failure is not None:
            raise iteration.failure
        if iteration.idle is not None:  # no step has run, so no load was recorded
            return steps
        steps.append((runner.loads.pop(), seconds))


def _requests(engine: Engine, batch: Batch, generator: np.random.Generator) -> list[Request]:
    vocabulary = engine.model.spec.vocabulary
    prompts = generator.integers(0, vocabulary, (batch.requests, batch.prompt_tokens), dtype=np.int32)
    prompts[:, : batch.shared] = prompts[0, : batch.shared]
    first = engine.scheduler.stats().requests_finished  # ids of earlier batches must not be used again
    return [Request(RequestId(first + number), prompt, DECODES) for number, prompt in enumerate(prompts)]


def _grouped(steps: Sequence[tuple[StepLoad, float]], batch: Batch) -> list[TimedStep]:
    """One entry for all steps with the same number of spans, tokens and choices."""
    groups: dict[tuple[int, int, int], list[tuple[StepLoad, float]]] = defaultdict(list)
    for load, seconds in steps:
        groups[load.spans, load.tokens, load.choices].append((load, seconds))
    timed = []
    for (spans, tokens, _), group in groups.items():
        mean = StepLoad(*np.array([load for load, _ in group]).mean(axis=0).round().astype(int).tolist())
        name = f"{batch}: {spans} spans, {tokens} tokens"
        timed.append(TimedStep(name, mean, median([seconds for _, seconds in group])))
    return timed


# ---------------------------------------------------------------- fitting


TOKENS_FREE = (0, 4, 8, 16, 32, 64)
"""Values tried for `MachineCost.tokens_free`, in which the model is not linear."""
ROUNDS = 8
"""Of reweighting. Errors must be relative to the modelled time of the round before: relative to the
measured time, a step that was slow by chance would weigh less than one that was fast by chance, and all
rates would be too low."""
EXPECTED_MIN_S = 1e-6
"""Keeps the weights finite if the model expects no time at all."""


@dataclass(frozen=True, slots=True)
class Fit:
    """`errors[i]` is the modelled time of step i relative to the measured one, minus 1."""

    cost: MachineCost
    errors: tuple[float, ...]

    @property
    def error(self) -> float:
        """Root mean square of the relative errors."""
        return float(np.sqrt(np.mean(np.square(self.errors))))


def fit(steps: Sequence[TimedStep], window: int) -> Fit:
    """The fit with the smallest error over all values of `tokens_free`."""
    assert steps, "nothing was timed"
    return min((_fit(steps, window, free) for free in TOKENS_FREE), key=lambda result: result.error)


def _fit(steps: Sequence[TimedStep], window: int, tokens_free: int) -> Fit:
    """Least squares of relative errors, reweighted `ROUNDS` times."""
    seconds = np.array([step.seconds for step in steps])
    counts = np.array([counts_of(step.load, tokens_free) for step in steps], np.float64)
    expected = seconds
    for _ in range(ROUNDS):
        rates = non_negative(counts / expected[:, None], seconds / expected)
        expected = np.maximum(counts @ rates, EXPECTED_MIN_S)
    cost = replace(
        MachineCost(tokens_free=tokens_free, window=window),
        **dict(zip(RATES, rates.tolist(), strict=True)),
    )
    return Fit(cost, tuple(cost.of(step.load) / step.seconds - 1.0 for step in steps))


def non_negative(matrix: NDArray[np.float64], target: NDArray[np.float64]) -> NDArray[np.float64]:
    """The x >= 0 that minimizes |matrix x - target|: the active-set method of Lawson and Hanson.

    Lawson and Hanson, Solving Least Squares Problems (1974), chapter 23. Negative rates would make no sense,
    and with them a simulated step could take less than no time.
    """
    scale = np.linalg.norm(matrix, axis=0)
    scale[scale == 0.0] = 1.0
    scaled = matrix / scale
    x = np.zeros(matrix.shape[1])
    used: list[int] = []
    while True:
        gradient = scaled.T @ (target - scaled @ x)
        gradient[used] = 0.0  # within rounding already, but rounding must not choose a column twice
        best = int(gradient.argmax())
        if gradient[best] <= 1e-9:
            break
        used.append(best)
        x, kept = _feasible(scaled, target, x, used)
        if best not in kept:  # a gain within rounding: the column would enter and leave for ever
            break
        used = kept
    result: NDArray[np.float64] = x / scale
    return result


def _feasible(
    matrix: NDArray[np.float64], target: NDArray[np.float64], x: NDArray[np.float64], used: list[int]
) -> tuple[NDArray[np.float64], list[int]]:
    """Moves `x` towards the least squares over the `used` columns; drops columns that would fall below 0."""
    used = list(used)
    while True:
        solved = np.zeros_like(x)
        solved[used] = np.linalg.lstsq(matrix[:, used], target, rcond=None)[0]
        below = [number for number in used if solved[number] <= 0.0]
        if not below:
            return solved, used
        # Go as far as the first column reaches 0, drop it, and solve again for the rest.
        part = min(x[number] / (x[number] - solved[number]) for number in below)
        x = x + part * (solved - x)
        used = [number for number in used if x[number] > 1e-15]


# ---------------------------------------------------------------- the command


RESIDUALS_SHOWN = 16
UNITS = {"base": (1e3, "ms"), "choosing": (1e3, "ms")}
"""How rates are printed. Rates of keys are in nanoseconds, all further rates in microseconds."""


def bench_cost(config: EngineConfig, seed: int, output: Path | None) -> None:
    """Raises ModelFileError and ConfigError."""
    if config.model is not None and output is None:
        raise ConfigError(
            "--model needs --output: simulate takes the file in the cache folder for the default model's"
        )
    _, engine = load_engine(config)
    with _progress_bar() as progress:
        steps = measure(engine, BATCHES, seed, progress)
    result = fit(steps, window_of(engine))
    path = output or fitted_path(DEFAULT_MODEL_SHAPE)
    try:
        write_cost(result.cost, path)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    console = screen()
    console.print(_residuals(steps, result))
    console.print(_rates(result))
    console.print(f"{len(steps)} kinds of steps, relative error {result.error:.1%} (root mean square)")
    console.print(f"wrote {path}")


@contextmanager
def _progress_bar() -> Iterator[Progressed | None]:
    if not sys.stderr.isatty():
        yield None
        return
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("timing steps", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _residuals(steps: list[TimedStep], result: Fit) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for words in ("requests x prompt", "measured, ms", "model, ms", "error"):
        table.add_column(words, justify="left" if words.startswith("requests") else "right", no_wrap=True)
    worst = sorted(zip(steps, result.errors, strict=True), key=lambda pair: -abs(pair[1]))
    for step, error in worst[:RESIDUALS_SHOWN]:
        modelled = result.cost.of(step.load)
        table.add_row(step.name, f"{1e3 * step.seconds:.2f}", f"{1e3 * modelled:.2f}", f"{error:+.1%}")
    return table


def _rates(result: Fit) -> str:
    words = []
    for name, rate in zip(RATES, result.cost.rates(), strict=True):
        factor, unit = UNITS.get(name, (1e9, "ns") if name.endswith("key") else (1e6, "us"))
        words.append(f"{name} {rate * factor:.3g} {unit}")
    return ", ".join(words) + f"; {result.cost.tokens_free} tokens free"

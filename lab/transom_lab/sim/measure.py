"""Times steps of the real engine: many small batches of random prompts, of none of the workloads' shapes."""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from transom.engine.engine import Engine
from transom.kv.component_specs import Window
from transom.sched.loop import iterate
from transom.steps import StepResult, StepWork
from transom.values import Request, RequestId
from transom.wire import Submit
from transom_lab.sim.costs import Load, load_of
from transom_lab.sim.fit import Timed


@dataclass(frozen=True, slots=True)
class Batch:
    """So many requests at once, each with a prompt of so many tokens, the first `shared` of them alike."""

    requests: int
    prompt_tokens: int
    shared: int = 0

    def __str__(self) -> str:
        alike = f" ({self.shared} alike)" if self.shared else ""
        return f"{self.requests} x {self.prompt_tokens}{alike}"


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
"""Each batch so often, with other prompts: what a machine does for some seconds should not fit a rate."""
DECODES = 12
"""Tokens of each answer."""

Told = Callable[[int, int], None]


class _Watched:
    """A runner that says what it is given. Mutable: it keeps a step's load until it is taken.

    It counts while rows still name the pages of what ends with the step: microseconds of its milliseconds.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._window = window_of(engine)
        self.loads: list[Load] = []

    def run(self, work: StepWork) -> StepResult:
        self.loads.append(load_of(work, self._window, self._engine.cache))
        return self._engine.runner.run(work)


def measure(engine: Engine, batches: Sequence[Batch], seed: int, told: Told | None = None) -> list[Timed]:
    """Steps of all batches, in order, those of one that are alike as one. The first also runs once before."""
    chance = np.random.default_rng(seed)
    _run(engine, batches[0], chance)
    steps: list[Timed] = []
    runs = [*batches] * PASSES
    for number, batch in enumerate(runs):
        steps += _alike(_run(engine, batch, chance), batch)
        if told is not None:
            told(number + 1, len(runs))
    return steps


def window_of(engine: Engine) -> int:
    """Of the layers that have one; 0 if none does."""
    windows = [c.window for c in engine.sizing.layout.components if isinstance(c, Window)]
    return windows[0] if windows else 0


def _run(engine: Engine, batch: Batch, chance: np.random.Generator) -> list[tuple[Load, float]]:
    """Every step until all have ended: what it was and how long the whole turn took."""
    runner = _Watched(engine)
    commands = [Submit(request) for request in _requests(engine, batch, chance)]
    steps: list[tuple[Load, float]] = []
    while True:
        began = time.perf_counter()
        taken = iterate(engine.scheduler, commands, runner, time.monotonic())
        seconds = time.perf_counter() - began
        commands = []
        if taken.failure is not None:
            raise taken.failure
        if taken.idle is not None:
            return steps
        steps.append((runner.loads.pop(), seconds))


def _requests(engine: Engine, batch: Batch, chance: np.random.Generator) -> list[Request]:
    vocabulary = engine.model.spec.vocabulary
    prompts = chance.integers(0, vocabulary, (batch.requests, batch.prompt_tokens), dtype=np.int32)
    prompts[:, : batch.shared] = prompts[0, : batch.shared]
    first = engine.scheduler.stats().requests_finished
    return [Request(RequestId(first + number), prompt, DECODES) for number, prompt in enumerate(prompts)]


def _alike(steps: Sequence[tuple[Load, float]], batch: Batch) -> list[Timed]:
    """One for all steps with the same spans, tokens and choices: their mean load, and median time."""
    groups: dict[tuple[int, int, int], list[tuple[Load, float]]] = defaultdict(list)
    for load, seconds in steps:
        groups[load.spans, load.tokens, load.choices].append((load, seconds))
    timed = []
    for (spans, tokens, _), group in groups.items():
        loads = np.array([load for load, _ in group]).mean(axis=0)
        name = f"{batch}: {spans} spans, {tokens} tokens"
        timed.append(Timed(name, Load(*loads.round().astype(int).tolist()), median([s for _, s in group])))
    return timed

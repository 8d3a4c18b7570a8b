"""Runs many short lifetimes of a scheduler, each drawn from a seed, until one breaks; shrinks that one."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from transom.values import FinishReason
from transom_lab.faults.lifetime import STEPS, SchedulerLifetime, draw_lifetime
from transom_lab.faults.world import CHECK_EVERY, FaultWorld
from transom_lab.fuzz.shrink import smallest_part
from transom_lab.worlds.events import SchedulerEvent


@dataclass(frozen=True, slots=True)
class Finding:
    """A lifetime that broke, the few of its events that still break it, and the error."""

    seed: int
    events: tuple[int, ...]
    """Indices of the events in the lifetime."""
    error: str


@dataclass(slots=True)
class Tally:
    """Totals over lifetimes. Mutable: they only grow."""

    lifetimes: int = 0
    iterations: int = 0
    crashes: int = 0
    steps: int = 0
    failed_steps: int = 0
    retractions: int = 0
    recomputed_tokens: int = 0
    repaired_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    forks: int = 0
    refused: int = 0
    slowest: float = 0.0
    """The largest part of its bound that a request took."""
    ends: Counter[FinishReason] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)

    def add(self, world: FaultWorld, events: Sequence[SchedulerEvent]) -> None:
        self.lifetimes += 1
        self.iterations += world.iterations
        self.crashes += len(world.past)
        for stats in world.stats():
            self.steps += stats.steps
            self.failed_steps += stats.failed_steps
            self.retractions += stats.retractions
            self.recomputed_tokens += stats.recomputed_tokens
            self.repaired_tokens += stats.repaired_tokens
            self.cached_tokens += stats.cached_tokens
            self.computed_tokens += stats.computed_tokens
            self.forks += stats.forks
        self.refused += world.sent - len(world.judge.outputs)
        self.slowest = max(self.slowest, world.judge.slowest)
        self.ends.update(output.ended.reason for output in world.judge.outputs.values() if output.ended)
        self.events.update(type(event).__name__ for event in events)


def run_faults(
    seed: int,
    seeds: int = 1,
    steps: int = STEPS,
    *,
    iterations: int | None = None,
    tally: Tally | None = None,
    report: Callable[[Tally], None] = lambda tally: None,
) -> Finding | None:
    """Runs the lifetimes of `seeds` seeds from `seed` on. Returns the first that breaks, shrunk.

    `steps` bounds the iterations with events in one lifetime; `iterations` bounds the iterations of all
    lifetimes together. `report` is called after each lifetime.
    """
    tally = Tally() if tally is None else tally
    for each in range(seed, seed + seeds):
        lifetime = draw_lifetime(each, steps)
        world, error = live(lifetime, range(len(lifetime.events)))
        if error is not None:
            return _shrunk(each, lifetime)
        tally.add(world, lifetime.events)
        report(tally)
        if iterations is not None and tally.iterations >= iterations:
            break
    return None


def run_part(seed: int, steps: int, events: Sequence[int]) -> Finding | None:
    """Replays one lifetime with only the given events, by index."""
    lifetime = draw_lifetime(seed, steps)
    chosen = [number for number in events if number < len(lifetime.events)]
    _, error = live(lifetime, chosen, check_every=1)
    return None if error is None else Finding(seed, tuple(chosen[: error.after]), error.text)


@dataclass(frozen=True, slots=True)
class Broke:
    """The error of a lifetime, and after how many events it was raised."""

    after: int
    text: str


def live(
    lifetime: SchedulerLifetime, events: Sequence[int], check_every: int = CHECK_EVERY
) -> tuple[FaultWorld, Broke | None]:
    """Plays the given events of a lifetime, then lets its requests end. Stops where it breaks."""
    world, after = FaultWorld(lifetime.frame, check_every), 0
    try:
        for number in events:
            after += 1
            world.apply(lifetime.events[number])
        world.finish()
    except Exception as error:  # any exception is the finding that the campaign looks for
        return world, Broke(after, _line(error))
    return world, None


def _shrunk(seed: int, lifetime: SchedulerLifetime) -> Finding:
    def breaking(events: Sequence[int]) -> int | None:
        _, error = live(lifetime, events, check_every=1)
        return None if error is None else error.after

    events = smallest_part(range(len(lifetime.events)), breaking)
    _, error = live(lifetime, events, check_every=1)
    assert error is not None, "the lifetime broke before and does not break now"
    return Finding(seed, tuple(events), error.text)


def _line(error: Exception) -> str:
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words[:600]}"

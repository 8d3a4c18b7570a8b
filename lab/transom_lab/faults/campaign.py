"""The world of faults: many short lives of a scheduler, each drawn from a seed, until one breaks."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from transom.values import FinishReason
from transom_lab.faults.events import Happening
from transom_lab.faults.life import STEPS, Life, draw_life
from transom_lab.faults.world import World
from transom_lab.fuzz.shrink import smallest_part


@dataclass(frozen=True, slots=True)
class Found:
    """A life that broke: of its events the few by which it still does, and what was wrong."""

    seed: int
    events: tuple[int, ...]
    """Numbers of the events."""
    error: str


@dataclass(slots=True)
class Tally:
    """What lives have met. Mutable: it only grows."""

    lives: int = 0
    turns: int = 0
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

    def add(self, world: World, events: Sequence[Happening]) -> None:
        stats = world.scheduler.stats()
        self.lives += 1
        self.turns += world.turns
        self.steps += stats.steps
        self.failed_steps += stats.failed_steps
        self.retractions += stats.retractions
        self.recomputed_tokens += stats.recomputed_tokens
        self.repaired_tokens += stats.repaired_tokens
        self.cached_tokens += stats.cached_tokens
        self.computed_tokens += stats.computed_tokens
        self.forks += stats.forks
        self.refused += world.sent - len(world.judge.asked)
        self.slowest = max(self.slowest, world.judge.slowest)
        self.ends.update(asked.ended.reason for asked in world.judge.asked.values() if asked.ended)
        self.events.update(type(event).__name__ for event in events)


def run_faults(
    seed: int,
    seeds: int = 1,
    steps: int = STEPS,
    *,
    turns: int | None = None,
    tally: Tally | None = None,
    say: Callable[[Tally], None] = lambda tally: None,
) -> Found | None:
    """Lives of `seeds` seeds from `seed` on, no more once there were `turns`. The first that breaks, if any.

    `steps` is the most turns of a life in which something happens; `say` is called after each life.
    """
    tally = Tally() if tally is None else tally
    for each in range(seed, seed + seeds):
        life = draw_life(each, steps)
        world, error = live(life, range(len(life.events)))
        if error is not None:
            return _shrunk(each, life)
        tally.add(world, life.events)
        say(tally)
        if turns is not None and tally.turns >= turns:
            break
    return None


def run_part(seed: int, steps: int, events: Sequence[int]) -> Found | None:
    """One life again, of which only these events happen."""
    life = draw_life(seed, steps)
    chosen = [number for number in events if number < len(life.events)]
    _, error = live(life, chosen)
    return None if error is None else Found(seed, tuple(chosen[: error.after]), error.text)


@dataclass(frozen=True, slots=True)
class Broke:
    """After how many events, and what."""

    after: int
    text: str


def live(life: Life, events: Sequence[int]) -> tuple[World, Broke | None]:
    """The life, with those of its events, to its end or to where it breaks."""
    world, after = World(life.frame), 0
    try:
        for number in events:
            after += 1
            world.apply(life.events[number])
        world.finish()
    except Exception as error:  # whatever is raised, here it is a finding
        return world, Broke(after, _line(error))
    return world, None


def _shrunk(seed: int, life: Life) -> Found:
    def breaking(events: Sequence[int]) -> int | None:
        _, error = live(life, events)
        return None if error is None else error.after

    events = smallest_part(range(len(life.events)), breaking)
    _, error = live(life, events)
    assert error is not None, "it broke a moment ago"
    return Found(seed, tuple(events), error.text)


def _line(error: Exception) -> str:
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words[:600]}"

"""`transom simulate --faults`: what it prints, and how a failure leaves the process."""

import time
from collections.abc import Sequence

from transom.errors import ConfigError, TransomError
from transom_lab.faults.campaign import Found, Tally, run_faults, run_part
from transom_lab.faults.life import STEPS, draw_life

SECONDS_BETWEEN_LINES = 5
SEEDS = 1_000


class SchedulerBroke(TransomError):
    """A life was found, or replayed, in which something was wrong."""


def faults(
    seed: int = 0,
    seeds: int | None = None,
    steps: int = STEPS,
    *,
    turns: int | None = None,
    only: str | None = None,
) -> None:
    """Runs lives, printing progress; with `only`, of one life those events. SchedulerBroke once one breaks.

    Without `seeds`, a thousand, or as many as make `turns`.
    """
    for flag, value in (("--seeds", seeds), ("--steps", steps), ("--turns", turns)):
        if value is not None and value < 1:
            raise ConfigError(f"{flag} is {value}; it must be at least 1")
    if only is not None:
        _replay(seed, steps, numbers(only))
        return
    if seeds is None:
        seeds = SEEDS if turns is None else turns
    teller, tally = _Teller(), Tally()
    found = run_faults(seed, seeds, steps, turns=turns, tally=tally, say=teller.tell)
    if found is not None:
        _report(found, steps)
    print(teller.line(tally))
    print(_summary(tally))


def numbers(text: str) -> list[int]:
    """Of `0-3,7`. ConfigError names what is none."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        last = last if dash else first
        if not (first.isdecimal() and last.isdecimal()):
            raise ConfigError(f"--only is {text!r}; event numbers are written like 0-3,7")
        found.extend(range(int(first), int(last) + 1))
    return found


def written(events: Sequence[int]) -> str:
    """The same, the other way."""
    runs: list[list[int]] = []
    for number in events:
        if runs and runs[-1][-1] == number - 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ",".join("-".join(map(str, run)) for run in runs)


def _replay(seed: int, steps: int, events: list[int]) -> None:
    found = run_part(seed, steps, events)
    if found is not None:
        raise SchedulerBroke(f"event {found.events[-1] if found.events else 0}: {found.error}")
    print(f"seed {seed}, {len(events)} events, no fault found")


def _report(found: Found, steps: int) -> None:
    life = draw_life(found.seed, steps)
    where = f"transom simulate --faults --seed {found.seed}" + (f" --steps {steps}" if steps != STEPS else "")
    print(f"# seed {found.seed}: {found.error}\n# {life.frame}")
    for number in found.events:
        print(f"#{number:>4}  {life.events[number]}")
    print(f"{where} --only {written(found.events)}", flush=True)
    raise SchedulerBroke(
        f"seed {found.seed} broke; the line above replays these {len(found.events)} of {len(life.events)} "
        f"events, and `{where} --seeds 1` all of them"
    )


class _Teller:
    """Owns when something was said last. Mutable."""

    def __init__(self) -> None:
        self._start = self._said = time.monotonic()

    def tell(self, tally: Tally) -> None:
        if time.monotonic() - self._said > SECONDS_BETWEEN_LINES:
            self._said = time.monotonic()
            print(self.line(tally), flush=True)

    def line(self, tally: Tally) -> str:
        seconds = max(time.monotonic() - self._start, 1e-9)
        return (
            f"{tally.lives:>9,} lives  {tally.turns:>11,} turns  {tally.turns / seconds:>6,.0f}/s"
            f"  failed steps {tally.failed_steps:,}  retractions {tally.retractions:,}  forks {tally.forks:,}"
            f"  tokens computed {tally.computed_tokens:,} found {tally.cached_tokens:,}"
            f" repaired {tally.repaired_tokens:,} recomputed {tally.recomputed_tokens:,}"
        )


def _summary(tally: Tally) -> str:
    events = "  ".join(f"{name} {count:,}" for name, count in tally.events.most_common())
    ends = "  ".join(f"{reason} {count:,}" for reason, count in tally.ends.most_common())
    return (
        f"  {events}\n  ended: {ends}; refused {tally.refused:,}\n"
        f"  slowest request: {tally.slowest:.0%} of its bound; no fault found"
    )

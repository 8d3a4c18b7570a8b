"""`transom simulate --faults`: its output, and the exit status of a finding."""

import time
from collections.abc import Sequence

from transom.errors import ConfigError, TransomError
from transom_lab.faults.campaign import Finding, Tally, run_faults, run_part
from transom_lab.faults.lifetime import STEPS, draw_lifetime

SECONDS_BETWEEN_LINES = 5
SEEDS = 1_000


class SchedulerBroke(TransomError):
    """A lifetime, drawn or replayed, in which the scheduler was wrong."""


def faults(
    seed: int = 0,
    seeds: int | None = None,
    steps: int = STEPS,
    *,
    turns: int | None = None,
    only: str | None = None,
) -> None:
    """Runs lifetimes and prints progress. With `only`, replays these events of one lifetime.

    Raises SchedulerBroke at the first lifetime that breaks. Without `seeds`, runs a thousand lifetimes, or as
    many as it takes to reach `turns` iterations.
    """
    for flag, value in (("--seeds", seeds), ("--steps", steps), ("--turns", turns)):
        if value is not None and value < 1:
            raise ConfigError(f"{flag} is {value}; it must be at least 1")
    if only is not None:
        _replay(seed, steps, numbers(only))
        return
    if seeds is None:
        seeds = SEEDS if turns is None else turns
    progress, tally = _Progress(), Tally()
    finding = run_faults(seed, seeds, steps, iterations=turns, tally=tally, report=progress.report)
    if finding is not None:
        _report(finding, steps)
    print(progress.line(tally))
    print(_summary(tally))


def numbers(text: str) -> list[int]:
    """The event numbers in text like `0-3,7`. ConfigError if it is not written like that."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        last = last if dash else first
        if not (first.isdecimal() and last.isdecimal()):
            raise ConfigError(f"--only is {text!r}; event numbers are written like 0-3,7")
        found.extend(range(int(first), int(last) + 1))
    return found


def written(events: Sequence[int]) -> str:
    """The inverse of `numbers`."""
    runs: list[list[int]] = []
    for number in events:
        if runs and runs[-1][-1] == number - 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ",".join("-".join(map(str, run)) for run in runs)


def _replay(seed: int, steps: int, events: list[int]) -> None:
    finding = run_part(seed, steps, events)
    if finding is not None:
        raise SchedulerBroke(f"event {finding.events[-1] if finding.events else 0}: {finding.error}")
    print(f"seed {seed}, {len(events)} events, no fault found")


def _report(finding: Finding, steps: int) -> None:
    lifetime = draw_lifetime(finding.seed, steps)
    steps_flag = f" --steps {steps}" if steps != STEPS else ""
    command = f"transom simulate --faults --seed {finding.seed}{steps_flag}"
    print(f"# seed {finding.seed}: {finding.error}\n# {lifetime.frame}")
    for number in finding.events:
        print(f"#{number:>4}  {lifetime.events[number]}")
    print(f"{command} --only {written(finding.events)}", flush=True)
    raise SchedulerBroke(
        f"seed {finding.seed} broke; the command above replays {len(finding.events)} of its "
        f"{len(lifetime.events)} events, and `{command} --seeds 1` replays all of them"
    )


class _Progress:
    """Owns the time of the last progress line. Mutable."""

    def __init__(self) -> None:
        self._start = self._last = time.monotonic()

    def report(self, tally: Tally) -> None:
        if time.monotonic() - self._last > SECONDS_BETWEEN_LINES:
            self._last = time.monotonic()
            print(self.line(tally), flush=True)

    def line(self, tally: Tally) -> str:
        seconds = max(time.monotonic() - self._start, 1e-9)
        return (
            f"{tally.lifetimes:>9,} lifetimes  {tally.iterations:>11,} iterations"
            f"  {tally.iterations / seconds:>6,.0f}/s"
            f"  crashes {tally.crashes:,}"
            f"  failed steps {tally.failed_steps:,}  retractions {tally.retractions:,}  forks {tally.forks:,}"
            f"  tokens computed {tally.computed_tokens:,} cached {tally.cached_tokens:,}"
            f" repaired {tally.repaired_tokens:,} recomputed {tally.recomputed_tokens:,}"
        )


def _summary(tally: Tally) -> str:
    events = "  ".join(f"{name} {count:,}" for name, count in tally.events.most_common())
    ends = "  ".join(f"{reason} {count:,}" for reason, count in tally.ends.most_common())
    return (
        f"  {events}\n  ended: {ends}; refused {tally.refused:,}\n"
        f"  slowest request: {tally.slowest:.0%} of its bound; no fault found"
    )

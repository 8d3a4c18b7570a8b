"""Draws a lifetime from a seed before it begins: a cache, a scheduler configuration, and the events."""

from dataclasses import dataclass, replace
from random import Random

from transom.sched.policy import SchedulePolicy
from transom_lab.faults.draw import EventDrawer
from transom_lab.faults.world import STEP_SECONDS, Frame
from transom_lab.fuzz.draw import CONTEXT, draw_setting
from transom_lab.worlds.events import Crash, SchedulerEvent

STEPS = 60
"""Most iterations of a lifetime with events. After them, unfinished requests run to their end."""

WHOLE_CONTEXT = 0.7
"""Probability that the configured context is all that the pools are sized for."""


CRASHES = 0.15
"""Probability of a lifetime in which engines die."""


@dataclass(frozen=True, slots=True)
class SchedulerLifetime:
    frame: Frame
    events: tuple[SchedulerEvent, ...]


def draw_lifetime(seed: int, steps: int = STEPS) -> SchedulerLifetime:
    """The lifetime of a seed: the same for the same seed and steps."""
    random = Random(f"faults {seed}")
    frame = draw_frame(random)
    # Cubed, because most faults need few iterations, and short lifetimes mean more lifetimes per second.
    iterations = 1 + int(steps * random.random() ** 3)
    events = EventDrawer(random, frame).events(iterations)
    # From a source of its own, so that all other lifetimes are drawn as they were before engines died.
    crashes = Random(f"crashes {seed}")
    if crashes.random() < CRASHES:
        for _ in range(crashes.choice((1, 1, 2, 5))):
            events.insert(crashes.randrange(len(events) + 1), Crash())
    return SchedulerLifetime(frame, tuple(events))


def draw_frame(random: Random) -> Frame:
    """Pools hold one request of the whole context, and little to much more."""
    setting = draw_setting(random, None, None, None)
    pages = tuple(least + random.choice((0, 0, least // 4, least, 2 * least, 8)) for least in setting.pages)
    setting = replace(setting, rows=random.choice((1, 2, 4, 4, 8)), pages=pages)
    whole = random.random() < WHOLE_CONTEXT
    return Frame(
        setting=setting,
        chunk_tokens=random.choice((1, 3, 5, 8, 8, 20, 64)),
        context=CONTEXT if whole else 1 + random.randrange(CONTEXT),
        patience_steps=random.choice((0, 1, 3, 10)),
        priority_bonus=random.choice((0, 1, 4, 64)),
        outputs_expected=random.choice((1, 1, 4, 20)),
        prefix_gain_min=random.choice((1, 4)),
        policy=random.choice(tuple(SchedulePolicy)),
        skipped_max=random.choice((1, 2, 5, 20, 256)),
        target_seconds=random.choice((None, None, STEP_SECONDS / 4, STEP_SECONDS, 4 * STEP_SECONDS)),
    )

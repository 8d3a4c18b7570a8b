"""Draws a life from a seed before it begins: a cache, a way to schedule on it, and what happens to it."""

from dataclasses import dataclass, replace
from random import Random

from transom.sched.policy import SchedulePolicy
from transom_lab.faults.draw import Drawer
from transom_lab.faults.events import Happening
from transom_lab.faults.runner import SECONDS
from transom_lab.faults.world import Frame
from transom_lab.fuzz.draw import CONTEXT, draw_setting

STEPS = 60
"""Most turns of a life in which something happens; then what is unfinished ends."""

WHOLE_CONTEXT = 0.7
"""How often the served context is all that fits."""


@dataclass(frozen=True, slots=True)
class Life:
    frame: Frame
    events: tuple[Happening, ...]


def draw_life(seed: int, steps: int = STEPS) -> Life:
    """The same seed and steps, the same life. Most are short, which makes more of them."""
    random = Random(f"faults {seed}")
    frame = draw_frame(random)
    turns = 1 + int(steps * random.random() ** 3)
    return Life(frame, tuple(Drawer(random, frame).events(turns)))


def draw_frame(random: Random) -> Frame:
    """Pools that hold one request of the context, and each nothing to much more."""
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
        passed_over_max=random.choice((1, 2, 5, 20, 256)),
        target_seconds=random.choice((None, None, SECONDS / 4, SECONDS, 4 * SECONDS)),
    )

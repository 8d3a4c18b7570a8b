"""Draws a life from a seed: a cache, a way to schedule on it, and what happens to it, all before it begins.

Each life has a few kinds of trouble of its own and lets the others be, so that each kind is met alone, in
pairs, and in a crowd.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from transom.fuzz.draw import CONTEXT, draw_setting
from transom.sim import faults_events as do
from transom.sim.faults_events import Happening, Trouble
from transom.sim.faults_text import VOCABULARY, output
from transom.sim.faults_world import Frame

STEPS = 60
"""Most turns of a life in which something happens; then what is unfinished ends."""

FULL_CONTEXT = 0.7
"""How often the served context is all that fits."""

FEW = 6
"""Requests that come fast, mostly beside each other; then they come one by one."""

Texts = list[tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Life:
    frame: Frame
    events: tuple[Happening, ...]


def draw_life(seed: int, steps: int = STEPS) -> Life:
    """The same seed and steps, the same life."""
    random = Random(f"faults {seed}")
    frame = draw_frame(random)
    turns = 1 + int(steps * random.random() ** 3)
    return Life(frame, tuple(_Drawer(random, frame).events(turns)))


def draw_frame(random: Random) -> Frame:
    """Pools that hold one request of the context, and little to much more."""
    setting = replace(draw_setting(random, None, None, None), rows=random.choice((1, 2, 3, 4, 4, 8)))
    whole = random.random() < FULL_CONTEXT
    return Frame(
        setting=setting,
        chunk_tokens=random.choice((1, 2, 3, 5, 8, 8, 20, 64)),
        context=CONTEXT if whole else 1 + random.randrange(CONTEXT),
        patience_steps=random.choice((0, 1, 3, 10)),
        priority_bonus=random.choice((0, 1, 4, 64)),
        outputs_expected=random.choice((1, 4, 20)),
        prefix_gain_min=random.choice((1, 4)),
    )


class _Drawer:
    """Owns a random source and the texts there are. Mutable, lives no longer than the drawing."""

    def __init__(self, random: Random, frame: Frame) -> None:
        self._random = random
        self._frame = frame
        self._texts: Texts = [tuple(random.randrange(VOCABULARY) for _ in range(CONTEXT))]
        self._sent = 0
        kinds = (
            self._leave,
            self._late,
            self._again,
            self._flush,
            self._pin,
            self._trip,
            self._stall,
            self._jump,
        )
        self._kinds: list[Callable[[], Happening]] = [kind for kind in kinds if random.random() < 0.4]
        self._impossible = random.choice((0.0, 0.0, 0.1, 0.6))
        self._trouble = random.choice((0.05, 0.2, 0.6))
        self._crowd = random.choice((0.1, 0.3, 0.3, 1.0))

    def events(self, turns: int) -> list[Happening]:
        random, events = self._random, [self._arrive()]
        for _ in range(turns):
            while random.random() < self._crowd * (0.8 if self._sent < FEW else 0.1):
                events.append(self._arrive())
            while self._kinds and random.random() < self._trouble:
                events.append(random.choice(self._kinds)())
            events.append(do.Turn())
        return events

    # ------------------------------------------------------------ requests

    def _arrive(self) -> Happening:
        random = self._random
        self._sent += 1
        if random.random() < self._impossible:
            return self._impossible_one()
        prompt = self._prompt()
        arrival = do.Arrive(
            prompt,
            self._max_tokens(len(prompt)),
            stop_ids=tuple(random.sample(range(VOCABULARY), random.choice((0, 0, 0, 1, 2)))),
            priority=random.choice((0, 0, 0, 0, 1, -1, 1000)),
            salt=random.choice(("", "", "", "", "x")),
            tenant=random.choice(("", "", "a", "b")),
        )
        self._texts.append(
            prompt + output(prompt, min(arrival.max_tokens, CONTEXT), frozenset(arrival.stop_ids))
        )
        return arrival

    def _prompt(self) -> tuple[int, ...]:
        """A beginning of an earlier text, and something else; its length often where something ends."""
        random, context = self._random, self._frame.context
        before = random.choice(self._texts)
        shared = before[: random.choice((len(before), random.randrange(CONTEXT), random.randrange(CONTEXT)))]
        fresh = [random.randrange(VOCABULARY) for _ in range(random.choice((0, 1, 3, 12)))]
        prompt = (*shared, *fresh)[:context] or (random.randrange(VOCABULARY),)
        if random.random() < 0.2:
            return prompt[: self._critical()]
        return prompt[: max(1, context - 1)] if random.random() < 0.8 else prompt

    def _critical(self) -> int:
        """A length at which something begins or ends, give or take one."""
        setting = self._frame.setting
        one = self._random.choice(
            (setting.page_size, setting.window, self._frame.chunk_tokens, self._frame.context)
        )
        return max(1, one * self._random.randrange(1, 3) + self._random.choice((-1, 0, 1)))

    def _max_tokens(self, prompt: int) -> int:
        left = self._frame.context - prompt
        if left == 0:
            return 0
        return self._random.choice((0, 1, 2, 5, 12, left, left + 1, 1_000_000_000))

    def _impossible_one(self) -> Happening:
        random, context = self._random, self._frame.context
        whole = tuple(random.randrange(VOCABULARY) for _ in range(context + 1))
        return random.choice(
            (
                do.Arrive((), 4),
                do.Arrive(whole, 0),
                do.Arrive(whole * 40, 4),
                do.Arrive(whole[:context], 1),
                do.Arrive(whole[:1], -1),
            )
        )

    # ------------------------------------------------------------ trouble

    def _leave(self) -> Happening:
        return do.Leave(self._random.choice((0, -1, self._random.randrange(8))))

    def _late(self) -> Happening:
        return do.LeaveLate(self._random.randrange(self._sent + 3))

    def _again(self) -> Happening:
        return do.Again(self._random.randrange(8))

    def _flush(self) -> Happening:
        return do.Flush()

    def _pin(self) -> Happening:
        text = self._random.choice(self._texts)
        return do.Pin(text[: 1 + self._random.randrange(len(text))], 1 + self._random.randrange(9))

    def _trip(self) -> Happening:
        return do.Trip(self._random.choice(list(Trouble)))

    def _stall(self) -> Happening:
        return do.Stall(self._random.choice((0.0, 0.5, 10.0, 1e6)))

    def _jump(self) -> Happening:
        return do.Jump(self._random.choice((-1e9, -1.0, 0.5, 1e6)))

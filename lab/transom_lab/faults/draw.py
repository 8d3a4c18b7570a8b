"""Draws what happens in one life.

Each life has a few kinds of trouble of its own and lets the others be, so that each kind is met alone, in
pairs, and in a crowd.
"""

from collections.abc import Callable
from random import Random

from transom.values import PauseMode, UpdateMode
from transom_lab.faults import events as do
from transom_lab.faults.events import Happening, Trouble
from transom_lab.faults.text import VOCABULARY, output
from transom_lab.faults.world import MISSING, UNFIT, Frame
from transom_lab.fuzz.draw import CONTEXT

KINDS = 0.25
"""Of all kinds of trouble, how many a life has."""

FEW = 6
"""Outputs that are asked for fast, mostly beside each other; then they come one by one."""


class Drawer:
    """Owns a random source and the texts there are. Mutable, lives no longer than the drawing."""

    def __init__(self, random: Random, frame: Frame) -> None:
        self._random = random
        self._frame = frame
        self._texts = [tuple(random.randrange(VOCABULARY) for _ in range(CONTEXT))]
        self._sent = 0
        kinds: tuple[Callable[[], Happening], ...] = (
            self._leave, self._leave_in_flight, self._leave_all, self._leave_late, self._again, do.Flush,
            self._pause, self._update, self._pin, self._trip, self._trip, self._trip, self._stall, self._jump,
        )  # fmt: skip
        self._kinds = [kind for kind in kinds if random.random() < KINDS]
        if frame.setting.layers and random.random() < 0.7:
            self._kinds += [self._squeeze] * 3
        self._trouble = random.choice((0.05, 0.2, 0.6))
        self._crowd = random.choice((0.1, 0.4, 0.7, 1.0))
        self._impossible = random.choice((0.0, 0.0, 0.1, 0.6))
        self._hurry = random.choice((0.0, 0.0, 0.3))
        self._salted = random.choice((0.0, 0.0, 0.3))
        self._wakes = random.choice((0.5, 0.9))
        self._closes = random.choice((0.0, 0.0, 0.0, 0.05))

    def events(self, turns: int) -> list[Happening]:
        """What happens in so many turns: in each requests, trouble, then the turn itself."""
        random, events = self._random, [self._arrive()]
        for _ in range(turns):
            while random.random() < self._crowd * (0.8 if self._sent < FEW else 0.2):
                events.append(self._arrive())
            while self._kinds and random.random() < self._trouble:
                events.append(random.choice(self._kinds)())
            if random.random() < self._closes:
                events.append(do.Close())
            if self._pause in self._kinds and random.random() < self._wakes:
                events.append(do.Resume())
            events.append(do.Iteration())
        return events

    # ------------------------------------------------------------ requests

    def _arrive(self) -> Happening:
        random = self._random
        if random.random() < self._impossible:
            self._sent += 1
            return self._impossible_one()
        prompt = self._prompt()
        arrival = do.Arrive(
            prompt,
            self._max_tokens(len(prompt)),
            stop_ids=tuple(random.sample(range(VOCABULARY), random.choice((0, 0, 0, 1, 2)))),
            priority=random.choice((0, 0, 0, 0, 1, -1, 1000)),
            salt="x" if random.random() < self._salted else "",
            tenant=random.choice(("", "", "a", "b")),
            within=self._within(),
            outputs=random.choice((1, 1, 1, 1, 2, 4)),
            scores_from=random.choice((None, None, None, None, 0, random.randrange(1 + len(prompt)))),
            top=random.choice((0, 0, 0, 2)),
        )
        self._sent += arrival.outputs
        said = output(prompt, min(arrival.max_tokens, CONTEXT), frozenset(arrival.stop_ids))
        self._texts.append(prompt + said)
        return arrival

    def _prompt(self) -> tuple[int, ...]:
        """A beginning of an earlier text, and something else; its length often where something ends."""
        random, context = self._random, self._frame.context
        before = random.choice(self._texts if random.random() < 0.5 else self._texts[-2:])
        shared = before[: random.choice((CONTEXT, CONTEXT, *random.choices(range(1, CONTEXT), k=3)))]
        fresh = [random.randrange(VOCABULARY) for _ in range(random.choice((0, 1, 3, 12)))]
        prompt = (*shared, *fresh)[:context] or (random.randrange(VOCABULARY),)
        if random.random() < 0.2:
            return prompt[: self._critical()]
        return prompt[: max(1, context - 1)] if random.random() < 0.8 else prompt

    def _critical(self) -> int:
        """A length at which something begins or ends, give or take one."""
        setting = self._frame.setting
        places = (setting.page_size, setting.window, self._frame.chunk_tokens, self._frame.context)
        one = self._random.choice(places)
        return max(1, one * self._random.randrange(1, 3) + self._random.choice((-1, 0, 1)))

    def _max_tokens(self, prompt: int) -> int:
        left = self._frame.context - prompt
        if left == 0:
            return 0
        return self._random.choice((0, 1, 2, 3, 5, 12, left, 1_000_000_000))

    def _within(self) -> float | None:
        """Seconds, of which a step takes a hundredth, and a stall any number."""
        if self._random.random() >= self._hurry:
            return None
        return self._random.choice((-1.0, 0.0, 0.01, 0.05, 0.2, 5.0, 1e8))

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

    def _rank(self) -> int:
        """The senior, the junior, or anybody."""
        return self._random.choice((0, -1, self._random.randrange(8)))

    def _leave(self) -> Happening:
        return do.Leave(self._rank())

    def _leave_in_flight(self) -> Happening:
        return do.LeaveInFlight(self._rank())

    def _leave_all(self) -> Happening:
        return do.LeaveAll() if self._random.random() < 0.2 else self._leave()

    def _leave_late(self) -> Happening:
        return do.LeaveLate(self._random.randrange(self._sent + 3))

    def _again(self) -> Happening:
        return do.Again(self._rank())

    def _pause(self) -> Happening:
        return do.Pause(self._random.choice((PauseMode.IN_PLACE, *PauseMode, PauseMode.RETRACT)))

    def _update(self) -> Happening:
        mode = self._random.choice((UpdateMode.DRAIN, *UpdateMode, UpdateMode.RETRACT))
        return do.Update(mode, self._random.choice(("other", "other", UNFIT, MISSING)))

    def _pin(self) -> Happening:
        text = self._random.choice(self._texts)
        return do.Pin(text[: 1 + self._random.randrange(len(text))], 1 + self._random.randrange(9))

    def _squeeze(self) -> Happening:
        return do.Squeeze(self._random.randrange(4), 1 + self._random.randrange(CONTEXT))

    def _trip(self) -> Happening:
        return do.Trip(self._random.choice((Trouble.REFUSES, Trouble.HALFWAY, *Trouble)))

    def _stall(self) -> Happening:
        return do.Stall(self._random.choice((0.0, 0.5, 10.0, 1e6)))

    def _jump(self) -> Happening:
        return do.Jump(self._random.choice((-1e9, -1.0, 0.5, 1e6)))

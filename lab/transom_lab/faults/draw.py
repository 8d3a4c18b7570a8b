"""Draws the events of one lifetime.

Each lifetime has only a few kinds of trouble, so that over many lifetimes every kind occurs alone, in
pairs, and with many others.
"""

from collections.abc import Callable
from random import Random

from transom.values import PauseMode, UpdateMode
from transom_lab.faults.judge import MODEL, VOCABULARY
from transom_lab.faults.world import Frame
from transom_lab.fuzz.draw import CONTEXT
from transom_lab.worlds import events as do
from transom_lab.worlds.events import Failure, SchedulerEvent
from transom_lab.worlds.scheduler_world import MISSING, UNFIT

KINDS = 0.25
"""Probability that a lifetime has a given kind of trouble."""

BURST = 6
"""The first outputs arrive in a burst, so that most of them run side by side; later ones arrive singly."""


class EventDrawer:
    """Owns a random source and the texts drawn so far. Mutable; used for one lifetime."""

    def __init__(self, random: Random, frame: Frame) -> None:
        self._random = random
        self._frame = frame
        self._texts = [tuple(random.randrange(VOCABULARY) for _ in range(CONTEXT))]
        self._sent = 0
        kinds: tuple[Callable[[], SchedulerEvent], ...] = (
            self._abort, self._abort_in_flight, self._abort_all, self._abort_ended, self._send_again,
            do.Flush, self._pause, self._update, self._pin, self._fail, self._fail, self._fail, self._delay,
            self._shift,
        )  # fmt: skip
        self._kinds = [kind for kind in kinds if random.random() < KINDS]
        if frame.setting.layers and random.random() < 0.7:
            self._kinds += [self._evict] * 3
        self._trouble = random.choice((0.05, 0.2, 0.6))
        self._crowd = random.choice((0.1, 0.4, 0.7, 1.0))
        self._invalid = random.choice((0.0, 0.0, 0.1, 0.6))
        self._with_deadline = random.choice((0.0, 0.0, 0.3))
        self._salted = random.choice((0.0, 0.0, 0.3))
        self._resumes = random.choice((0.5, 0.9))
        self._drains = random.choice((0.0, 0.0, 0.0, 0.05))

    def events(self, iterations: int) -> list[SchedulerEvent]:
        """The events before each of `iterations` iterations: requests first, then trouble."""
        random, events = self._random, [self._arrive()]
        for _ in range(iterations):
            while random.random() < self._crowd * (0.8 if self._sent < BURST else 0.2):
                events.append(self._arrive())
            while self._kinds and random.random() < self._trouble:
                events.append(random.choice(self._kinds)())
            if random.random() < self._drains:
                events.append(do.Drain())
            if self._pause in self._kinds and random.random() < self._resumes:
                events.append(do.Resume())
            events.append(do.Iterate())
        return events

    # ------------------------------------------------------------ requests

    def _arrive(self) -> SchedulerEvent:
        random = self._random
        if random.random() < self._invalid:
            self._sent += 1
            return self._invalid_request()
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
        output = MODEL.output(prompt, min(arrival.max_tokens, CONTEXT), frozenset(arrival.stop_ids))
        self._texts.append(prompt + output)
        return arrival

    def _prompt(self) -> tuple[int, ...]:
        """The beginning of an earlier text, then fresh tokens. Some lengths are critical ones."""
        random, context = self._random, self._frame.context
        before = random.choice(self._texts if random.random() < 0.5 else self._texts[-2:])
        shared = before[: random.choice((CONTEXT, CONTEXT, *random.choices(range(1, CONTEXT), k=3)))]
        fresh = [random.randrange(VOCABULARY) for _ in range(random.choice((0, 1, 3, 12)))]
        prompt = (*shared, *fresh)[:context] or (random.randrange(VOCABULARY),)
        if random.random() < 0.2:
            return prompt[: self._critical_length()]
        return prompt[: max(1, context - 1)] if random.random() < 0.8 else prompt

    def _critical_length(self) -> int:
        """A multiple of a page, window, chunk or context, or one token more or less."""
        setting = self._frame.setting
        lengths = (setting.page_size, setting.window, self._frame.chunk_tokens, self._frame.context)
        length = self._random.choice(lengths)
        return max(1, length * self._random.randrange(1, 3) + self._random.choice((-1, 0, 1)))

    def _max_tokens(self, prompt: int) -> int:
        left = self._frame.context - prompt
        if left == 0:
            return 0
        return self._random.choice((0, 1, 2, 3, 5, 12, left, 1_000_000_000))

    def _within(self) -> float | None:
        """Seconds until the deadline. A step takes a hundredth of a second, a delayed one any time."""
        if self._random.random() >= self._with_deadline:
            return None
        return self._random.choice((-1.0, 0.0, 0.01, 0.05, 0.2, 5.0, 1e8))

    def _invalid_request(self) -> SchedulerEvent:
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
        """The first request, the last one, or a random one."""
        return self._random.choice((0, -1, self._random.randrange(8)))

    def _abort(self) -> SchedulerEvent:
        return do.Abort(self._rank())

    def _abort_in_flight(self) -> SchedulerEvent:
        return do.AbortInFlight(self._rank())

    def _abort_all(self) -> SchedulerEvent:
        return do.AbortAll() if self._random.random() < 0.2 else self._abort()

    def _abort_ended(self) -> SchedulerEvent:
        return do.AbortEnded(self._random.randrange(self._sent + 3))

    def _send_again(self) -> SchedulerEvent:
        return do.SendAgain(self._rank())

    def _pause(self) -> SchedulerEvent:
        return do.Pause(self._random.choice((PauseMode.IN_PLACE, *PauseMode, PauseMode.RETRACT)))

    def _update(self) -> SchedulerEvent:
        mode = self._random.choice((UpdateMode.DRAIN, *UpdateMode, UpdateMode.RETRACT))
        return do.UpdateWeights(mode, self._random.choice(("other", "other", UNFIT, MISSING)))

    def _pin(self) -> SchedulerEvent:
        text = self._random.choice(self._texts)
        return do.Pin(text[: 1 + self._random.randrange(len(text))], 1 + self._random.randrange(9))

    def _evict(self) -> SchedulerEvent:
        return do.Evict(self._random.randrange(4), 1 + self._random.randrange(CONTEXT))

    def _fail(self) -> SchedulerEvent:
        return do.FailStep(self._random.choice((Failure.AT_ONCE, Failure.HALF_WAY, *Failure)))

    def _delay(self) -> SchedulerEvent:
        return do.DelayStep(self._random.choice((0.0, 0.5, 10.0, 1e6)))

    def _shift(self) -> SchedulerEvent:
        return do.ShiftClock(self._random.choice((-1e9, -1.0, 0.5, 1e6)))

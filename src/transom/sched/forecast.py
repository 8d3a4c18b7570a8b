"""Memory at the times when requests are expected to end. Pure.

Each request grows by a token per step until it has brought the output expected of it; then what is its own is
to be had again. So memory peaks just before somebody ends, and those are the only times looked at.

    pages |        /|   /|       at the step in which the i-th of them ends, those that end later have grown
          |   /|  / |  / |       as long as it has, and those before it have given back
          |  / | /  | /  |
          +----+----+----+ steps

Components that keep everything are counted as they grow; those that slide, as long as they will come to be.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from transom.kv.budget import Capacity, PageCounts
from transom.kv.page_rules import PageRule
from transom.sched.output_lengths import OutputLengths
from transom.sched.running import ALLOCATED, FULL_UNTIL, LIMIT, PROMPT, Columns

Counts = NDArray[np.int64]
"""An entry per request, or a row per component with an entry per request."""


class Life(NamedTuple):
    """A request that may come in: `known` tokens now, `steps` more until it ends.

    beside what it takes beside the pages of its tokens. Of components that keep everything, less what it need
           not take as it is there; of components that slide, which have no others, all that it takes
    """

    known: int
    steps: int
    beside: PageCounts


@dataclass(frozen=True, slots=True)
class Lives:
    """Requests, each as `Life` has it; `own` are pages held now that nobody else holds: they come to be had
    when it ends.
    """

    known: Counts
    steps: Counts
    beside: Counts
    own: Counts

    def plus(self, more: Sequence[Life]) -> "Lives":
        """With others, that hold nothing yet."""
        nothing = np.zeros((len(self.own), len(more)), np.int64)
        return Lives(
            np.append(self.known, [life.known for life in more]),
            np.append(self.steps, [life.steps for life in more]),
            np.concatenate([self.beside, np.array([life.beside for life in more]).T], axis=1),
            np.concatenate([self.own, nothing], axis=1),
        )


class Forecast:
    """What the requests of `lives` will have taken, by the time that any of them ends.

    All as sums over the requests in order of their ends, the last first: of the first k of them are those k
    that are still there when the k-th ends.
    """

    __slots__ = ("_lives", "_minus_steps", "_needs", "_own", "_page", "_rooted", "_rules", "_sums")

    def __init__(self, lives: Lives, rules: Sequence[PageRule]) -> None:
        self._lives = lives
        self._rules = rules
        self._page = rules[0].page_size
        self._rooted = np.array([[rule.keeps_all] for rule in rules], np.int64)
        self._own = lives.own.sum(axis=1, keepdims=True)
        order = np.argsort(-lives.steps, kind="stable")
        self._minus_steps = -lives.steps[order]
        counted = np.concatenate([lives.known[None], lives.beside + lives.own])
        self._sums = np.zeros((len(counted), len(order) + 1), np.int64)
        np.cumsum(counted.take(order, axis=1), axis=1, out=self._sums[:, 1:])
        self._needs = self._need(np.arange(1, len(order) + 1), -self._minus_steps)

    def fits(self, life: Life, room: Capacity) -> bool:
        """Whether, as long as `life` lasts, all that is taken is to be had in `room`."""
        first, there = (self._minus_steps.searchsorted(-life.steps, side=side) for side in ("left", "right"))
        last = np.array([life.steps])
        needs = np.concatenate([self._need(np.array([there]), last), self._needs[:, first:]], axis=1)
        times = np.concatenate([last, -self._minus_steps[first:]])
        grown = -(-(life.known + times) // self._page)
        return _covers(room, needs + self._rooted * grown + np.array(life.beside)[:, None])

    def plus(self, more: Sequence[Life]) -> "Forecast":
        return Forecast(self._lives.plus(more), self._rules)

    def _need(self, there: Counts, at: Counts) -> Counts:
        """Pages taken at steps `at`, when of all in order of their end the first `there` are still there.

        Each is counted up to a page boundary, on the safe side.
        """
        grown = (self._sums[0, there] + there * (at + self._page - 1)) // self._page
        return np.asarray(self._sums[1:, there] + self._rooted * grown - self._own, np.int64)


def steps_to_go(columns: Columns, known: Counts, lengths: OutputLengths, factor: int) -> Counts:
    """Of those that run. Outputs are expected to become `factor` times as long as of late."""
    remaining = lengths.remaining(known - columns[PROMPT], factor)
    return np.asarray(np.maximum(np.minimum(columns[LIMIT] - known, remaining), 0), np.int64)


def forecast(
    columns: Columns, known: Counts, steps: Counts, own: Counts, rules: Sequence[PageRule]
) -> Forecast:
    """Of those that run, each with its tokens and its steps to go.

    A window that slides pays for what comes with what falls out, but only with pages of its `own`: what
    others read too is not to be had when one of them lets go of it.
    """
    page = rules[0].page_size
    entries = -(-(known + steps) // page)
    covered = -(-columns[ALLOCATED] // page)
    beside = np.zeros_like(own)
    for c, rule in enumerate(rules):
        if rule.keeps_all:
            beside[c] = -np.maximum(covered, -(-columns[FULL_UNTIL] // page))
        elif rule.by_reference:
            held = rule.held_up_to(int(entries.max(initial=0)))[entries]
            beside[c] = np.maximum(0, np.minimum(entries - covered, held - own[c]))
    return Forecast(Lives(known, steps, beside, own), rules)


def _covers(room: Capacity, needs: Counts) -> bool:
    """`room.covers` for every column of `needs`."""
    pages = np.maximum(room.pages, 0)[:, None]
    return bool((needs <= pages).all() and (np.array(room.page_bytes) @ needs <= room.bytes).all())

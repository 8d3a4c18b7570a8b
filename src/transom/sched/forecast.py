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

import numpy as np
from numpy.typing import NDArray

from transom.kv.components import PageRule
from transom.kv.room import Pages, Room
from transom.sched.outputs import OutputLengths
from transom.sched.running import ALLOCATED, FULL_UNTIL, LIMIT, PROMPT, Columns

Counts = NDArray[np.int64]
"""An entry per request, or a row per component with an entry per request."""


@dataclass(frozen=True, slots=True)
class Life:
    """A request that may come in: `known` tokens now, `steps` more until it ends.

    found  of components that keep everything: pages of its tokens that it need not take
    slides of components that slide: pages it takes in all
    """

    known: int
    steps: int
    found: Pages
    slides: Pages


@dataclass(frozen=True, slots=True)
class Lives:
    """Requests, each as `Life` has it; `own` are pages held now that nobody else holds: they come to be had
    when it ends.
    """

    known: Counts
    steps: Counts
    found: Counts
    slides: Counts
    own: Counts

    def plus(self, more: Sequence[Life]) -> "Lives":
        """With others, that hold nothing yet."""
        nothing = np.zeros((len(self.own), len(more)), np.int64)
        return Lives(
            np.append(self.known, [life.known for life in more]),
            np.append(self.steps, [life.steps for life in more]),
            np.concatenate([self.found, np.array([life.found for life in more]).T], axis=1),
            np.concatenate([self.slides, np.array([life.slides for life in more]).T], axis=1),
            np.concatenate([self.own, nothing], axis=1),
        )


class Forecast:
    """What the requests of `lives` will have taken, by the time that any of them ends."""

    __slots__ = ("_found", "_freed", "_grids", "_known", "_lives", "_needs", "_rooted", "_slides", "_times")

    def __init__(self, lives: Lives, grids: Sequence[PageRule]) -> None:
        order = np.argsort(lives.steps, kind="stable")
        self._lives = lives
        self._grids = grids
        self._rooted = np.array([[grid.rooted] for grid in grids])
        self._times = lives.steps[order]
        self._known = _from_each_on(lives.known[order])
        self._found = _from_each_on(lives.found[:, order])
        self._slides = _from_each_on(lives.slides[:, order])
        self._freed = np.zeros_like(self._found)
        np.cumsum(lives.own[:, order], axis=1, out=self._freed[:, 1:])
        self._needs = self._need(np.arange(len(order)), self._times)

    def fits(self, life: Life, room: Room) -> bool:
        """Whether, as long as `life` lasts, all that is taken is to be had in `room`."""
        during = int(np.searchsorted(self._times, life.steps, side="right"))
        left = np.searchsorted(self._times, [life.steps], side="left")
        last = np.array([life.steps])
        needs = np.concatenate([self._needs[:, :during], self._need(left, last)], axis=1)
        times = np.concatenate([self._times[:during], last])
        grown = -(-(life.known + times) // self._grids[0].page_size) - np.array(life.found)[:, None]
        return _covers(room, needs + np.where(self._rooted, grown, np.array(life.slides)[:, None]))

    def plus(self, more: Sequence[Life]) -> "Forecast":
        return Forecast(self._lives.plus(more), self._grids)

    def _need(self, first: Counts, at: Counts) -> Counts:
        """Pages taken at steps `at`, when of all in order of their end those from `first` on are still there.

        Each is counted up to a page boundary, on the safe side.
        """
        count = len(self._times) - first
        page = self._grids[0].page_size
        grown = (self._known[first] + count * (at + page - 1)) // page
        taken = np.where(self._rooted, grown - self._found[:, first], self._slides[:, first])
        return np.asarray(taken - self._freed[:, first], np.int64)


def steps_to_go(columns: Columns, known: Counts, lengths: OutputLengths, factor: int) -> Counts:
    """Of those that run. Outputs are expected to become `factor` times as long as of late."""
    remaining = lengths.remaining(known - columns[PROMPT], factor)
    return np.asarray(np.maximum(np.minimum(columns[LIMIT] - known, remaining), 0), np.int64)


def forecast(
    columns: Columns, known: Counts, steps: Counts, own: Counts, grids: Sequence[PageRule]
) -> Forecast:
    """Of those that run, each with its tokens and its steps to go.

    A window that slides pays for what comes with what falls out, but only with pages of its `own`: what
    others read too is not to be had when one of them lets go of it.
    """
    entries = -(-(known + steps) // grids[0].page_size)
    covered = -(-columns[ALLOCATED] // grids[0].page_size)
    found, slides = np.zeros_like(own), np.zeros_like(own)
    for c, grid in enumerate(grids):
        if grid.rooted:
            found[c] = np.maximum(covered, -(-columns[FULL_UNTIL] // grid.page_size))
        elif grid.by_reference:
            held = grid.held_up_to(int(entries.max(initial=0)))[entries]
            slides[c] = np.maximum(0, np.minimum(entries - covered, held - own[c]))
    return Forecast(Lives(known, steps, found, slides, own), grids)


def _from_each_on(values: Counts) -> Counts:
    """Sums from each entry to the last, and 0 after it."""
    sums = np.zeros((*values.shape[:-1], values.shape[-1] + 1), np.int64)
    np.cumsum(values[..., ::-1], axis=-1, out=sums[..., 1:])
    return sums[..., ::-1]


def _covers(room: Room, needs: Counts) -> bool:
    """`room.covers` for every column of `needs`."""
    pages = np.maximum(room.pages, 0)[:, None]
    return bool((needs <= pages).all() and (np.array(room.page_bytes) @ needs <= room.bytes).all())

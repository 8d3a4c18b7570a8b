"""A line of waiting requests in order, with a search for requests that may fit, which passes over the rest.

Requests stand in blocks. Each block has lower bounds over its requests: of the pages that a request lacks,
and of the time since which it waits. A search enters a block only if these bounds allow that a request fits
or blocks the others. So the depth of the queue costs one comparison for each `BLOCK` requests.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from transom.kv.budget import PageCounts
from transom.sched.request import Seniority, Waiting

BLOCK = 64
"""Requests of a block, on average. With more, to enter one costs more; with fewer, there are more of them."""

Fits = Callable[[PageCounts], bool]
"""Whether so many pages are left. May become false during a search, and never true."""

Place = tuple[int, Seniority]
"""A position in the line: the rank, of equals the seniority."""


@dataclass(slots=True, eq=False)
class QueuedRequest:
    """Owns the position of one waiting request. Mutable, the queue's.

    since_own   admissions of its tenant when it began to wait
    since_all   admissions of all tenants when it began to wait
    place       in the line of its tenant
    cached      tokens found in the cache at its version `looked_up`; with the policy they give the rank
    lacks       pages that were not left when it was last refused; None if a plan must look at it
    """

    waiting: Waiting
    since_own: int
    since_all: int
    place: Place = field(init=False)
    cached: int = 0
    looked_up: int = -1
    lacks: PageCounts | None = None

    @property
    def seniority(self) -> Seniority:
        return self.waiting.progress.seniority

    @property
    def cost(self) -> int:
        """Tokens that its tenant is charged on admission. A readmission was paid for the first time."""
        progress = self.waiting.progress
        return 0 if progress.admissions else progress.length - self.cached


class Search(NamedTuple):
    """The requests that a plan wants to look at.

    aged    requests that wait since this many admissions of all tenants, or fewer, block the others
    resumed requests with part of their output that wait since this iteration, or before, block the others
    """

    fits: Fits
    aged: float = -inf
    resumed: float = -inf

    def wants(self, queued: QueuedRequest) -> bool:
        """Whether the request is not known to lack pages, or blocks the others."""
        return queued.lacks is None or self.is_blocked_by(queued) or self.fits(queued.lacks)

    def is_blocked_by(self, queued: QueuedRequest) -> bool:
        """Whether no request behind this one may start while it does not fit."""
        return queued.since_all <= self.aged or resumed_since(queued) <= self.resumed


def resumed_since(queued: QueuedRequest) -> float:
    """The iteration since which a client with part of its output waits; infinity without outputs."""
    return queued.waiting.since if queued.waiting.progress.outputs else inf


@dataclass(slots=True, eq=False)
class _Block:
    """Owns some requests in order, and lower bounds over them, which may be too low. Mutable.

    lacks  of the pages that a request lacks, by component; None if some request must be looked at
    """

    places: list[Place] = field(default_factory=list)
    requests: list[QueuedRequest] = field(default_factory=list)
    lacks: PageCounts | None = None
    since_all: float = inf
    resumed: float = inf

    def insert(self, queued: QueuedRequest) -> None:
        at = bisect_left(self.places, queued.place)
        self.places.insert(at, queued.place)
        self.requests.insert(at, queued)
        self.lacks = None
        self.since_all = min(self.since_all, queued.since_all)
        self.resumed = min(self.resumed, resumed_since(queued))

    def tighten(self) -> None:
        """Computes the bounds anew."""
        lacks = [queued.lacks for queued in self.requests if queued.lacks is not None]
        self.lacks = tuple(map(min, zip(*lacks, strict=True))) if len(lacks) == len(self.requests) else None
        self.since_all = min(queued.since_all for queued in self.requests)
        self.resumed = min(map(resumed_since, self.requests))

    def may_have(self, search: Search) -> bool:
        return (
            self.lacks is None
            or self.since_all <= search.aged
            or self.resumed <= search.resumed
            or search.fits(self.lacks)
        )

    def split(self) -> "_Block":
        """Moves the second half into a new block."""
        half = len(self.places) // 2
        other = _Block(self.places[half:], self.requests[half:])
        del self.places[half:], self.requests[half:]
        self.tighten()
        other.tighten()
        return other


class Line:
    """Owns waiting requests in order of their places. Mutable."""

    def __init__(self) -> None:
        self._blocks: list[_Block] = []
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[QueuedRequest]:
        for block in self._blocks:
            yield from block.requests

    def search(self, search: Search) -> Iterator[QueuedRequest]:
        """The requests that the search wants, in order."""
        for block in self._blocks:
            if not block.may_have(search):
                continue
            found = False
            for queued in block.requests:
                if search.wants(queued):
                    found = True
                    yield queued
            if not found:
                block.tighten()

    def add(self, queued: QueuedRequest) -> None:
        at = 0
        if self._blocks:
            at = min(self._at(queued.place), len(self._blocks) - 1)
        else:
            self._blocks.append(_Block())
        block = self._blocks[at]
        block.insert(queued)
        self._length += 1
        if len(block.places) > 2 * BLOCK:
            self._blocks.insert(at + 1, block.split())

    def remove(self, queued: QueuedRequest) -> None:
        at = self._at(queued.place)
        block = self._blocks[at]
        number = bisect_left(block.places, queued.place)
        assert block.requests[number] is queued, (queued, block.places)
        del block.places[number], block.requests[number]
        self._length -= 1
        if not block.places:
            del self._blocks[at]

    def forget(self, queued: QueuedRequest) -> None:
        """A plan must look at the request again."""
        queued.lacks = None
        self._blocks[self._at(queued.place)].lacks = None

    def _at(self, place: Place) -> int:
        """The first block that does not end before `place`."""
        return bisect_left(self._blocks, place, key=lambda block: block.places[-1])

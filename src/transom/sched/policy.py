"""Scheduling order within one tenant: the rank of a request under each policy, and the tenant's queue."""

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from transom.kv.budget import PageCounts
from transom.sched.request import Progress, Seniority, Waiting
from transom.values import RequestId


class SchedulePolicy(StrEnum):
    """Order of one tenant's requests. Under each of them, requests that were skipped often come first."""

    LPM = "lpm"
    """The longest cached prefix first, so that cached pages are used before they are evicted."""
    FCFS = "fcfs"
    """In order of arrival. One step of priority is worth a number of arrivals."""
    SRPT = "srpt"
    """The fewest tokens still to compute first, expected outputs included."""
    PRIORITY = "priority"
    """Classes: a higher priority before any lower one."""


CACHE_AWARE = (SchedulePolicy.LPM, SchedulePolicy.SRPT)
"""Policies that look up cached prefixes."""


def rank(policy: SchedulePolicy, progress: Progress, *, cached: int, outputs_expected: int) -> int:
    """The smaller rank goes first; of equals, the senior. `cached` tokens need not be computed."""
    match policy:
        case SchedulePolicy.LPM:
            return -cached
        case SchedulePolicy.FCFS:
            return 0
        case SchedulePolicy.SRPT:
            # Prompt tokens to compute, then the outputs expected, but no more than its own limit allows.
            return progress.length - cached + min(progress.limit - progress.length, outputs_expected)
        case SchedulePolicy.PRIORITY:
            return -progress.request.priority


@dataclass(slots=True, eq=False)
class QueuedRequest:
    """Owns the position of one waiting request. Mutable, the queue's.

    since_own   admissions of its tenant when it began to wait
    since_all   admissions of all tenants when it began to wait
    rank        by the policy, from `cached`
    cached      tokens found in the cache at its version `looked_up`
    """

    waiting: Waiting
    since_own: int
    since_all: int
    rank: int = 0
    cached: int = 0
    looked_up: int = -1
    lacks: PageCounts | None = None
    """Pages that were not left when it was last refused; None if a plan must look at it."""

    @property
    def seniority(self) -> Seniority:
        return self.waiting.progress.seniority

    @property
    def cost(self) -> int:
        """Tokens that its tenant is charged on admission. A readmission was paid for the first time."""
        progress = self.waiting.progress
        return 0 if progress.admissions else progress.length - self.cached


@dataclass(slots=True, eq=False)
class TenantQueue:
    """Owns the waiting requests of one tenant, in order, and its service counter. Mutable.

    Requests that have part of their output, and those that have waited through `patience` admissions of their
    tenant, come first, senior first; the other requests follow by rank.
    """

    patience: int
    served: int = 0
    """Weighted tokens."""
    admissions: int = 0
    _ranked: list[tuple[int, Seniority]] = field(default_factory=list)
    _promoted: list[Seniority] = field(default_factory=list)
    _arrivals: dict[RequestId, QueuedRequest] = field(default_factory=dict)
    """The requests of `_ranked`, the longest waiting first."""

    def __len__(self) -> int:
        return len(self._ranked) + len(self._promoted)

    def __iter__(self) -> Iterator[RequestId]:
        for _, request in self._promoted:
            yield request
        for _, (_, request) in self._ranked:
            yield request

    def add(self, queued: QueuedRequest) -> None:
        if queued.waiting.progress.outputs:
            # Its client has part of the answer and sees a gap that grows, so it counts as promoted.
            insort(self._promoted, queued.seniority)
            return
        insort(self._ranked, (queued.rank, queued.seniority))
        self._arrivals[queued.seniority[1]] = queued

    def remove(self, queued: QueuedRequest) -> None:
        if self._arrivals.pop(queued.seniority[1], None) is None:  # it was promoted
            del self._promoted[bisect_left(self._promoted, queued.seniority)]
        else:
            del self._ranked[bisect_left(self._ranked, (queued.rank, queued.seniority))]

    def rerank(self, queued: QueuedRequest, rank: int) -> None:
        """Moves a ranked request to its new rank. A promoted request stays where it is."""
        if rank != queued.rank and queued.seniority[1] in self._arrivals:
            del self._ranked[bisect_left(self._ranked, (queued.rank, queued.seniority))]
            insort(self._ranked, (rank, queued.seniority))
        queued.rank = rank

    def count_admission(self) -> None:
        """One request of the tenant was admitted; promotes the requests that are out of patience now."""
        self.admissions += 1
        # A dict keeps the order of insertion, here of arrival, in which `since_own` never falls. So the first
        # request that is not due ends the search.
        while self._arrivals:
            oldest = next(iter(self._arrivals.values()))
            if self.admissions - oldest.since_own < self.patience:
                return
            self.remove(oldest)
            insort(self._promoted, oldest.seniority)

"""Scheduling order within one tenant: the rank of a request under each policy, and the tenant's queue."""

from dataclasses import dataclass, field
from enum import StrEnum

from transom.sched.line import Line, QueuedRequest
from transom.sched.request import Progress
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


PROMOTED = -(1 << 62)
"""The rank of requests that go before every rank of a policy."""


@dataclass(slots=True, eq=False)
class KeyShare:
    """Owns the service counter of one API key. Mutable.

    served   weighted tokens of all of its tenants
    waiting  its waiting requests
    level    the counter of its tenant that waited last, for arrivals when none of its tenants waits
    """

    served: int = 0
    waiting: int = 0
    level: int = 0


@dataclass(slots=True, eq=False)
class TenantQueue:
    """Owns the waiting requests of one tenant, in order, and its service counter. Mutable.

    Requests that have part of their output, and those that have waited through `patience` admissions of their
    tenant, come first, senior first; the other requests follow by rank.
    """

    patience: int
    share: KeyShare
    served: int = 0
    """Weighted tokens."""
    admissions: int = 0
    line: Line = field(default_factory=Line)
    _arrivals: dict[RequestId, QueuedRequest] = field(default_factory=dict)
    """The requests that are not promoted, the longest waiting first."""

    def __len__(self) -> int:
        return len(self.line)

    def add(self, queued: QueuedRequest, rank: int) -> None:
        if queued.waiting.progress.outputs:
            # Its client has part of the answer and sees a gap that grows, so it counts as promoted.
            rank = PROMOTED
        else:
            self._arrivals[queued.seniority[1]] = queued
        queued.place = rank, queued.seniority
        self.line.add(queued)

    def remove(self, queued: QueuedRequest) -> None:
        self._arrivals.pop(queued.seniority[1], None)
        self.line.remove(queued)

    def rerank(self, queued: QueuedRequest, rank: int) -> None:
        """Moves a ranked request to its new rank. A promoted request stays where it is."""
        if rank != queued.place[0] and queued.seniority[1] in self._arrivals:
            self._move(queued, rank)

    def count_admission(self) -> None:
        """One request of the tenant was admitted; promotes the requests that are out of patience now."""
        self.admissions += 1
        # A dict keeps the order of insertion, here of arrival, in which `since_own` never falls. So the first
        # request that is not due ends the search.
        while self._arrivals:
            oldest = next(iter(self._arrivals.values()))
            if self.admissions - oldest.since_own < self.patience:
                return
            del self._arrivals[oldest.seniority[1]]
            self._move(oldest, PROMOTED)

    def _move(self, queued: QueuedRequest, rank: int) -> None:
        self.line.remove(queued)
        queued.place = rank, queued.seniority
        self.line.add(queued)

"""Who asks next: the clients of a trace, outside the server."""

from collections import deque
from heapq import heapify, heappop, heappush

from transom_lab.sim.trace import Trace, followers, samples


class Clients:
    """Owns who has not asked yet. Mutable. Times never go back.

    `turnaround_s` passes from the end of an answer until what follows it can reach the server.
    """

    def __init__(self, trace: Trace, turnaround_s: float = 0.0) -> None:
        self._arrivals = trace.arrivals
        self._followers = followers(trace.arrivals)
        self._turnaround_s = turnaround_s
        self._unanswered = {first: 1 + len(others) for first, others in samples(trace.arrivals).items()}
        """Of requests with several outputs: how many have not ended."""
        self._outside = [
            (a.at, index) for index, a in enumerate(trace.arrivals) if a.after is None and a.sample_of is None
        ]
        heapify(self._outside)
        free = len(trace.arrivals) if trace.concurrency is None else trace.concurrency
        self._free_from = deque([0.0] * free)
        """A moment for each that may be in flight and is not, ascending."""

    def next_at(self) -> float | None:
        """When somebody asks next, if nobody's answer ends before."""
        if not self._outside or not self._free_from:
            return None
        return max(self._outside[0][0], self._free_from[0])

    def due(self, now: float) -> list[int]:
        """Who asks by `now`, in order; they are in flight from then on."""
        asking = []
        while (at := self.next_at()) is not None and at <= now:
            self._free_from.popleft()
            asking.append(heappop(self._outside)[1])
        return asking

    def ended(self, index: int, now: float) -> None:
        """The answer to an arrival is complete, or was refused. A request ends with its last output."""
        heard = now + self._turnaround_s
        sample_of = self._arrivals[index].sample_of
        first = index if sample_of is None else sample_of
        self._unanswered[first] = self._unanswered.get(first, 1) - 1
        if not self._unanswered[first]:
            self._free_from.append(heard)
        for follower in self._followers.get(index, ()):
            heappush(self._outside, (heard + self._arrivals[follower].at, follower))

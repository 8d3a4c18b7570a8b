"""Those that wait: fair between tenants, in the order of the policy within one, and nobody for ever.

How often a request can be passed over by its juniors is bounded. Through `passed_over_max` / 2 admissions
of its tenant the policy decides. Then the senior of a tenant goes first, and others only where it finds no
room. From `passed_over_max` admissions on, times the tenants that wait, it is firm: if it finds no room,
nobody after it is looked at. Waiting for a prefix that is being computed is not being passed over.
"""

from collections import deque
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heapreplace
from itertools import islice

from transom.sched.config import SchedulerConfig
from transom.sched.order import Ranker
from transom.sched.ranks import Ranks
from transom.sched.request import Progress, Seniority, Waiting
from transom.sched.tenants import Line, Place
from transom.values import RequestId

LOOKED_UP = 4
"""Waiting requests whose cached prefix is looked up again in a turn. Each costs a walk of the tree."""

REMEMBERED = 1024
"""Tenants whose counters are kept though they wait for nothing."""


Admits = Callable[[Progress], bool]
"""Whether a request may be admitted at this moment."""


def everybody(progress: Progress) -> bool:
    return True


class Queue:
    """Owns the waiting requests and what each tenant was served. Mutable; iterated senior first."""

    def __init__(self, limits: SchedulerConfig, ranker: Ranker) -> None:
        self._passed_over_max = limits.passed_over_max
        self._ranker = ranker
        self._states: Ranks[Waiting] = Ranks()
        self._places: dict[RequestId, Place] = {}
        self._lines: dict[str, Line] = {}
        self._admissions = 0
        self._level = 0
        """Served of the tenant that waited last, if none waits now."""
        self._rounds: deque[RequestId] = deque()
        """Whose prefix is looked up next."""

    # ------------------------------------------------------------ queries

    def __len__(self) -> int:
        return len(self._states)

    def __contains__(self, request: RequestId) -> bool:
        return request in self._states

    def __iter__(self) -> Iterator[Waiting]:
        return iter(self._states)

    def find(self, request: RequestId) -> Waiting | None:
        return self._states.find(request)

    def senior(self, admits: Admits = everybody) -> Waiting | None:
        """Of those who may be admitted."""
        return next((state for state in self._states if admits(state.progress)), None)

    def considered(self, most: int, admits: Admits = everybody) -> tuple[Waiting, ...]:
        """The first `most` of those who may be admitted, in the order in which they should be looked at."""
        lines = [line for line in self._lines.values() if len(line)]
        order = iter(lines[0]) if len(lines) == 1 else self._between(lines)
        states = (self._places[request].waiting for request in order)
        return tuple(islice((state for state in states if admits(state.progress)), most))

    def is_firm(self, waiting: Waiting) -> bool:
        """Whether it has been passed over as often as anybody may be."""
        tenants = sum([len(line) > 0 for line in self._lines.values()])
        passed = self._admissions - self._places[waiting.progress.id].since_all
        return passed >= self._passed_over_max * tenants

    def served(self, tenant: str) -> int:
        """Weighted tokens, levelled."""
        return self._lines[tenant].served

    # ------------------------------------------------------------ transitions

    def add(self, waiting: Waiting) -> None:
        self._states.add(waiting)
        progress = waiting.progress
        line = self._line_of(progress.request.tenant)
        if not len(line) and not progress.admissions:
            line.served = max(line.served, self._served_least())
        place = Place(waiting, since=line.admissions, since_all=self._admissions)
        place.rank = self._look(place)
        self._places[progress.id] = place
        self._rounds.append(progress.id)
        line.add(place)

    def remove(self, waiting: Waiting) -> None:
        """Takes out exactly this state; a stale one is our bug."""
        self._states.remove(waiting)
        line = self._lines[waiting.progress.request.tenant]
        line.remove(self._places.pop(waiting.progress.id))
        if not len(self._states):
            self._level = line.served
            self._rounds.clear()

    def admit(self, waiting: Waiting) -> None:
        """Takes it out because it runs now; the others of its line were passed over once more."""
        self.remove(waiting)
        self._admissions += 1
        self._lines[waiting.progress.request.tenant].passed()

    def charge(self, tenant: str, tokens: int) -> None:
        """The tenant was served so many weighted tokens."""
        if (line := self._lines.get(tenant)) is not None:
            line.served += tokens

    @property
    def has_tenants(self) -> bool:
        """Whether there is more than one to be fair between."""
        return len(self._lines) > 1

    def look_again(self) -> None:
        """Ranks a few requests anew, in turns, if what is cached has changed."""
        for _ in range(min(LOOKED_UP, len(self._rounds))):
            request = self._rounds.popleft()
            place = self._places.get(request)
            if place is None:
                continue
            self._rounds.append(request)
            if place.looked_at != self._ranker.version():
                self._lines[place.waiting.progress.request.tenant].rerank(place, self._look(place))

    # ------------------------------------------------------------ inside

    def _look(self, place: Place) -> int:
        """Notes what is cached now. Returns the rank that it gives."""
        progress = place.waiting.progress
        place.cached, place.looked_at = self._ranker.cached(progress), self._ranker.version()
        return self._ranker.rank(progress, place.cached)

    def _served_least(self) -> int:
        return min([line.served for line in self._lines.values() if len(line)], default=self._level)

    def _between(self, lines: list[Line]) -> Iterator[RequestId]:
        """Whoever was served least is next, and is taken to be served what its request will cost."""
        heads: list[tuple[int, Seniority, Iterator[RequestId]]] = []
        for line in lines:
            ids = iter(line)
            heads.append((line.served, self._places[next(ids)].seniority, ids))
        heapify(heads)
        while heads:
            served, (_, request), ids = heads[0]
            yield request
            following = next(ids, None)
            if following is None:
                heappop(heads)
            else:
                place = self._places[following]
                heapreplace(heads, (served + self._places[request].cost, place.seniority, ids))

    def _line_of(self, tenant: str) -> Line:
        line = self._lines.get(tenant)
        if line is None:
            self._forget_one()
            line = self._lines[tenant] = Line(max(1, self._passed_over_max // 2))
        return line

    def _forget_one(self) -> None:
        """Makes place for one more counter: who was served least would be levelled up most likely."""
        if len(self._lines) < REMEMBERED:
            return
        absent = [tenant for tenant, line in self._lines.items() if not len(line)]
        if absent:
            del self._lines[min(absent, key=lambda tenant: self._lines[tenant].served)]

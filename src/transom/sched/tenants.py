"""What a tenant was served, in weighted tokens, and the line of its requests that wait.

Between tenants: virtual token counters ("Fairness in Serving Large Language Models", OSDI 2024). Who was
served least is next. A tenant that comes, or comes back, starts level with the least served of those that
wait, so that being away saves nothing up.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field

from transom.sched.request import Seniority, Waiting
from transom.values import RequestId

OUTPUT_WEIGHT = 2
"""Prompt tokens that one output token counts for."""


@dataclass(slots=True, eq=False)
class Place:
    """Owns where one waiting request stands. Mutable, the line's.

    since     admissions of its tenant when it began to wait; `since_all`: of all tenants
    rank      as the policy has it, from `cached`
    cached    tokens found when the ranker's version was `looked_at`
    """

    waiting: Waiting
    since: int
    since_all: int
    rank: int = 0
    cached: int = 0
    looked_at: int = -1

    @property
    def seniority(self) -> Seniority:
        return self.waiting.progress.seniority

    @property
    def cost(self) -> int:
        """Tokens that its tenant is charged if it is admitted."""
        progress = self.waiting.progress
        return 0 if progress.admissions else progress.length - self.cached


@dataclass(slots=True, eq=False)
class Line:
    """Owns what waits of one tenant, in order. Mutable.

    Who has waited through `patience` of its admissions comes first, senior first; the others by rank.
    """

    patience: int
    served: int = 0
    """Weighted tokens."""
    admissions: int = 0
    _ranked: list[tuple[int, Seniority]] = field(default_factory=list)
    _aged: list[Seniority] = field(default_factory=list)
    _ageing: dict[RequestId, Place] = field(default_factory=dict)
    """Those ranked, as they came."""

    def __len__(self) -> int:
        return len(self._ranked) + len(self._aged)

    def __iter__(self) -> Iterator[RequestId]:
        for _, request in self._aged:
            yield request
        for _, (_, request) in self._ranked:
            yield request

    def add(self, place: Place) -> None:
        insort(self._ranked, (place.rank, place.seniority))
        self._ageing[place.seniority[1]] = place

    def remove(self, place: Place) -> None:
        if self._ageing.pop(place.seniority[1], None) is None:
            del self._aged[bisect_left(self._aged, place.seniority)]
        else:
            del self._ranked[bisect_left(self._ranked, (place.rank, place.seniority))]

    def rerank(self, place: Place, rank: int) -> None:
        """The aged stay where they are."""
        if rank != place.rank and place.seniority[1] in self._ageing:
            del self._ranked[bisect_left(self._ranked, (place.rank, place.seniority))]
            insort(self._ranked, (rank, place.seniority))
        place.rank = rank

    def passed(self) -> None:
        """One of the line was admitted, and the others passed over once more."""
        self.admissions += 1
        while self._ageing:
            oldest = next(iter(self._ageing.values()))
            if self.admissions - oldest.since < self.patience:
                return
            self.remove(oldest)
            insort(self._aged, oldest.seniority)

"""Unfinished requests of one state, by id and by seniority."""

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Generic, TypeVar

from transom.sched.request import Running, Seniority, Waiting
from transom.values import RequestId

S = TypeVar("S", Waiting, Running)


class Ranks(Generic[S]):
    """Owns states, iterated senior first. Mutable."""

    def __init__(self) -> None:
        self._order: list[Seniority] = []
        self._states: dict[RequestId, S] = {}

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, request: RequestId) -> bool:
        return request in self._states

    def __iter__(self) -> Iterator[S]:
        states = self._states
        return (states[request] for _, request in self._order)

    def first(self) -> S | None:
        """The senior of all."""
        return self._states[self._order[0][1]] if self._order else None

    def add(self, state: S) -> None:
        seniority = state.progress.seniority
        assert seniority[1] not in self._states, seniority
        self._states[seniority[1]] = state
        insort(self._order, seniority)

    def remove(self, state: S) -> None:
        """Takes out exactly this state; a stale one is our bug."""
        seniority = state.progress.seniority
        held = self._states.pop(seniority[1])
        assert held is state, (held, state)
        del self._order[bisect_left(self._order, seniority)]

    def find(self, request: RequestId) -> S | None:
        return self._states.get(request)

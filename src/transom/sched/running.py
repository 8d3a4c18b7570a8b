"""The requests that run, and their memory as columns of one table."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from transom.sched.ranks import Ranks
from transom.sched.request import Running
from transom.values import RequestId

Columns = NDArray[np.int64]
"""One column per request."""

PROMPT, LIMIT, FULL_UNTIL, ALLOCATED, ROW = range(5)
"""Rows of the table, in tokens; the last says which row of the cache it is."""


class RunningSet:
    """Owns the running requests. Mutable; iterated senior first.

    The table follows what is told: `refresh` whenever the pages of a request have changed.
    """

    def __init__(self, rows: int) -> None:
        self._ranks: Ranks[Running] = Ranks()
        self._table: Columns = np.zeros((5, rows), np.int64)
        self._states: tuple[Running, ...] | None = ()
        self._rows = np.zeros(0, np.int64)

    # ------------------------------------------------------------ queries

    def __len__(self) -> int:
        return len(self._ranks)

    def __contains__(self, request: RequestId) -> bool:
        return request in self._ranks

    def __iter__(self) -> Iterator[Running]:
        return iter(self._ranks)

    def find(self, request: RequestId) -> Running | None:
        return self._ranks.find(request)

    def states(self) -> tuple[Running, ...]:
        """All, senior first; the same tuple until somebody comes or goes."""
        if self._states is None:
            self._states = tuple(self._ranks)
            self._rows = np.array([state.holding.row for state in self._states], np.int64)
        return self._states

    def columns(self) -> Columns:
        """A copy, in the order of `states`."""
        self.states()
        return self._table.take(self._rows, axis=1)

    # ------------------------------------------------------------ transitions

    def add(self, state: Running) -> None:
        self._ranks.add(state)
        self._states = None
        self.refresh(state)

    def remove(self, state: Running) -> None:
        """Takes out exactly this state; a stale one is our bug."""
        self._ranks.remove(state)
        self._states = None

    def refresh(self, state: Running) -> None:
        """The pages of `state` have changed."""
        self._table[:, state.holding.row] = column_of(state)


def column_of(state: Running) -> tuple[int, ...]:
    progress, holding = state.progress, state.holding
    return (
        len(progress.request.prompt),
        progress.kv_limit,
        holding.full_until,
        holding.allocated,
        holding.row,
    )

"""The running requests, in order of seniority, with their memory as columns of one array."""

from bisect import bisect_left, insort
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from transom.sched.request import Running, Seniority
from transom.values import RequestId

Columns = NDArray[np.int64]
"""[5, requests]: one column per request."""

PROMPT, LIMIT, FULL_UNTIL, ALLOCATED, ROW = range(5)
"""The five entries of a column. All are in tokens but ROW, the request's row in the cache."""


class RunningSet:
    """Owns the running requests. Mutable; iterated senior first.

    Forecasts do arithmetic over all running requests in every step, so their numbers are kept in one array.
    The caller keeps it current: it calls `refresh` whenever the pages of a request have changed.
    """

    def __init__(self, rows: int) -> None:
        self._by_id: dict[RequestId, Running] = {}
        self._by_seniority: list[Seniority] = []
        self._table: Columns = np.zeros((5, rows), np.int64)
        """Columns by the cache's row, so that a request that starts or ends moves no other column."""
        self._states: tuple[Running, ...] | None = ()
        """Cached by `states` together with `_rows`, until a request is added or removed."""
        self._rows = np.zeros(0, np.int64)
        self._lowest_class = 0

    # ------------------------------------------------------------ queries

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, request: RequestId) -> bool:
        return request in self._by_id

    def __iter__(self) -> Iterator[Running]:
        return (self._by_id[request] for _, request in self._by_seniority)

    def find(self, request: RequestId) -> Running | None:
        return self._by_id.get(request)

    def states(self) -> tuple[Running, ...]:
        """All, senior first; the same tuple until a request is added or removed."""
        if self._states is None:
            self._states = tuple(self)
            self._rows = np.array([state.holding.row for state in self._states], np.int64)
            self._lowest_class = min((s.progress.request.priority for s in self._states), default=0)
        return self._states

    def lowest_class(self) -> int:
        """The lowest priority of a running request; 0 if none runs."""
        self.states()  # updates it
        return self._lowest_class

    def columns(self) -> Columns:
        """A copy, in the order of `states`: a plan may read it while `refresh` changes the table."""
        self.states()  # updates `_rows`
        return self._table.take(self._rows, axis=1)

    # ------------------------------------------------------------ transitions

    def add(self, state: Running) -> None:
        seniority = state.progress.seniority
        assert state.progress.id not in self._by_id, seniority
        self._by_id[state.progress.id] = state
        insort(self._by_seniority, seniority)
        self._states = None
        self.refresh(state)

    def remove(self, state: Running) -> None:
        """Removes exactly this state; a stale one is our bug."""
        seniority = state.progress.seniority
        held = self._by_id.pop(state.progress.id)
        assert held is state, (held, state)
        del self._by_seniority[bisect_left(self._by_seniority, seniority)]
        self._states = None

    def refresh(self, state: Running) -> None:
        """Updates the column of `state` after a change of its pages."""
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

"""By when requests must have ended."""

from heapq import heapify, heappop, heappush

from transom.values import RequestId

SLACK = 64
"""Entries of ended requests kept before the heap is built anew."""


class Deadlines:
    """Owns the times, of unfinished requests that have one. Mutable."""

    def __init__(self) -> None:
        self._by_request: dict[RequestId, float] = {}
        self._heap: list[tuple[float, RequestId]] = []
        """The earliest first; may hold requests that have ended."""

    @property
    def next(self) -> float | None:
        """The earliest."""
        return min(self._by_request.values(), default=None)

    def add(self, request: RequestId, deadline: float | None) -> None:
        if deadline is not None:
            self._by_request[request] = deadline
            heappush(self._heap, (deadline, request))

    def forget(self, request: RequestId) -> None:
        """It has ended."""
        self._by_request.pop(request, None)
        if len(self._heap) > SLACK + 2 * len(self._by_request):
            self._heap = [(deadline, other) for other, deadline in self._by_request.items()]
            heapify(self._heap)

    def passed(self, now: float) -> tuple[RequestId, ...]:
        """Those whose time has come, the earliest first. They are forgotten."""
        found = []
        while self._heap and self._heap[0][0] <= now:
            _, request = heappop(self._heap)
            if self._by_request.pop(request, None) is not None:
                found.append(request)
        return tuple(found)

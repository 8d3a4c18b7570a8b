"""Outputs of one prompt that are not born yet: they wait for the first one to have computed it.

submit -> sibling -> first token, from the first one's logits -> Running, by a fork
                                                              -> Waiting, where a fork finds no room
If the first one ends before, the next takes its place in the queue.
"""

from collections.abc import Iterator

from transom.sched.request import Progress
from transom.values import RequestId


class Siblings:
    """Owns the unborn, by the request whose prompt they wait for. Mutable."""

    def __init__(self) -> None:
        self._of: dict[RequestId, list[Progress]] = {}
        self._first: dict[RequestId, RequestId] = {}
        """Of each, whom it waits for."""

    def __len__(self) -> int:
        return len(self._first)

    def __iter__(self) -> Iterator[RequestId]:
        return iter(self._first)

    def __contains__(self, request: RequestId) -> bool:
        return request in self._first

    def of(self, first: RequestId) -> tuple[Progress, ...]:
        """Those that wait for `first`, senior first."""
        return tuple(self._of.get(first, ()))

    def add(self, first: RequestId, siblings: list[Progress]) -> None:
        if siblings:
            assert first not in self._of and first not in self._first, first
            self._of[first] = siblings
            self._first.update((sibling.id, first) for sibling in siblings)

    def remove(self, request: RequestId) -> Progress:
        """It is born, or has ended."""
        first = self._first.pop(request)
        family = self._of[first]
        (found,) = [sibling for sibling in family if sibling.id == request]
        family.remove(found)
        if not family:
            del self._of[first]
        return found

    def inherit(self, first: RequestId) -> Progress | None:
        """The heir of a `first` that ended too early: others wait for it now. None if there is nobody."""
        if first not in self._of:
            return None
        heir, *others = self._of.pop(first)
        for sibling in (heir, *others):
            del self._first[sibling.id]
        self.add(heir.id, others)
        return heir

"""The undo log: every primitive that changes the cache logs its inverse first.

A lack of memory needs no undo: `admit` and `extend` check it before the first change. `fork` cannot, because
the pages to copy are known only once the parent has published.

The log is for exceptions. A transition consists of many primitives in pools, page tables, tree and queues,
and each of them asserts what it assumes. Wherever one raises, the transition, or the scheduler's whole plan,
has not happened, and a process that goes on (`transom.LLM`) goes on with a sound cache.
"""

from collections.abc import Callable
from types import TracebackType
from typing import Any

Undo = tuple[Callable[..., object], tuple[Any, ...]]


class Journal:
    """Owns the undo log. Mutable; empty outside transactions."""

    __slots__ = ("_depth", "_undos")

    def __init__(self) -> None:
        self._undos: list[Undo] = []
        self._depth = 0

    def log(self, undo: Callable[..., object], *arguments: Any) -> None:
        """Logs the inverse of a change: after the last check that can refuse it, before the change itself.

        So every change that has happened is logged, and every logged change happens.
        """
        assert self._depth, "a primitive changes something outside a transaction"
        self._undos.append((undo, arguments))

    def assign(self, owner: object, name: str, value: object) -> None:
        """Sets `owner.name = value` and logs the inverse."""
        self.log(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, value)

    def assign_alone(self, owner: object, name: str, value: object) -> None:
        """`assign` for a transition that consists of nothing else, and so needs no transaction of its own."""
        if self._depth:
            self.log(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, value)

    def unwind(self, start: int) -> None:
        """Runs the inverses logged since there were `start` of them, newest first, and removes them."""
        assert 0 <= start <= len(self._undos), (start, len(self._undos))
        while len(self._undos) > start:
            # Popped first: an inverse that fails must not run twice.
            undo, arguments = self._undos.pop()
            undo(*arguments)

    def enter(self) -> int:
        """Opens a transaction. Returns the position to unwind to if it fails."""
        self._depth += 1
        return len(self._undos)

    def leave(self) -> None:
        assert self._depth > 0, self._depth
        self._depth -= 1
        # The outermost transaction is committed: nothing can be rolled back any more.
        if not self._depth:
            self._undos.clear()

    def transaction(self) -> "Transaction":
        return Transaction(self)


class Transaction:
    """A block that rolls back its changes if it raises. Nested, it is part of the outer transaction."""

    __slots__ = ("_journal", "_start")

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def __enter__(self) -> "Transaction":
        self._start = self._journal.enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._journal.unwind(self._start)
        self._journal.leave()

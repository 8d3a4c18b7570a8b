"""Undo log: every primitive that changes the cache logs its inverse first."""

from collections.abc import Callable
from types import TracebackType
from typing import Any, NewType

Savepoint = NewType("Savepoint", int)
"""A place in the journal that `rollback` returns to; valid while its transaction is open."""

Undo = tuple[Callable[..., object], tuple[Any, ...]]


class Journal:
    """Owns the undo log. Mutable; empty outside transactions."""

    __slots__ = ("_depth", "_undos")

    def __init__(self) -> None:
        self._undos: list[Undo] = []
        self._depth = 0

    def log(self, undo: Callable[..., object], *arguments: Any) -> None:
        """Call before the change itself, once nothing can refuse it any more."""
        assert self._depth, "a primitive changes something outside a transaction"
        self._undos.append((undo, arguments))

    def assign(self, owner: object, name: str, value: object) -> None:
        """`owner.name = value`, with its inverse."""
        self.log(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, value)

    def assign_alone(self, owner: object, name: str, value: object) -> None:
        """`assign`, of a transition that is nothing else: outside a transaction there is nothing to undo."""
        if self._depth:
            self.log(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, value)

    def mark(self) -> Savepoint:
        assert self._depth, "a savepoint outside a transaction"
        return Savepoint(len(self._undos))

    def unwind(self, savepoint: int) -> None:
        """Runs inverses, newest first, down to `savepoint`."""
        assert 0 <= savepoint <= len(self._undos), (savepoint, len(self._undos))
        while len(self._undos) > savepoint:
            undo, arguments = self._undos.pop()
            undo(*arguments)

    def enter(self) -> int:
        """Where to unwind to if what begins now fails."""
        self._depth += 1
        return len(self._undos)

    def leave(self) -> None:
        assert self._depth > 0, self._depth
        self._depth -= 1
        if not self._depth:
            self._undos.clear()

    def transaction(self) -> "Transaction":
        return Transaction(self)


class Transaction:
    """A block that happens wholly or, on an exception, not at all. Joins the one already open, if any."""

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

    def savepoint(self) -> Savepoint:
        return self._journal.mark()

    def rollback(self, savepoint: Savepoint) -> None:
        """Undoes everything since `savepoint`; the transaction stays open."""
        assert savepoint >= self._start, (savepoint, self._start)
        self._journal.unwind(savepoint)

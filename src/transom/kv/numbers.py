"""Numbers of tree nodes, and columns by number: flat memory in place of objects for each node."""

from array import array
from typing import Any, Generic, TypeVar

from transom.kv.journal import Journal

Item = TypeVar("Item")

LEAST = 64
"""Numbers that are added at once, at least."""


class Numbers(Generic[Item]):
    """Owns the numbers of all items of a cache, and the columns. Mutable.

    The number of an item that has left is given to the next one. Columns never get shorter.

    items by number
    ages  a column: order of creation
    """

    __slots__ = ("_age", "_cleared", "_columns", "_free", "_journal", "ages", "items")

    def __init__(self, journal: Journal) -> None:
        self.items: list[Item | None] = []
        self._columns: list[array[Any]] = []
        self._cleared: list[array[Any]] = []
        self._free: list[int] = []
        self._age = 0
        self._journal = journal
        self.ages: array[int] = self.column("q")

    def column(self, typecode: str, *, cleared: bool = False) -> "array[Any]":
        """A new column, of zeros. `cleared`: an item that leaves leaves a 0, and not its last value."""
        assert not self.items, "columns are added before the first item"
        column: array[Any] = array(typecode)
        self._columns.append(column)
        if cleared:
            self._cleared.append(column)
        return column

    def enter(self, item: Item) -> int:
        """A number for `item`, the youngest of all."""
        assert item is not None, "None marks a number that is free"
        if not self._free:
            self._grow()
        number = self._free.pop()
        self.items[number] = item
        self._journal.log(self._undo_enter, number, self.ages[number])
        self._age += 1
        self.ages[number] = self._age
        return number

    def leave(self, number: int) -> None:
        """Frees the number of an item that is in no queue."""
        item = self.items[number]
        assert item is not None, number
        self._journal.log(self._undo_leave, number, item, [column[number] for column in self._cleared])
        self._clear(number)

    def _grow(self) -> None:
        count = len(self.items)
        assert all(len(column) == count for column in self._columns), count
        more = max(LEAST, count // 16)
        self.items.extend([None] * more)
        for column in self._columns:
            column.frombytes(bytes(more * column.itemsize))
        # The lowest number is given first.
        self._free.extend(range(count + more - 1, count - 1, -1))

    def _undo_enter(self, number: int, age: int) -> None:
        assert self.ages[number] == self._age, (number, self.ages[number], self._age)
        # Numbers and ages break ties, so a rolled back transaction must not use any up.
        self._age -= 1
        self._clear(number)
        self.ages[number] = age

    def _undo_leave(self, number: int, item: Item, before: list[Any]) -> None:
        # Newest first, so it is the number that was freed last.
        assert self._free[-1] == number, (number, self._free[-1])
        self._free.pop()
        self.items[number] = item
        for column, value in zip(self._cleared, before, strict=True):
            column[number] = value

    def _clear(self, number: int) -> None:
        assert self.items[number] is not None, number
        self.items[number] = None
        self._free.append(number)
        for column in self._cleared:
            column[number] = 0

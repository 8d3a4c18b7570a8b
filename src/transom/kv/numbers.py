"""Numbers of tree nodes, and columns by number: flat memory in place of objects for each node."""

from array import array
from typing import Any, Generic, TypeVar

from transom.kv.journal import Journal

Item = TypeVar("Item")


class Numbers(Generic[Item]):
    """Owns the numbers of all items of a cache, and the columns. Mutable.

    A number that is free has 0 in every column, and is given to the next item. Columns never get shorter.

    items by number
    ages  a column: order of creation
    """

    __slots__ = ("_age", "_columns", "_free", "_journal", "ages", "items")

    def __init__(self, journal: Journal) -> None:
        self.items: list[Item | None] = []
        self._columns: list[array[Any]] = []
        self._free: list[int] = []
        self._age = 0
        self._journal = journal
        self.ages: array[int] = self.column("q")

    def column(self, typecode: str) -> "array[Any]":
        """A new column, of zeros."""
        column: array[Any] = array(typecode, [0]) * len(self.items)
        self._columns.append(column)
        return column

    def enter(self, item: Item) -> int:
        """A number for `item`, the youngest of all."""
        if self._free:
            number = self._free.pop()
            self.items[number] = item
        else:
            number = len(self.items)
            self.items.append(item)
            for column in self._columns:
                column.append(0)
        self._journal.log(self._undo_enter, number)
        self._age += 1
        self.ages[number] = self._age
        return number

    def leave(self, number: int) -> None:
        """Frees the number of an item that is in no queue."""
        before = [column[number] for column in self._columns]
        self._journal.log(self._undo_leave, number, self.items[number], before)
        self._clear(number)

    def _undo_enter(self, number: int) -> None:
        # Numbers and ages break ties, so a rolled back transaction must not use any up.
        self._age -= 1
        self._clear(number)

    def _undo_leave(self, number: int, item: Item, before: list[Any]) -> None:
        # Newest first, so it is the number that was freed last.
        assert self._free[-1] == number, (number, self._free[-1])
        self._free.pop()
        self.items[number] = item
        for column, value in zip(self._columns, before, strict=True):
            column[number] = value

    def _clear(self, number: int) -> None:
        assert self.items[number] is not None, number
        self.items[number] = None
        self._free.append(number)
        for column in self._columns:
            column[number] = 0

"""In which order nodes are asked for pages: a Protocol, and least recently used."""

from typing import Generic, Protocol, TypeVar

from transom.kv.journal import Journal

Item = TypeVar("Item")


class Link(Generic[Item]):
    """A place in one order. Mutable, owned by its order; linked to itself while not in it."""

    __slots__ = ("item", "newer", "older")

    def __init__(self, item: Item) -> None:
        self.item = item
        self.older = self
        self.newer = self

    @property
    def listed(self) -> bool:
        return self.newer is not self


class Order(Protocol[Item]):
    """Who gives pages next. The tree tells it what happens; reclaim asks for a victim.

    Used along a path, deepest first, every order must name a node after all that hang from it.
    """

    def use(self, link: Link[Item]) -> None:
        """`link` was read or given pages just now; it enters if it was not listed."""
        ...

    def split(self, upper: Link[Item], lower: Link[Item]) -> None:
        """`upper`, new, takes the front of `lower` and is as much used."""
        ...

    def leave(self, link: Link[Item]) -> None: ...

    def victim(self) -> Item:
        """The next to give pages; an order must not be empty when asked."""
        ...

    def items(self) -> list[Item]:
        """All that are listed, the next victim first."""
        ...


class LeastRecentlyUsed(Generic[Item]):
    """Owns a ring of links, oldest first. Mutable; O(1) each, and undone to the place."""

    __slots__ = ("_journal", "_ring")

    def __init__(self, journal: Journal, head: Item) -> None:
        """`head` stands for the ends of the ring and is never named."""
        self._ring = Link(head)
        self._journal = journal

    def use(self, link: Link[Item]) -> None:
        newest = self._ring.older
        if link is newest:
            return
        if link.listed:
            self._journal.log(self._move, link, link.older)
        else:
            self._journal.log(self._detach, link)
        self._move(link, newest)

    def split(self, upper: Link[Item], lower: Link[Item]) -> None:
        assert lower.listed and not upper.listed, (lower, upper)
        self._journal.log(self._detach, upper)
        self._move(upper, lower)

    def leave(self, link: Link[Item]) -> None:
        assert link.listed, link.item
        self._journal.log(self._move, link, link.older)
        self._detach(link)

    def victim(self) -> Item:
        oldest = self._ring.newer
        assert oldest is not self._ring, "asked for a victim when nobody has pages"
        return oldest.item

    def items(self) -> list[Item]:
        """Oldest first."""
        found: list[Item] = []
        link = self._ring.newer
        while link is not self._ring:
            found.append(link.item)
            link = link.newer
        return found

    @staticmethod
    def _detach(link: Link[Item]) -> None:
        link.older.newer = link.newer
        link.newer.older = link.older
        link.older = link.newer = link

    def _move(self, link: Link[Item], older: Link[Item]) -> None:
        """`link` comes right after `older`."""
        assert link is not older, link.item
        self._detach(link)
        link.older, link.newer = older, older.newer
        older.newer.older = link
        older.newer = link

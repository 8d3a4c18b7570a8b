"""What the other sides are built from: pools whose owners are written down by hand. Models of ours."""

from collections.abc import Iterable, Sequence

from transom_lab.story.scene import FREE, Cell, Look, Strip, one_cell

TREE = "tree"


class OtherPool:
    """Owns pages: what each holds, whose it is, who reads it. Mutable. Nothing stops two from using one page.

    Pages that were given back last are handed out first.
    """

    def __init__(self, name: str, pages: int) -> None:
        self.name = name
        self.labels = [""] * pages
        self.owners = [""] * pages
        self.readers: list[list[str]] = [[] for _ in range(pages)]
        self.free = list(range(pages - 1, -1, -1))

    def take(self, owner: str, labels: Sequence[str]) -> list[int]:
        """A page for each of `labels`, written at once."""
        assert len(labels) <= len(self.free), (self.name, labels, self.free)
        taken = [self.free.pop() for _ in labels]
        for page, label in zip(taken, labels, strict=True):
            self.labels[page], self.owners[page] = label, owner
        return taken

    def file(self, pages: Iterable[int]) -> None:
        """The tree's from now on."""
        for page in pages:
            self.owners[page] = TREE

    def give(self, pages: Sequence[int]) -> None:
        """Free from now on, whoever may be reading."""
        for page in reversed(pages):
            assert self.owners[page], (self.name, page)
            self.owners[page] = ""
            self.free.append(page)

    def read(self, reader: str, pages: Iterable[int]) -> None:
        for page in pages:
            self.readers[page].append(reader)

    def leave(self, reader: str) -> None:
        """`reader` has ended, or slid past what it read."""
        for readers in self.readers:
            if reader in readers:
                readers.remove(reader)

    def strip(self) -> Strip:
        return Strip(self.name, tuple(self._cell(page) for page in range(len(self.owners))))

    def _cell(self, page: int) -> Cell:
        owner, label, readers = self.owners[page], self.labels[page], self.readers[page]
        if readers and owner != TREE and owner not in readers:
            return Cell(Look.WRONG, label.lower())
        if not owner:
            return FREE
        return one_cell(readers, label) if owner == TREE else Cell(Look[owner], label.lower())


def labels(letter: str, start: int, end: int) -> list[str]:
    """How pages `[start, end)` of a text are called."""
    return [f"{letter}{index}" for index in range(start, end)]

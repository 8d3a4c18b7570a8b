"""The parts that the other sides are built from: pools with bookkeeping by hand. They are models of ours."""

from collections.abc import Iterable, Sequence

from transom_lab.story.scene import FREE, Cell, Look, Strip, one_cell

TREE = "tree"


class OtherPool:
    """Owns pages, each with its contents, its owner and its readers. Mutable.

    Nothing keeps two requests from using one page: that is the fault the stories show. The page that was
    freed last is allocated first.
    """

    def __init__(self, name: str, pages: int) -> None:
        self.name = name
        self.labels = [""] * pages
        self.owners = [""] * pages
        self.readers: list[list[str]] = [[] for _ in range(pages)]
        self.free = list(range(pages - 1, -1, -1))

    def allocate(self, owner: str, labels: Sequence[str]) -> list[int]:
        """Allocates a page for each of `labels`, and writes it at once."""
        assert len(labels) <= len(self.free), (self.name, labels, self.free)
        pages = [self.free.pop() for _ in labels]
        for page, label in zip(pages, labels, strict=True):
            self.labels[page], self.owners[page] = label, owner
        return pages

    def insert(self, pages: Iterable[int]) -> None:
        """Makes the tree the owner of `pages`."""
        for page in pages:
            self.owners[page] = TREE

    def release(self, pages: Sequence[int]) -> None:
        """Frees `pages`, whether a request reads them or not."""
        for page in reversed(pages):
            assert self.owners[page], (self.name, page)
            self.owners[page] = ""
            self.free.append(page)

    def read(self, reader: str, pages: Iterable[int]) -> None:
        """Notes that a request reads `pages`."""
        for page in pages:
            self.readers[page].append(reader)

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
    """The labels of pages `[start, end)` of a text."""
    return [f"{letter}{index}" for index in range(start, end)]

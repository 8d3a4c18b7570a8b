"""How much is to be had: pages per component, and bytes that all share. The one notion plans compare with."""

from collections.abc import Sequence
from dataclasses import dataclass

Pages = tuple[int, ...]
"""A number of pages per component."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """Pages to be had of each component, and bytes of all together. Without a budget bytes are free."""

    pages: Pages
    bytes: int
    page_bytes: tuple[int, ...]

    def __post_init__(self) -> None:
        assert len(self.pages) == len(self.page_bytes), self

    def covers(self, need: Sequence[int]) -> bool:
        """Whether all of `need` is to be had at once."""
        return self._bytes(need) <= self.bytes and all(
            n <= room or n <= 0 for n, room in zip(need, self.pages, strict=True)
        )

    def less(self, need: Sequence[int]) -> "Capacity":
        """What is left after `need`; may be negative."""
        pages = tuple([room - n for room, n in zip(self.pages, need, strict=True)])
        return Capacity(pages, self.bytes - self._bytes(need), self.page_bytes)

    def more(self, gain: Sequence[int]) -> "Capacity":
        """With `gain` come to be had."""
        return self.less([-pages for pages in gain])

    def lacks(self, need: Sequence[int]) -> int:
        """Pages by which a span must be shorter so that it may fit; 0 or less when `need` does.

        A page less of span is a page less in every component that grows at all.
        """
        pages = max([n - room if n > 0 else 0 for n, room in zip(need, self.pages, strict=True)])
        size = sum([size for n, size in zip(need, self.page_bytes, strict=True) if n > 0])
        short = self._bytes(need) - self.bytes
        return max(pages, -(-short // size) if size and short > 0 else 0)

    def alone(self) -> Pages:
        """Pages of each component that could be had if it took all the bytes."""
        return tuple(
            [
                min(room, max(0, self.bytes) // size) if size else room
                for room, size in zip(self.pages, self.page_bytes, strict=True)
            ]
        )

    def _bytes(self, need: Sequence[int]) -> int:
        return sum([n * size for n, size in zip(need, self.page_bytes, strict=True)])

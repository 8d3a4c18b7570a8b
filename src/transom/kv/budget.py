"""One number of bytes that all pools share. A page's bytes count when touched; `Discard` gives them back."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from transom.errors import NoSpace
from transom.kv.journal import Journal
from transom.kv.pool import PagePool
from transom.steps import Discard

PageCounts = tuple[int, ...]
"""A number of pages per component."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """Pages to be had of each component, and bytes of all together. Without a budget bytes are free."""

    pages: PageCounts
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

    def alone(self) -> PageCounts:
        """Pages of each component that could be had if it took all the bytes."""
        return tuple(
            [
                min(room, max(0, self.bytes) // size) if size else room
                for room, size in zip(self.pages, self.page_bytes, strict=True)
            ]
        )

    def _bytes(self, need: Sequence[int]) -> int:
        return sum([n * size for n, size in zip(need, self.page_bytes, strict=True)])


class Budget:
    """Owns what is counted in bytes. Mutable. Without a limit nothing is ever short of bytes.

    in use <= touched <= limit. What is free and touched costs memory, and is taken before anything else.
    """

    __slots__ = ("_discarded", "_journal", "_pools", "_sizes", "limit")

    def __init__(
        self, limit: int | None, page_bytes: tuple[int, ...], pools: Sequence[PagePool], journal: Journal
    ) -> None:
        assert limit is None or len(page_bytes) == len(pools), (limit, page_bytes)
        self.limit = limit
        self._sizes = page_bytes if limit is not None else (0,) * len(pools)
        self._pools = tuple(pools)
        self._discarded: tuple[Discard, ...] = ()
        self._journal = journal

    # ---------------------------------------------------------------- queries

    @property
    def available(self) -> Capacity:
        """Capacity that can be allocated now, evictable pages included."""
        pages = tuple([pool.available for pool in self._pools])
        if self.limit is None:
            return Capacity(pages, 0, self._sizes)
        idle = sum([pool.idle * size for pool, size in zip(self._pools, self._sizes, strict=True)])
        return Capacity(pages, self.limit - self.in_use() + idle, self._sizes)

    def in_use(self) -> int:
        """Bytes of pages that somebody owns."""
        return sum([(p.capacity - p.free) * size for p, size in zip(self._pools, self._sizes, strict=True)])

    def touched(self) -> int:
        """Bytes of pages that cost memory: owned, or free and not discarded."""
        return sum(
            [(p.capacity - p.untouched) * size for p, size in zip(self._pools, self._sizes, strict=True)]
        )

    def short(self, need: Sequence[int]) -> int:
        """Bytes to be reclaimed before `need` can be taken."""
        if self.limit is None:
            return 0
        wanted = sum([n * size for n, size in zip(need, self._sizes, strict=True)])
        return max(0, self.in_use() + wanted - self.limit)

    def require(self, need: Sequence[int]) -> None:
        """Raises NoSpace, of a component or of `bytes`, if `need` is not to be had."""
        for pool, count in zip(self._pools, need, strict=True):
            if count > pool.available:
                raise NoSpace(pool.name, count, pool.available)
        if self.limit is None:
            return
        available = self.available
        if not available.covers(need):
            wanted = sum([n * size for n, size in zip(need, self._sizes, strict=True)])
            raise NoSpace("bytes", wanted, available.bytes)

    def pages_of(self, component: int, size: int) -> int:
        """Pages of a component that make at least `size` bytes."""
        assert size > 0 and self.limit is not None, (component, size)
        return -(-size // self._sizes[component])

    def discards(self) -> tuple[Discard, ...]:
        """What to give back to the system, after the copies and before any kernel of the next step.

        Pages taken again since they were named are not among them: they count as touched.
        """
        if not self._discarded:
            return ()
        untouched = [set(pool.untouched_pages().tolist()) for pool in self._pools]
        found = []
        for discard in self._discarded:
            pages = tuple([page for page in discard.pages if page in untouched[discard.component]])
            if pages:
                untouched[discard.component].difference_update(pages)
                found.append(Discard(discard.component, pages))
        return tuple(found)

    # ---------------------------------------------------------------- transitions

    def settle(self) -> None:
        """After pages were taken: what is touched comes down to the limit."""
        if self.limit is None:
            return
        over = self.touched() - self.limit
        while over > 0:
            # The pool with most bytes free and touched; what is in use never passes the limit.
            spare = [(p.free - p.untouched) * size for p, size in zip(self._pools, self._sizes, strict=True)]
            component = int(np.argmax(spare))
            pool, size = self._pools[component], self._sizes[component]
            count = min(pool.free - pool.untouched, -(-over // size))
            assert count > 0, (over, spare)
            pages = pool.discard(count)
            self._journal.assign(
                self, "_discarded", (*self._discarded, Discard(component, tuple(pages.tolist())))
            )
            over -= count * size

    def discards_done(self) -> None:
        """The runner has given back what `discards` named."""
        if self._discarded:
            self._journal.assign(self, "_discarded", ())

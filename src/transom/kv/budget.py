"""The memory budget: one number of bytes that all pools share, and the capacity left in it.

Each pool has enough page ids for the whole budget. The system gives memory to a page when the page is first
written to (touched), so a pool that is not used costs nothing. A `Discard` tells the runner to return the
memory of free pages to the system, which makes it available to the other pools.
"""

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
    """Capacity for allocations: pages of each component, and bytes of all together.

    Without a budget `bytes` and `page_bytes` are 0, so that only pages count.
    """

    pages: PageCounts
    bytes: int
    page_bytes: tuple[int, ...]

    def __post_init__(self) -> None:
        assert len(self.pages) == len(self.page_bytes), self

    def covers(self, need: Sequence[int]) -> bool:
        """Whether all of `need` can be allocated at the same time."""
        return self._bytes(need) <= self.bytes and all(
            n <= pages or n <= 0 for n, pages in zip(need, self.pages, strict=True)
        )

    def less(self, need: Sequence[int]) -> "Capacity":
        """The capacity left after `need`, which may be negative."""
        pages = tuple([pages - n for pages, n in zip(self.pages, need, strict=True)])
        return Capacity(pages, self.bytes - self._bytes(need), self.page_bytes)

    def more(self, gain: Sequence[int]) -> "Capacity":
        """The capacity once `gain` has been freed."""
        return self.less([-pages for pages in gain])

    def lacks(self, need: Sequence[int]) -> int:
        """Pages by which a span must be shorter so that it may fit. 0 or less when `need` fits.

        One page of span less is one page less in every component that grows at all.
        """
        # Components that need nothing are left out: shortening the span frees no page of theirs.
        pages = max([n - pages if n > 0 else 0 for n, pages in zip(need, self.pages, strict=True)])
        size = sum([size for n, size in zip(need, self.page_bytes, strict=True) if n > 0])
        short = self._bytes(need) - self.bytes
        return max(pages, -(-short // size) if size and short > 0 else 0)

    def alone(self) -> PageCounts:
        """Pages of each component that could be allocated if no other component allocated any."""
        return tuple(
            [
                min(pages, max(0, self.bytes) // size) if size else pages
                for pages, size in zip(self.pages, self.page_bytes, strict=True)
            ]
        )

    def _bytes(self, need: Sequence[int]) -> int:
        return sum([n * size for n, size in zip(need, self.page_bytes, strict=True)])


class Budget:
    """Owns the accounts in bytes. Mutable. Without a limit, bytes are never short.

    Invariant: in use <= touched <= limit. Pools allocate free touched pages, which already cost memory,
    before untouched ones.
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
            return Capacity(pages, 0, self._sizes)  # sizes are 0 too, so bytes never count
        idle = sum([pool.idle * size for pool, size in zip(self._pools, self._sizes, strict=True)])
        return Capacity(pages, self.limit - self.in_use() + idle, self._sizes)

    def in_use(self) -> int:
        """Bytes of all pages that are not free."""
        return sum([(p.capacity - p.free) * size for p, size in zip(self._pools, self._sizes, strict=True)])

    def touched(self) -> int:
        """Bytes of pages that occupy memory: allocated, or free and not discarded yet."""
        return sum(
            [(p.capacity - p.untouched) * size for p, size in zip(self._pools, self._sizes, strict=True)]
        )

    def bytes_short(self, need: Sequence[int]) -> int:
        """Bytes to evict before `need` can be allocated."""
        if self.limit is None:
            return 0
        wanted = sum([n * size for n, size in zip(need, self._sizes, strict=True)])
        return max(0, self.in_use() + wanted - self.limit)

    def require(self, need: Sequence[int]) -> None:
        """Raises NoSpace, naming a component or `bytes`, if `need` cannot be allocated even by evicting."""
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
        """The least number of pages of a component with at least `size` bytes."""
        assert size > 0 and self.limit is not None, (component, size)
        return -(-size // self._sizes[component])

    def discards(self) -> tuple[Discard, ...]:
        """Memory of free pages to return to the system: after the copies, before any kernel of the next step.

        Pages allocated again since `settle` discarded them are left out: they count as touched again.
        """
        if not self._discarded:
            return ()
        # Rare: bytes move from one pool to another only when the mix of requests changes. So sets are fine.
        untouched = [set(pool.untouched_pages().tolist()) for pool in self._pools]
        discards = []
        for discard in self._discarded:
            pages = tuple([page for page in discard.pages if page in untouched[discard.component]])
            if pages:
                # A page discarded twice before the runner gets to it is named once.
                untouched[discard.component].difference_update(pages)
                discards.append(Discard(discard.component, pages))
        return tuple(discards)

    # ---------------------------------------------------------------- transitions

    def settle(self) -> None:
        """Discards free pages until touched bytes are within the limit. Call after pages were allocated."""
        if self.limit is None:
            return
        over = self.touched() - self.limit
        while over > 0:
            # The pool with the most free touched bytes. There are some: bytes in use are within the limit.
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
        """The runner has carried out `discards`."""
        if self._discarded:
            self._journal.assign(self, "_discarded", ())

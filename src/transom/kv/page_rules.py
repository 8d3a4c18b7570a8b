"""Page rules: a component's `needed(end)` in terms of pages. All that depends on the kind is derived here.

There are two shapes of need, and one rule for each, with the same queries:

RangePages     From(start): pages of a range of positions, which rows read from the tree by reference
SnapshotPages  Snapshot(at): one page, the state after `at` tokens, copied to and from the request's own page
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import gt
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from transom.errors import ConfigError
from transom.kv.component_specs import ComponentSpec, From, Snapshot


def first_needed(component: ComponentSpec, end: int) -> int:
    """The first position that the token at `end` reads; `end` itself if it reads no position before it."""
    need = component.needed(end)
    if not isinstance(need, From):
        raise ConfigError(f"{component.name}: kept as snapshots, it has no range of positions")
    assert 0 <= need.start <= end, (component, end, need)
    return need.start


def keeps_everything(component: ComponentSpec, context: int) -> bool:
    """Whether a request keeps all its pages: full attention, and windows as long as the context.

    Pages of such a component are only of use without holes, from the root on.
    """
    return is_ranged(component) and first_needed(component, context) == 0


def is_ranged(component: ComponentSpec) -> bool:
    """Whether a component needs a range of positions, and not a snapshot."""
    return isinstance(component.needed(0), From)


@dataclass(frozen=True, slots=True)
class RangePages:
    """The rule of one component that needs ranges of positions, on pages of `page_size` tokens.

    keeps_all    see `keeps_everything`
    reads_before whether every position reads the one before it, so that no hit ends in a hole
    """

    component: ComponentSpec
    page_size: int
    keeps_all: bool = False
    reads_before: bool = False
    starts: Sequence[int] = field(default=(), repr=False, compare=False)
    """`needed(end).start` by end. A table, because the scheduler and the cache need it for every span."""

    by_reference: ClassVar[bool] = True
    """Whether rows name pages of the tree; otherwise contents are copied."""

    # ------------------------------------------------------------ in pages of the tree

    def floor(self, tokens: int) -> int:
        """Whole pages in `tokens` tokens."""
        return tokens // self.page_size

    def ceil(self, tokens: int) -> int:
        """Pages that `tokens` tokens touch, the last one perhaps in part."""
        return -(-tokens // self.page_size)

    def needed(self, end: int) -> int:
        """The first page that a hit at `end` reads; `ceil(end)` if it reads no page.

            needed(end)            end
        --------|===================|----
        """
        start = self._start(end)
        # A token that reads nothing before it needs no page, not even the one that `end` lies in.
        return -(-end // self.page_size) if start == end else start // self.page_size

    def keep(self, end: int) -> int:
        """The first page that a request keeps once it has computed `end` tokens.

        This is the window of the last page boundary, not of the last token. The window of the token would let
        go of a page that the boundary needs as soon as it moves past a page, and a retracted request, which
        resumes at the boundary, would find a hole there.
        """
        assert end >= 0, end
        return self._start(end - end % self.page_size) // self.page_size

    def ends_within(self, end: int, is_resident: bool) -> bool:
        """Whether a hit may end at `end`, inside a page that is resident or not.

        If it is not, the request's page lacks its first tokens. That is allowed only if no token reads them:
        neither the one at `end`, nor a request that resumes at the end of the page.
        """
        page = end // self.page_size
        return is_resident or (self.needed(end) > page and self.keep((page + 1) * self.page_size) > page)

    def snapshot_page(self, start: int) -> int | None:
        """The page of the path that a hit at `start` copies its state from. Ranges have no state."""
        return None

    def island(self, start: int, resident: bytes) -> int:
        """In a run of pages from page `start` on: the index of the first page that a hit at its end reads.

        One earlier page is kept as slack. A request with the same prompt must compute its last token again,
        so its hit ends one token before the boundary and may read one page more.
        """
        end = start + len(resident)
        need = self._start(end * self.page_size) // self.page_size  # `end` itself if it needs nothing
        return need - 1 - start if need > start else 0

    # ------------------------------------------------------------ in entries of a row

    def entries(self, tokens: int) -> int:
        """Entries of a row that `tokens` tokens touch."""
        return -(-tokens // self.page_size)

    def shared(self, pages: int) -> int:
        """Entries of a row that may name pages of the tree, once its first `pages` pages are published."""
        return pages

    first_entry = keep
    """The first entry kept once `end` tokens are computed."""

    def first_read(self, end: int) -> int:
        """The first entry that computing the token at `end` reads."""
        return self._start(end) // self.page_size

    def _start(self, end: int) -> int:
        return self.starts[end] if end < len(self.starts) else first_needed(self.component, end)

    def own(self, start: int) -> int:
        """Pages that admission at `start` allocates: one if `start` lies inside a page."""
        return int(start % self.page_size != 0)

    def copied(self, start: int) -> int:
        """Slots of that page to copy from its source."""
        return start % self.page_size

    def held(self, pages: int) -> int:
        """The most pages that a request holds while it grows page by page to `pages`."""
        assert pages >= 0, pages
        # Tables for powers of two, so that the cache of `_held` has few entries.
        return int(_held(self.component, self.page_size, 1 << max(0, pages - 1).bit_length())[pages])

    def held_up_to(self, pages: int) -> NDArray[np.int64]:
        """`held` for every number of pages up to `pages`, [pages + 1]. Not to be written to."""
        return _held(self.component, self.page_size, 1 << max(0, pages - 1).bit_length())[: pages + 1]

    def cut(self, start: int, end: int) -> int:
        """The furthest end, up to `end`, of a span from `start`."""
        return end

    def keeps(self, end: int) -> bool:
        """Whether a snapshot is kept after `end` tokens."""
        return False


@dataclass(frozen=True, slots=True)
class SnapshotPages:
    """The rule of one component kept as snapshots, at page boundaries. Methods as in RangePages.

    A row has one entry: the request's own state. The tree has the state after page i at index i, or a hole.
    """

    component: ComponentSpec
    page_size: int

    keeps_all: ClassVar[bool] = False
    reads_before: ClassVar[bool] = True
    by_reference: ClassVar[bool] = False

    def floor(self, tokens: int) -> int:
        return tokens // self.page_size

    def ceil(self, tokens: int) -> int:
        return -(-tokens // self.page_size)

    def needed(self, end: int) -> int:
        """The index of the state after `end`; inside a page no state is kept, so an index past the path."""
        need = self.component.needed(end)
        assert isinstance(need, Snapshot) and need.at == end, (need, end)
        return max(0, end // self.page_size - 1) if end % self.page_size == 0 else end // self.page_size

    def keep(self, end: int) -> int:
        """The index of the state at the last page boundary, at which a retracted request resumes."""
        assert end >= 0, end
        return max(0, end // self.page_size - 1)

    def ends_within(self, end: int, is_resident: bool) -> bool:
        """Never: snapshots exist at page boundaries only."""
        return False

    def island(self, start: int, resident: bytes) -> int:
        """The index of the last snapshot: a hit at the end reads no other."""
        return max(0, resident.rfind(1))

    def snapshot_page(self, start: int) -> int | None:
        assert start % self.page_size == 0, (start, self.page_size)
        return start // self.page_size - 1 if start else None

    def entries(self, tokens: int) -> int:
        return 1

    def shared(self, pages: int) -> int:
        return 0

    def first_entry(self, end: int) -> int:
        return 0

    def first_read(self, end: int) -> int:
        return 0

    def own(self, start: int) -> int:
        return 1

    def copied(self, start: int) -> int:
        return 1

    def held(self, pages: int) -> int:
        return 1

    def held_up_to(self, pages: int) -> NDArray[np.int64]:
        return np.ones(pages + 1, dtype=np.int64)

    def cut(self, start: int, end: int) -> int:
        """The first position after `start` at which a snapshot is kept, or `end` if that comes first."""
        assert start <= end, (start, end)
        boundaries = (cut for cut in self.component.cuts(start, end) if cut % self.page_size == 0)
        return next(boundaries, end)

    def keeps(self, end: int) -> bool:
        return end > 0 and end % self.page_size == 0 and end in self.component.cuts(end - 1, end)


PageRule = RangePages | SnapshotPages


def page_rule(component: ComponentSpec, page_size: int, context: int) -> PageRule:
    """The rule of `component` for requests of up to `context` tokens."""
    assert page_size >= 1 and context >= 0, (page_size, context)
    if not is_ranged(component):
        return SnapshotPages(component, page_size)
    starts = _starts(component, context)
    # From the table of all positions: `needed` may be any function, so nothing shorter decides it.
    reads_before = all(map(gt, range(1, context + 1), starts[1:]))
    return RangePages(component, page_size, starts[context] == 0, reads_before, starts)


# Shared by all rules of a component: the fuzzer and the tests build thousands of caches.
@lru_cache(maxsize=16)
def _starts(component: ComponentSpec, context: int) -> Sequence[int]:
    return array("q", [first_needed(component, end) for end in range(context + 1)])


@lru_cache(maxsize=64)
def _held(component: ComponentSpec, page_size: int, pages: int) -> NDArray[np.int64]:
    """The most pages held on the way to each number of pages up to `pages`, [pages + 1].

    A request allocates the next page before it slides, so both count.
    """
    kept = [first_needed(component, page * page_size) // page_size for page in range(pages)]
    held = np.zeros(pages + 1, dtype=np.int64)
    held[1:] = np.maximum.accumulate(np.arange(1, pages + 1) - np.array(kept, dtype=np.int64))
    return held

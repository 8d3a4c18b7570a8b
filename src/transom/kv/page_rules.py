"""What `needed(end)` of a component means in pages. Everything a kind decides is derived here, once.

Two shapes of need, two rules with the same questions:

Grid          From(start): pages of a range of positions, which rows read from the tree by reference
SnapshotGrid  Snapshot(at): one page, the state after `at` tokens, copied to and from the request's own
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
    """The first position that must be resident to compute the token at `end`; `end` itself if none."""
    need = component.needed(end)
    if not isinstance(need, From):
        raise ConfigError(f"{component.name}: kept as snapshots, it has no range of positions")
    assert 0 <= need.start <= end, (component, end, need)
    return need.start


def is_rooted(component: ComponentSpec, context: int) -> bool:
    """Whether a request never lets go of anything: its pages are of use from the root on, without a hole.

    Full attention is; so is a window as long as the context.
    """
    return is_ranged(component) and first_needed(component, context) == 0


def is_ranged(component: ComponentSpec) -> bool:
    """Whether it needs positions, not a snapshot."""
    return isinstance(component.needed(0), From)


@dataclass(frozen=True, slots=True)
class RangePages:
    """One component on pages of `page_size` tokens.

    rooted       as the function above
    reads_before whether every position reads the one before it, so that no hit ends in a hole
    """

    component: ComponentSpec
    page_size: int
    keeps_all: bool = False
    reads_before: bool = False
    starts: Sequence[int] = field(default=(), repr=False, compare=False)
    """`needed(end).start` by end, looked up rather than asked for: it is asked for all the time."""

    by_reference: ClassVar[bool] = True
    """Rows name the tree's pages."""

    # ------------------------------------------------------------ in pages of the tree

    def floor(self, tokens: int) -> int:
        """Whole pages in `tokens` tokens."""
        return tokens // self.page_size

    def ceil(self, tokens: int) -> int:
        """Pages that `tokens` tokens touch."""
        return -(-tokens // self.page_size)

    def needed(self, end: int) -> int:
        """The first page that a hit at `end` reads; `ceil(end)` if it reads none.

            needed(end)            end
        --------|===================|----
        """
        start = self._start(end)
        return -(-end // self.page_size) if start == end else start // self.page_size

    def keep(self, end: int) -> int:
        """The first page that a request keeps once it has computed `end` tokens.

        The window of the last page boundary, not of the last token: else one position in page_size would
        strand the boundary that a retracted request comes back to.
        """
        assert end >= 0, end
        return self._start(end - end % self.page_size) // self.page_size

    def ends_within(self, end: int, is_resident: bool) -> bool:
        """Whether a hit may end at `end`, inside a page that is resident or not.

        Without the page's first tokens only if nobody comes to need them: neither at `end` nor at the page's.
        """
        page = end // self.page_size
        return is_resident or (self.needed(end) > page and self.keep((page + 1) * self.page_size) > page)

    def snapshot_page(self, start: int) -> int | None:
        """The page of the path that a hit at `start` copies its state from: none here."""
        return None

    def island(self, start: int, resident: bytes) -> int:
        """Of a run of pages from `start` on: the first that its end has use for, with a page of slack."""
        end = start + len(resident)
        need = self._start(end * self.page_size) // self.page_size  # `end` itself if it needs nothing
        return need - 1 - start if need > start else 0

    # ------------------------------------------------------------ in entries of a row

    def entries(self, tokens: int) -> int:
        """Entries of a row that `tokens` tokens touch."""
        return -(-tokens // self.page_size)

    def shared(self, pages: int) -> int:
        """Entries, of a row whose first `pages` pages are published, that may name pages of the tree."""
        return pages

    first_entry = keep
    """The first entry kept once `end` tokens are computed."""

    def first_read(self, end: int) -> int:
        """The first entry that computing the token at `end` reads."""
        return self._start(end) // self.page_size

    def _start(self, end: int) -> int:
        return self.starts[end] if end < len(self.starts) else first_needed(self.component, end)

    def own(self, start: int) -> int:
        """Pages that admission at `start` takes: one if `start` lies within a page."""
        return int(start % self.page_size != 0)

    def copied(self, start: int) -> int:
        """Slots of that page to be copied."""
        return start % self.page_size

    def held(self, pages: int) -> int:
        """The most pages held on the way to `pages`, by a request that grows page by page."""
        assert pages >= 0, pages
        return int(_held(self.component, self.page_size, 1 << max(0, pages - 1).bit_length())[pages])

    def held_up_to(self, pages: int) -> NDArray[np.int64]:
        """`held` of every number of pages up to `pages`; not to be written to."""
        return _held(self.component, self.page_size, 1 << max(0, pages - 1).bit_length())[: pages + 1]

    def cut(self, start: int, end: int) -> int:
        """Where a span from `start` must stop, at most `end`."""
        return end

    def keeps(self, end: int) -> bool:
        """Whether a snapshot is kept after `end` tokens."""
        return False


@dataclass(frozen=True, slots=True)
class SnapshotPages:
    """One component kept as snapshots at page boundaries. A row has one entry: the request's own state.

    The tree has the state after page i at place i, a hole where there is none.
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
        """The place of the state after `end`; past the whole pages where it could not be kept."""
        need = self.component.needed(end)
        assert isinstance(need, Snapshot) and need.at == end, (need, end)
        return max(0, end // self.page_size - 1) if end % self.page_size == 0 else end // self.page_size

    def keep(self, end: int) -> int:
        """The place of the last boundary's state: what a retracted request comes back to."""
        assert end >= 0, end
        return max(0, end // self.page_size - 1)

    def ends_within(self, end: int, is_resident: bool) -> bool:
        """Never: snapshots are those of page boundaries."""
        return False

    def island(self, start: int, resident: bytes) -> int:
        """The last snapshot is what its end has use for."""
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
        """The first place after `start` where a snapshot can be kept, if it comes before `end`."""
        assert start <= end, (start, end)
        boundaries = (cut for cut in self.component.cuts(start, end) if cut % self.page_size == 0)
        return next(boundaries, end)

    def keeps(self, end: int) -> bool:
        return end > 0 and end % self.page_size == 0 and end in self.component.cuts(end - 1, end)


PageRule = RangePages | SnapshotPages


def page_rule(component: ComponentSpec, page_size: int, context: int) -> PageRule:
    """What `needed` means for requests of up to `context` tokens."""
    assert page_size >= 1 and context >= 0, (page_size, context)
    if not is_ranged(component):
        return SnapshotPages(component, page_size)
    starts = _starts(component, context)
    reads_before = all(map(gt, range(1, context + 1), starts[1:]))
    return RangePages(component, page_size, starts[context] == 0, reads_before, starts)


@lru_cache(maxsize=16)
def _starts(component: ComponentSpec, context: int) -> Sequence[int]:
    return array("q", [first_needed(component, end) for end in range(context + 1)])


@lru_cache(maxsize=64)
def _held(component: ComponentSpec, page_size: int, pages: int) -> NDArray[np.int64]:
    """Per number of pages up to `pages`: the most held on the way there. A page comes, then others go."""
    kept = [first_needed(component, page * page_size) // page_size for page in range(pages)]
    held = np.zeros(pages + 1, dtype=np.int64)
    held[1:] = np.maximum.accumulate(np.arange(1, pages + 1) - np.array(kept, dtype=np.int64))
    return held

"""Prefixes that requests compute right now, and who should wait for them. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from transom.kv.cache import Namespace
from transom.kv.components import PageRule
from transom.values import Tokens


@dataclass(frozen=True, slots=True)
class Publisher:
    """A request with a row, as one who shares its prefix sees it: known tokens, `computed` of them done."""

    namespace: Namespace
    tokens: Tokens
    computed: int


class Promises:
    """Owns what publishers will publish, found by its first tokens. Mutable, lives no longer than a plan."""

    __slots__ = ("_gain_min", "_grids", "_publishers")

    def __init__(self, grids: Sequence[PageRule], gain_min: int) -> None:
        """Who waits must gain at least `gain_min` tokens, and so shares as many."""
        self._grids = tuple(grids)
        self._gain_min = gain_min
        self._publishers: dict[tuple[Namespace, bytes], list[Publisher]] = {}

    def add(self, publisher: Publisher) -> None:
        head = publisher.tokens[: self._gain_min].tobytes()
        self._publishers.setdefault((publisher.namespace, head), []).append(publisher)

    def is_promised(self, namespace: Namespace, tokens: Tokens, *, cached: int) -> bool:
        """Whether somebody will publish enough of `tokens` beyond `cached`."""
        publishers = self._publishers.get((namespace, tokens[: self._gain_min].tobytes()), ())
        return any(self._gain(publisher, tokens, cached) >= self._gain_min for publisher in publishers)

    def _gain(self, publisher: Publisher, tokens: Tokens, cached: int) -> int:
        """Tokens beyond `cached`; 0 when they are published already, or never will be.

        published          reach    publishable
        ----------|--------------|==========|---  publisher's tokens
        """
        page_size = self._grids[0].page_size
        published = publisher.computed - publisher.computed % page_size
        publishable = len(publisher.tokens) - len(publisher.tokens) % page_size
        if published == publishable:
            return 0
        reach = min(common_prefix(publisher.tokens, tokens), publishable, len(tokens) - 1)
        reach = self._last_hit(reach, published)
        return reach - cached if reach > published else 0

    def _last_hit(self, reach: int, published: int) -> int:
        """The last end up to `reach` that a hit can have: where there are states, one with a snapshot."""
        if all(grid.by_reference for grid in self._grids):
            return reach
        page_size = self._grids[0].page_size
        ends = range(reach - reach % page_size, published, -page_size)
        return next((end for end in ends if self._keeps(end)), 0)

    def _keeps(self, end: int) -> bool:
        return all(grid.by_reference or grid.keeps(end) for grid in self._grids)


def common_prefix(a: Tokens, b: Tokens) -> int:
    """Length of the longest common prefix."""
    shared = min(len(a), len(b))
    if shared == 0 or a[0] != b[0]:
        return 0
    differ = a[:shared] != b[:shared]
    first = int(np.argmax(differ))
    return first if differ[first] else shared

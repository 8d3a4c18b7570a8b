"""Prefixes that requests compute right now, and who should wait for them. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from transom.kv.cache import Namespace
from transom.kv.page_rules import PageRule
from transom.values import Tokens


class Publisher(NamedTuple):
    """A request with a row, as one who shares its prefix sees it: known tokens, `computed` of them done.

    A tuple, as a plan may look at hundreds.
    """

    namespace: Namespace
    tokens: Tokens
    computed: int


class Promises:
    """Owns `publishers`, to which others may be added. Mutable, lives no longer than a plan."""

    __slots__ = ("_gain_min", "_rules", "publishers")

    def __init__(self, rules: Sequence[PageRule], gain_min: int) -> None:
        """Who waits must gain at least `gain_min` tokens."""
        self._rules = tuple(rules)
        self._gain_min = gain_min
        self.publishers: list[Publisher] = []

    def is_promised(self, namespace: Namespace, tokens: Tokens, *, cached: int) -> bool:
        """Whether somebody will publish enough of `tokens` beyond `cached`."""
        return any(
            publisher.namespace == namespace and self._gain(publisher, tokens, cached) >= self._gain_min
            for publisher in self.publishers
        )

    def _gain(self, publisher: Publisher, tokens: Tokens, cached: int) -> int:
        """Tokens beyond `cached`; 0 when they are published already, or never will be.

        published          reach    publishable
        ----------|--------------|==========|---  publisher's tokens
        """
        _, known, computed = publisher
        page_size = self._rules[0].page_size
        published = computed - computed % page_size
        publishable = len(known) - len(known) % page_size
        if published == publishable or published >= len(tokens) or known[published] != tokens[published]:
            return 0  # most of them part here at the latest: nothing more needs to be compared
        reach = min(common_prefix(known, tokens), publishable, len(tokens) - 1)
        reach = self._last_hit(reach, published)
        return reach - cached if reach > published else 0

    def _last_hit(self, reach: int, published: int) -> int:
        """The last end up to `reach` that a hit can have: where there are states, one with a snapshot."""
        if all(rule.by_reference for rule in self._rules):
            return reach
        page_size = self._rules[0].page_size
        ends = range(reach - reach % page_size, published, -page_size)
        return next((end for end in ends if self._keeps(end)), 0)

    def _keeps(self, end: int) -> bool:
        return all(rule.by_reference or rule.keeps(end) for rule in self._rules)


def common_prefix(a: Tokens, b: Tokens) -> int:
    """Length of the longest common prefix."""
    shared = min(len(a), len(b))
    if shared == 0 or a[0] != b[0]:
        return 0
    differ = a[:shared] != b[:shared]
    first = int(np.argmax(differ))
    return first if differ[first] else shared

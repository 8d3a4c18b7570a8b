"""Eviction policies: which cached pages are evicted first (`--cache-policy`)."""

from array import array
from enum import StrEnum
from math import log2
from typing import Any, NamedTuple, Protocol

from transom.kv.numbers import Numbers

LATEST = 2**52
"""Later than every clock time, and exact as a float."""

RANK_LOWEST, RANK_UNNEEDED, RANK_NEEDED, RANK_PINNED = 0, 1, 2, 3
"""Pages that no boundary needs are evicted first; then pages that a boundary needs; then pinned pages.

RANK_LOWEST is a bound below all of them.
"""


class Price(NamedTuple):
    """The cost of evicting a candidate: `tokens` to recompute, for `bytes` (at least 1) of memory freed.

    rank     compared before the policy's priority, see RANK_UNNEEDED
    island   index of the first page that a hit at the node's end reads; pages before it are unneeded
    branched whether different requests continued differently after the node's end
    whole    whether a part of the pages is useless without the rest, so that all are evicted together
    """

    rank: int
    tokens: int
    bytes: int
    island: int = 0
    branched: bool = False
    whole: bool = False

    def without_unneeded(self, evicted: int) -> "Price":
        """The price after the last unneeded pages, `evicted` bytes, have left."""
        assert 0 <= evicted < self.bytes, (self, evicted)
        # Not `_replace`, which is slower: this runs for every node of a batch.
        return Price(RANK_NEEDED, self.tokens, self.bytes - evicted, self.island, self.branched, self.whole)


class Tallies:
    """The uses of the candidates of one queue, in columns by number. Mutable, owned by the queue.

    last_used  clock time of the last use
    base       inflation at the last use, see `LeastValuable`
    uses       number of requests that hit it; 0 before it was queued for the first time
    importance the highest priority among the requests that used it, at least 0
    ages       order of creation; both parts of a split node keep its age
    """

    __slots__ = ("ages", "base", "importance", "last_used", "uses")

    def __init__(self, numbers: Numbers[Any]) -> None:
        self.ages = numbers.ages
        self.last_used: array[int] = numbers.column("q")
        self.base: array[float] = numbers.column("d")
        self.uses: array[int] = numbers.column("I", cleared=True)
        self.importance: array[int] = numbers.column("q")

    def of(self, number: int) -> tuple[int, int, float, int, int]:
        """All tallies of one candidate, for `assign`."""
        assert 0 <= number < len(self.uses), number
        columns = (self.ages, self.last_used, self.base, self.uses, self.importance)
        age, last_used, base, uses, importance = [column[number] for column in columns]
        return int(age), int(last_used), base, int(uses), int(importance)

    def assign(self, number: int, tallies: tuple[int, int, float, int, int]) -> None:
        assert 0 <= number < len(self.uses), number
        self.ages[number], self.last_used[number], self.base[number] = tallies[:3]
        self.uses[number], self.importance[number] = tallies[3:]


class Policy(Protocol):
    """Orders the candidates of one rank."""

    @property
    def knows_boundaries(self) -> bool:
        """Whether unneeded pages are evicted first (oldest first), and the pages of a boundary as a whole."""
        ...

    def priority(self, tallies: Tallies, number: int, price: Price) -> tuple[float, float]:
        """The lowest is evicted first. At least 0. A use must not lower it, but for ties."""
        ...


class LeastRecentlyUsed:
    knows_boundaries = False

    def priority(self, tallies: Tallies, number: int, price: Price) -> tuple[float, float]:
        return (tallies.last_used[number], 0)


class LeastFrequentlyUsed:
    knows_boundaries = False

    def priority(self, tallies: Tallies, number: int, price: Price) -> tuple[float, float]:
        return (tallies.uses[number], tallies.last_used[number])


class FirstIn:
    knows_boundaries = False

    def priority(self, tallies: Tallies, number: int, price: Price) -> tuple[float, float]:
        return (tallies.ages[number], 0)


class LeastImportant:
    """By the highest priority among the requests that used the pages, then by recency."""

    knows_boundaries = False

    def priority(self, tallies: Tallies, number: int, price: Price) -> tuple[float, float]:
        return (tallies.importance[number], tallies.last_used[number])


class LeastValuable:
    """Value = estimated chance of reuse x tokens saved / bytes.

    The chance grows with the number of uses only where requests branched. Elsewhere a conversation continues
    once, so one use says nothing about the next.

    Value ages as in GreedyDual-Size-Frequency (Cherkasova, HP Labs 1998): it starts from `base`, the value of
    the last eviction at the time of the last use. Later uses start higher, so an old value is overtaken.

    Among equal values the oldest is evicted, except that candidates evicted as a whole go newest first. When
    more conversations take turns than fit, newest first still hits some of them. Oldest first evicts each one
    shortly before its turn and never hits.
    """

    knows_boundaries = True

    def priority(self, tallies: Tallies, number: int, price: Price) -> tuple[float, float]:
        # Logarithmic, and 1 for the first use: the tenth use says less about the next one than the second.
        chance = log2(1 + tallies.uses[number]) if price.branched else 1.0
        value = tallies.base[number] + chance * price.tokens / price.bytes
        last_used = tallies.last_used[number]
        return (value, LATEST - last_used if price.whole else last_used)


class CachePolicy(StrEnum):
    """Values of `--cache-policy`."""

    VALUE = "value"
    LRU = "lru"
    LFU = "lfu"
    FIFO = "fifo"
    PRIORITY = "priority"

    @property
    def policy(self) -> Policy:
        return _POLICIES[self]


_POLICIES: dict[CachePolicy, Policy] = {
    CachePolicy.VALUE: LeastValuable(),
    CachePolicy.LRU: LeastRecentlyUsed(),
    CachePolicy.LFU: LeastFrequentlyUsed(),
    CachePolicy.FIFO: FirstIn(),
    CachePolicy.PRIORITY: LeastImportant(),
}

"""Eviction policies: which cached pages are evicted first (`--cache-policy`)."""

from enum import StrEnum
from math import log2
from typing import Generic, NamedTuple, Protocol, TypeVar

Item = TypeVar("Item")

RANK_UNNEEDED, RANK_NEEDED, RANK_PINNED = 0, 1, 2
"""Pages that no boundary needs are evicted first; then pages that a boundary needs; then pinned pages."""


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


class Candidate(Generic[Item]):
    """The entry of one item, a tree node, in one eviction queue. Mutable, owned by the queue.

    queued    whether the queue may return it
    skipped   whether it is passed over, because rows read all of its pages
    last_used clock time of the last use; `created`: serial number of the first entry
    uses      number of requests that hit it
    base      inflation at the last use, see `LeastValuable`
    serial    breaks ties between equal keys; 0 before the first entry
    price     cached price, if it is still valid
    request_priority
              the highest priority among the requests that used it
    """

    __slots__ = (
        "base",
        "created",
        "item",
        "last_used",
        "price",
        "queued",
        "request_priority",
        "serial",
        "skipped",
        "uses",
    )

    def __init__(self, item: Item) -> None:
        self.item = item
        self.queued = False
        self.skipped = False
        self.last_used = self.created = self.serial = self.uses = self.request_priority = 0
        self.base = 0.0
        self.price: Price | None = None


class Policy(Protocol):
    """Orders the candidates of one rank."""

    @property
    def knows_boundaries(self) -> bool:
        """Whether unneeded pages are evicted first (oldest first), and the pages of a boundary as a whole."""
        ...

    def priority(self, candidate: Candidate[Item], price: Price) -> tuple[float, float]:
        """The lowest is evicted first. A use must not lower it, ties apart: see `eviction_queue`."""
        ...


class LeastRecentlyUsed:
    knows_boundaries = False

    def priority(self, candidate: Candidate[Item], price: Price) -> tuple[float, float]:
        return (candidate.last_used, 0)


class LeastFrequentlyUsed:
    knows_boundaries = False

    def priority(self, candidate: Candidate[Item], price: Price) -> tuple[float, float]:
        return (candidate.uses, candidate.last_used)


class FirstIn:
    knows_boundaries = False

    def priority(self, candidate: Candidate[Item], price: Price) -> tuple[float, float]:
        return (candidate.created, 0)


class LeastImportant:
    """By the highest priority among the requests that used the pages, then by recency."""

    knows_boundaries = False

    def priority(self, candidate: Candidate[Item], price: Price) -> tuple[float, float]:
        return (candidate.request_priority, candidate.last_used)


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

    def priority(self, candidate: Candidate[Item], price: Price) -> tuple[float, float]:
        # Logarithmic, and 1 for the first use: the tenth use says less about the next one than the second.
        chance = log2(1 + candidate.uses) if price.branched else 1.0
        value = candidate.base + chance * price.tokens / price.bytes
        return (value, -candidate.last_used if price.whole else candidate.last_used)


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

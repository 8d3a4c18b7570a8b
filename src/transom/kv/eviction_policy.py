"""What a cached page is worth to each eviction policy."""

from enum import StrEnum
from math import log2
from typing import Generic, NamedTuple, Protocol, TypeVar

Item = TypeVar("Item")

RANK_USELESS, RANK_USEFUL, RANK_PINNED = 0, 1, 2
"""What no live boundary needs; the rest; what a user has pinned."""


class Price(NamedTuple):
    """What giving would cost: `tokens` to compute again, for `bytes`, at least 1. Rank goes before price.

    island  the first page that the end, a boundary to be hit again, has use for
    parted  whether requests have parted at the end
    whole   whether half of it would be of no use
    """

    rank: int
    tokens: int
    bytes: int
    island: int = 0
    branched: bool = False
    whole: bool = False

    def useful(self, gone: int) -> "Price":
        """Once `gone` bytes are given, and nothing is left that no boundary needs."""
        assert 0 <= gone < self.bytes, (self, gone)
        return Price(RANK_USEFUL, self.tokens, self.bytes - gone, self.island, self.branched, self.whole)


class Candidate(Generic[Item]):
    """A place in one order. Mutable, owned by its order.

    last  when it was used; uses: by how many requests; born: when it came; base: inflation when last used
    price what giving would cost, if whoever says so has noted it here; whatever changes it makes it None
    """

    __slots__ = ("base", "born", "item", "last", "listed", "parked", "price", "priority", "serial", "uses")

    def __init__(self, item: Item) -> None:
        self.item = item
        self.listed = False
        self.parked = False
        self.last = self.born = self.serial = self.uses = self.priority = 0
        self.base = 0.0
        self.price: Price | None = None


class Policy(Protocol):
    """What a link is worth among those of equal rank; the least goes first."""

    @property
    def knows_boundaries(self) -> bool:
        """Whether what no boundary needs goes first, the oldest first, and what one needs goes as a whole."""
        ...

    def worth(self, link: Candidate[Item], price: Price) -> tuple[float, float]: ...


class LeastRecentlyUsed:
    knows_boundaries = False

    def worth(self, link: Candidate[Item], price: Price) -> tuple[float, float]:
        return (link.last, 0)


class LeastFrequentlyUsed:
    knows_boundaries = False

    def worth(self, link: Candidate[Item], price: Price) -> tuple[float, float]:
        return (link.uses, link.last)


class FirstIn:
    knows_boundaries = False

    def worth(self, link: Candidate[Item], price: Price) -> tuple[float, float]:
        return (link.born, 0)


class LeastImportant:
    """By the highest priority among the requests that used it."""

    knows_boundaries = False

    def worth(self, link: Candidate[Item], price: Price) -> tuple[float, float]:
        return (link.priority, link.last)


class LeastValuable:
    """Chance of reuse x tokens saved / bytes.

    Where requests parted, chance grows with those that passed; a turn that went on has been used, once. It
    fades as others give: value starts from that of the last that gave when it was used
    (GreedyDual-Size-Frequency: Cherkasova, HP Labs 1998). Among equals that go as a whole the newest goes:
    where more conversations take turns than there is room for, some are found each time; by age, none.
    """

    knows_boundaries = True

    def worth(self, link: Candidate[Item], price: Price) -> tuple[float, float]:
        chance = log2(1 + link.uses) if price.branched else 1.0
        return (link.base + chance * price.tokens / price.bytes, -link.last if price.whole else link.last)


class CachePolicy(StrEnum):
    """`--cache-policy`."""

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

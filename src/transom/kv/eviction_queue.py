"""In which order nodes give their pages: one queue, and policies that say what a place in it is worth.

Keys are compared as tuples: first what is given before anything else (rank), then what the policy says. The
queue holds lower bounds: whoever comes up with an outdated key goes back with the right one, so being used
costs no operation on it. Whatever can lower a key pushes it anew.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import count
from math import inf
from operator import itemgetter
from typing import Generic

from transom.kv.eviction_policy import RANK_USEFUL, RANK_USELESS, Candidate, Item, Policy, Price
from transom.kv.journal import Journal

Key = tuple[int, float, float]


LEAST: Key = (-1, 0.0, 0.0)
"""Before any."""

USEFUL: Key = (RANK_USEFUL, -inf, -inf)
"""After all that is useless, before the rest."""


Entry = tuple[int, float, float, int, int, Candidate[Item]]
"""A key, a serial number, a number of its own, so that links are never compared."""


class Clock:
    """Owns what all orders of a cache count with. Mutable: `now` in uses, `inflation` in value."""

    __slots__ = ("_journal", "inflation", "now", "serial")

    def __init__(self, journal: Journal) -> None:
        self.now = 0
        self.serial = 0
        self.inflation = 0.0
        self._journal = journal

    def tick(self) -> int:
        self._journal.log(self._untick)
        self.now += 1
        return self.now

    def draw(self) -> int:
        """A serial number, to tell equals apart. Not logged: who draws it logs what calls `undraw`."""
        self.serial += 1
        return self.serial

    def undraw(self) -> None:
        assert self.serial > 0, self.serial
        self.serial -= 1

    def inflate(self, value: float) -> None:
        if value > self.inflation:
            self._journal.assign(self, "inflation", value)

    def _untick(self) -> None:
        assert self.now > 0, self.now
        self.now -= 1


class EvictionQueue(Generic[Item]):
    """Owns the queue of one order. Mutable; undone exactly, but for outdated entries.

    What is useless mostly comes in the order of its use: an entry greater than the last such needs no heap.
    """

    __slots__ = (
        "_ascending",
        "_heap",
        "_journal",
        "_listed",
        "_parked",
        "_policy",
        "_price",
        "_pushed",
        "asked",
        "clock",
    )

    def __init__(
        self, policy: Policy, price: Callable[[Item], Price], clock: Clock, journal: Journal
    ) -> None:
        self.clock = clock
        self.asked: Key = (0, 0.0, 0.0)
        """The key that the last victim had."""
        self._policy = policy
        self._price = price
        self._ascending: deque[Entry[Item]] = deque()
        self._heap: list[Entry[Item]] = []
        self._pushed = count()
        self._listed = 0
        self._parked: dict[int, Candidate[Item]] = {}
        self._journal = journal

    # ---------------------------------------------------------------- queries

    def key(self, link: Candidate[Item]) -> Key:
        """The place of `link`, whether listed or not."""
        price = link.price or self._price(link.item)
        rank = price.rank
        if rank < RANK_USEFUL:
            if self._policy.knows_boundaries:
                return (rank, link.last, 0.0)
            rank = RANK_USEFUL
        return (rank, *self._policy.worth(link, price))

    def useless(self, until: Key) -> Iterator[tuple[Item, Price]]:
        """The next victims below `until`, in turn: as far as nobody needs what they have, and who they are is
        known without putting the queue right.
        """
        heap, before = self._heap, None
        for entry in self._ascending:
            link, price = entry[-1], entry[-1].price
            if price is None or price.rank != RANK_USELESS or link.last != entry[1]:
                return
            if link.parked or not link.listed or not entry < until or (heap and heap[0] < entry):
                return
            if link is not before:
                yield link.item, price
            before = link

    def items(self) -> list[Item]:
        """All that are listed, the next victim first, those passed over last. Slow."""
        links = {id(link): link for link in self._queued() if link.listed}
        links.update({id(link): link for link in self._parked.values()})
        found = sorted(links.values(), key=lambda link: (link.parked, self.key(link), link.serial))
        assert len(found) == self._listed, (len(found), self._listed)
        return [link.item for link in found]

    # ---------------------------------------------------------------- transitions

    def enter(self, link: Candidate[Item]) -> None:
        """`link` has something to give; it was not listed."""
        assert not link.listed, link.item
        if link.serial:
            self._journal.log(self._withdraw, link)
        else:
            self._journal.log(self._unborn, link, (link.last, link.base, link.uses))
            clock = self.clock
            link.serial = link.born = clock.draw()
            link.last, link.base, link.uses = clock.now, clock.inflation, 1
        link.listed = True
        self._listed += 1
        self._push(link)

    def leave(self, link: Candidate[Item]) -> None:
        assert link.listed, link.item
        self._journal.log(self._reenter, link, link.parked)
        self._withdraw(link)

    def use(self, links: Sequence[Candidate[Item]], *, hit: bool, priority: int) -> None:
        """`links` were read just now, by a request that begins or one that goes on."""
        now, base = self.clock.now, self.clock.inflation
        before = [(link, link.last, link.base, link.uses, link.priority) for link in links]
        self._journal.log(self._restore, before)
        for link in links:
            link.last, link.base = now, base
            link.uses += hit
            if priority > link.priority:
                link.priority = priority

    def split(self, upper: Candidate[Item], lower: Candidate[Item]) -> None:
        """`upper`, new, takes the front of `lower` and is as much used. It is not listed yet."""
        assert not upper.listed and not upper.serial, upper.item
        self._journal.log(self.clock.undraw)
        upper.last, upper.base, upper.uses = lower.last, lower.base, lower.uses
        upper.born, upper.priority, upper.serial = lower.born, lower.priority, self.clock.draw()

    def refresh(self, link: Candidate[Item]) -> None:
        """The price of `link` may have fallen."""
        assert link.listed, link.item
        if not link.parked:
            self._push(link)

    def bound(self, link: Candidate[Item]) -> None:
        """The key may be anything now and the price not known yet: the lowest bound is right."""
        if link.listed and not link.parked:
            self._insert(LEAST, link)

    def park(self, link: Candidate[Item]) -> None:
        """All that `link` has is being read: nobody asks it again until `unpark`."""
        assert link.listed and not link.parked, link.item
        self._journal.log(self._unpark, link)
        link.parked = True
        self._parked[id(link)] = link

    def unpark(self) -> None:
        """Something is no longer read: all are asked again."""
        if not self._parked:
            return
        for link in list(self._parked.values()):
            self._journal.log(self._park, link)
            self._unpark(link)
        assert not self._parked, self._parked

    def victim(self) -> Candidate[Item] | None:
        """The next to give; None if there is none but those passed over."""
        ascending, heap = self._ascending, self._heap
        while ascending or heap:
            in_heap = heap[0] < ascending[0] if heap and ascending else not ascending
            entry = heap[0] if in_heap else ascending[0]
            link = entry[-1]
            is_asked = link.listed and not link.parked
            now = self.key(link) if is_asked else LEAST
            if is_asked and now <= entry[:3]:
                self.asked = now
                return link
            if in_heap:
                heappop(heap)
            else:
                ascending.popleft()
            if is_asked:
                self._insert(now, link)
        return None

    # ---------------------------------------------------------------- primitives

    def _push(self, link: Candidate[Item]) -> None:
        if len(self._heap) + len(self._ascending) > 4 * self._listed + 64:
            asked = {id(link): link for link in self._queued() if link.listed and not link.parked}
            self._heap.clear()
            self._ascending.clear()
            for key, one in sorted([(self.key(one), one) for one in asked.values()], key=itemgetter(0)):
                self._insert(key, one)
        self._insert(self.key(link), link)

    def _insert(self, key: Key, link: Candidate[Item]) -> None:
        entry = (*key, link.serial, next(self._pushed), link)
        ascending = self._ascending
        if key[0] == RANK_USELESS and (not ascending or entry > ascending[-1]):
            ascending.append(entry)
        else:
            heappush(self._heap, entry)

    def _queued(self) -> list[Candidate[Item]]:
        """In no order, some more than once."""
        return [entry[-1] for entry in (*self._ascending, *self._heap)]

    def _withdraw(self, link: Candidate[Item]) -> None:
        assert self._listed > 0, link.item
        link.listed = False
        link.parked = False
        self._parked.pop(id(link), None)
        self._listed -= 1

    def _unborn(self, link: Candidate[Item], before: tuple[int, float, int]) -> None:
        """It was never listed: its serial number is another's to have."""
        self._withdraw(link)
        self.clock.undraw()
        link.serial = link.born = 0
        link.last, link.base, link.uses = before

    def _reenter(self, link: Candidate[Item], parked: bool) -> None:
        assert not link.listed, link.item
        link.listed = True
        self._listed += 1
        if parked:
            self._park(link)
        self.bound(link)

    def _restore(self, before: list[tuple[Candidate[Item], int, float, int, int]]) -> None:
        for link, last, base, uses, priority in before:
            link.last, link.base, link.uses, link.priority = last, base, uses, priority
            self.bound(link)

    def _park(self, link: Candidate[Item]) -> None:
        assert link.listed and not link.parked, link.item
        link.parked = True
        self._parked[id(link)] = link

    def _unpark(self, link: Candidate[Item]) -> None:
        assert link.parked, link.item
        link.parked = False
        del self._parked[id(link)]
        self.bound(link)

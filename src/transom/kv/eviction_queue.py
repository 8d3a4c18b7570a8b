"""The eviction queue: which tree node loses pages next.

One queue orders the candidates of one component, by key, lowest first. A key is (rank, *policy priority).

The queue is lazy. It holds entries, and a candidate may have several. The invariant: every queued candidate
that is not skipped has at least one entry with a key at or below the candidate's present key. So the first
entry bounds all keys from below, and everything else follows:

- A use raises keys, so it leaves the queue alone. `victim` compares the first entry with the candidate's
  present key and, if the key has risen, reinserts the candidate with it. Only candidates that reach the front
  cost something; the pages that are in use all the time do not. (One exception: among equal values
  `LeastValuable` evicts the newest first, so a use may lower the tie-break. The candidate then comes up at
  its old place among its equals, which is good enough.)
- A change that may lower a key inserts another entry: `requeue` with the new key, `invalidate` with the
  lowest key of all when the new one cannot be computed yet.
- Removing and skipping leave the entries where they are. `victim` drops them when they reach the front. When
  entries outnumber candidates four to one, the queue is rebuilt.
- A rollback restores candidates, not entries, and inserts lower bounds. The victims are the same as if the
  transaction had never run, because they depend on present keys only, but for the ties just mentioned.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import chain, count
from math import inf
from operator import itemgetter
from typing import Generic

from transom.kv.eviction_policy import RANK_NEEDED, RANK_UNNEEDED, Candidate, Item, Policy, Price
from transom.kv.journal import Journal

Key = tuple[int, float, float]
"""Rank, then the policy's priority."""

LOWEST: Key = (-1, 0.0, 0.0)
"""Below every key."""

LOWEST_NEEDED: Key = (RANK_NEEDED, -inf, -inf)
"""Above every key of rank RANK_UNNEEDED, below every other key."""


Entry = tuple[int, float, float, int, int, Candidate[Item]]
"""A key, the candidate's serial number, the entry's own number, the candidate.

Flat, because comparing nested tuples takes longer. The numbers are unique, so candidates are never compared.
"""


class Clock:
    """Owns the counters that all queues of a cache share. Mutable.

    now       time in uses
    inflation value of the most valuable eviction so far, see `LeastValuable`
    serial    last serial number
    """

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

    def next_serial(self) -> int:
        """Not logged: the caller logs an inverse that calls `return_serial`, and saves an entry."""
        self.serial += 1
        return self.serial

    def return_serial(self) -> None:
        assert self.serial > 0, self.serial
        self.serial -= 1

    def inflate(self, value: float) -> None:
        if value > self.inflation:
            self._journal.assign(self, "inflation", value)

    def _untick(self) -> None:
        assert self.now > 0, self.now
        self.now -= 1


class EvictionQueue(Generic[Item]):
    """Owns the entries of one queue. Mutable. A rollback restores the order of candidates exactly.

    Entries lie in two places; the first entry is the lower of the two first ones. `_ascending` takes
    unneeded pages. Their key is the time of use, so they mostly arrive in ascending order. Appending is O(1)
    there, and `unneeded` can read several victims in turn, which a heap does not allow. `_heap` has the rest.
    """

    __slots__ = (
        "_ascending",
        "_entry_numbers",
        "_heap",
        "_journal",
        "_policy",
        "_price",
        "_queued_count",
        "_skipped",
        "clock",
        "victim_key",
    )

    def __init__(
        self, policy: Policy, price: Callable[[Item], Price], clock: Clock, journal: Journal
    ) -> None:
        self.clock = clock
        self.victim_key: Key = (0, 0.0, 0.0)
        """The key that the last victim had."""
        self._policy = policy
        self._price = price
        self._ascending: deque[Entry[Item]] = deque()
        self._heap: list[Entry[Item]] = []
        self._entry_numbers = count()
        """Never taken back by a rollback: an outdated entry keeps its number, so numbers stay unique."""
        self._queued_count = 0
        self._skipped: dict[int, Candidate[Item]] = {}
        """By `id`."""
        self._journal = journal

    # ---------------------------------------------------------------- queries

    def key(self, candidate: Candidate[Item]) -> Key:
        """The present key of `candidate`, whether queued or not."""
        price = candidate.price or self._price(candidate.item)
        rank = price.rank
        if rank < RANK_NEEDED:
            if self._policy.knows_boundaries:
                # Unneeded pages have no value to compare: the oldest are evicted first.
                return (rank, candidate.last_used, 0.0)
            # Policies that do not know boundaries treat all pages alike.
            rank = RANK_NEEDED
        return (rank, *self._policy.priority(candidate, price))

    def unneeded(self, until: Key) -> Iterator[tuple[Item, Price]]:
        """The next victims in turn, below `until`, as long as their pages are unneeded. Changes nothing.

        Stops at the first entry that may be outdated, or that the heap's first entry may precede: to go
        further, entries would have to be reinserted, which is up to `victim`.
        """
        heap, before = self._heap, None
        for entry in self._ascending:
            candidate, price = entry[-1], entry[-1].price
            # `entry[1]` is the time of use at which the entry was made.
            if price is None or price.rank != RANK_UNNEEDED or candidate.last_used != entry[1]:
                return
            if candidate.skipped or not candidate.queued or not entry < until or (heap and heap[0] < entry):
                return
            # Two entries of one candidate have equal keys here, so they lie side by side.
            if candidate is not before:
                yield candidate.item, price
            before = candidate

    def items(self) -> list[Item]:
        """All queued items: the next victim first, skipped ones last. O(n log n), for inspection."""
        candidates = {id(candidate): candidate for candidate in self._entries() if candidate.queued}
        candidates.update({id(candidate): candidate for candidate in self._skipped.values()})
        ordered = sorted(candidates.values(), key=lambda c: (c.skipped, self.key(c), c.serial))
        assert len(ordered) == self._queued_count, (len(ordered), self._queued_count)
        return [candidate.item for candidate in ordered]

    @property
    def queued(self) -> int:
        """The number of queued candidates."""
        return self._queued_count

    def entered(self) -> Iterator[Candidate[Item]]:
        """The candidates of all entries, skipped ones too. Some are there twice or no longer queued."""
        for entry in chain(self._ascending, self._heap):
            yield entry[-1]
        yield from self._skipped.values()

    # ---------------------------------------------------------------- transitions

    def add(self, candidate: Candidate[Item]) -> None:
        """Queues `candidate`, which has pages to evict and was not queued."""
        assert not candidate.queued, candidate.item
        if candidate.serial:  # it was queued before, and keeps its age
            self._journal.log(self._withdraw, candidate)
        else:
            before = (candidate.last_used, candidate.base, candidate.uses)
            self._journal.log(self._undo_first_add, candidate, before)
            clock = self.clock
            candidate.serial = candidate.created = clock.next_serial()
            # The request that publishes the pages is their first use.
            candidate.last_used, candidate.base, candidate.uses = clock.now, clock.inflation, 1
        candidate.queued = True
        self._queued_count += 1
        self._enqueue(candidate)

    def remove(self, candidate: Candidate[Item]) -> None:
        """Takes `candidate` out. Its entries stay until they reach the front: a heap cannot find them."""
        assert candidate.queued, candidate.item
        self._journal.log(self._undo_remove, candidate, candidate.skipped)
        self._withdraw(candidate)

    def use(self, candidates: Sequence[Candidate[Item]], *, hit: bool, priority: int) -> None:
        """A request of `priority` has read `candidates` now; `hit` if it was admitted on them.

        Keys rise, so the queue is not touched.
        """
        now, base = self.clock.now, self.clock.inflation
        before = [(c, c.last_used, c.base, c.uses, c.request_priority) for c in candidates]
        self._journal.log(self._undo_use, before)
        for candidate in candidates:
            candidate.last_used, candidate.base = now, base
            candidate.uses += hit
            if priority > candidate.request_priority:
                candidate.request_priority = priority

    def split(self, upper: Candidate[Item], lower: Candidate[Item]) -> None:
        """`upper`, new, takes the front pages of `lower`, with the same history. It is not queued yet."""
        assert not upper.queued and not upper.serial, upper.item
        self._journal.log(self.clock.return_serial)
        upper.last_used, upper.base, upper.uses = lower.last_used, lower.base, lower.uses
        upper.created, upper.request_priority = lower.created, lower.request_priority
        upper.serial = self.clock.next_serial()

    def requeue(self, candidate: Candidate[Item]) -> None:
        """The price of `candidate` may have fallen: inserts an entry with its present key."""
        assert candidate.queued, candidate.item
        if not candidate.skipped:
            self._enqueue(candidate)

    def invalidate(self, candidate: Candidate[Item]) -> None:
        """The key may be anything now, and cannot be computed yet: the lowest key is a valid bound."""
        if candidate.queued and not candidate.skipped:
            self._insert(LOWEST, candidate)

    def skip(self, candidate: Candidate[Item]) -> None:
        """Rows read all pages of `candidate`: `victim` passes it over until `end_skips`.

        Without this, every eviction would look again at each page that a running request reads.
        """
        assert candidate.queued and not candidate.skipped, candidate.item
        self._journal.log(self._unmark_skipped, candidate)
        candidate.skipped = True
        self._skipped[id(candidate)] = candidate

    def end_skips(self) -> None:
        """References have ended: skipped candidates may be victims again."""
        if not self._skipped:
            return
        for candidate in list(self._skipped.values()):
            self._journal.log(self._mark_skipped, candidate)
            self._unmark_skipped(candidate)
        assert not self._skipped, self._skipped

    def victim(self) -> Candidate[Item] | None:
        """The candidate with the lowest key, which stays queued, unless all candidates are skipped.

        Sets `victim_key`. Logs nothing: entries change, but not the order of candidates.
        """
        ascending, heap = self._ascending, self._heap
        while ascending or heap:
            in_heap = heap[0] < ascending[0] if heap and ascending else not ascending
            entry = heap[0] if in_heap else ascending[0]
            candidate = entry[-1]
            is_live = candidate.queued and not candidate.skipped
            now = self.key(candidate) if is_live else LOWEST
            # The first entry bounds all keys from below, so a candidate at its own bound has the lowest key.
            if is_live and now <= entry[:3]:
                self.victim_key = now
                return candidate
            if in_heap:
                heappop(heap)
            else:
                ascending.popleft()
            if is_live:  # its key has risen
                self._insert(now, candidate)
        return None

    # ---------------------------------------------------------------- primitives

    def _enqueue(self, candidate: Candidate[Item]) -> None:
        """Inserts an entry with the present key. Rebuilds the queue first if most entries are outdated."""
        # Each rebuild is paid for by the entries inserted since the last one, so O(log n) per entry. The 64
        # keep a queue that is nearly empty from being rebuilt at every insertion.
        if len(self._heap) + len(self._ascending) > 4 * self._queued_count + 64:
            live = {id(c): c for c in self._entries() if c.queued and not c.skipped}
            self._heap.clear()
            self._ascending.clear()
            # In ascending order, so that unneeded candidates land in `_ascending`.
            for key, one in sorted([(self.key(one), one) for one in live.values()], key=itemgetter(0)):
                self._insert(key, one)
        self._insert(self.key(candidate), candidate)

    def _insert(self, key: Key, candidate: Candidate[Item]) -> None:
        entry = (*key, candidate.serial, next(self._entry_numbers), candidate)
        ascending = self._ascending
        if key[0] == RANK_UNNEEDED and (not ascending or entry > ascending[-1]):
            ascending.append(entry)
        else:
            heappush(self._heap, entry)

    def _entries(self) -> list[Candidate[Item]]:
        """The candidates of all entries, in no order, some more than once."""
        return [entry[-1] for entry in (*self._ascending, *self._heap)]

    def _withdraw(self, candidate: Candidate[Item]) -> None:
        assert self._queued_count > 0, candidate.item
        candidate.queued = False
        candidate.skipped = False
        self._skipped.pop(id(candidate), None)
        self._queued_count -= 1

    def _undo_first_add(self, candidate: Candidate[Item], before: tuple[int, float, int]) -> None:
        """As if it had never been queued: the next candidate gets its serial number."""
        self._withdraw(candidate)
        self.clock.return_serial()
        # Serial numbers break ties, so a rolled back transaction must not use any up.
        candidate.serial = candidate.created = 0
        candidate.last_used, candidate.base, candidate.uses = before

    def _undo_remove(self, candidate: Candidate[Item], skipped: bool) -> None:
        assert not candidate.queued, candidate.item
        candidate.queued = True
        self._queued_count += 1
        if skipped:
            self._mark_skipped(candidate)
        self.invalidate(candidate)

    def _undo_use(self, before: list[tuple[Candidate[Item], int, float, int, int]]) -> None:
        for candidate, last_used, base, uses, priority in before:
            candidate.last_used, candidate.base = last_used, base
            candidate.uses, candidate.request_priority = uses, priority
            self.invalidate(candidate)

    def _mark_skipped(self, candidate: Candidate[Item]) -> None:
        assert candidate.queued and not candidate.skipped, candidate.item
        candidate.skipped = True
        self._skipped[id(candidate)] = candidate

    def _unmark_skipped(self, candidate: Candidate[Item]) -> None:
        assert candidate.skipped, candidate.item
        candidate.skipped = False
        del self._skipped[id(candidate)]
        # Entries may have been dropped while it was skipped, and its key may have changed.
        self.invalidate(candidate)

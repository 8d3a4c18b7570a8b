"""The eviction queue: which tree node loses pages next.

One queue orders the candidates of one component, by key, lowest first. A key is (rank, *policy priority).

The queue is lazy. A candidate that is queued and not skipped has one entry that counts, the latest one, and
earlier ones that are dead. The invariant: the key of the entry that counts is at or below the candidate's
present key. So the first such entry bounds all keys from below, and everything else follows:

- A use raises keys, so it leaves the queue alone. `victim` compares the first entry with the candidate's
  present key and, if the key has risen, reinserts the candidate with it. Only candidates that reach the front
  cost something; the pages that are in use all the time do not. (One exception: among equal values
  `LeastValuable` evicts the newest first, so a use may lower the tie-break. The candidate then comes up at
  its old place among its equals, which is good enough.)
- A change that may lower a key inserts another entry: `requeue` with the new key, `invalidate` with the
  lowest key of all when the new one cannot be computed yet.
- Removing and skipping leave the entries where they are, dead. `victim` drops them when they reach the front;
  where they outnumber the candidates, they are swept, some at a time.
- A rollback restores candidates, not entries, and inserts lower bounds. The victims are the same as if the
  transaction had never run, because they depend on present keys only, but for the ties just mentioned.
"""

from array import array
from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import Generic

from transom.kv.entries import Entries, Key, packed
from transom.kv.eviction_policy import RANK_LOWEST, RANK_NEEDED, RANK_UNNEEDED, Policy, Price, Tallies
from transom.kv.journal import Journal
from transom.kv.numbers import Item, Numbers

LOWEST: Key = (RANK_LOWEST, 0.0, 0.0)
"""Below every key."""

LOWEST_NEEDED: Key = (RANK_NEEDED, -inf, -inf)
"""Above every key of rank RANK_UNNEEDED, below every other key."""

PRICES_KEPT = 256
SWEEP_EVERY = 1024
"""Insertions."""


class Clock:
    """Owns the counters that all queues of a cache share. Mutable.

    now       time in uses
    inflation value of the most valuable eviction so far, see `LeastValuable`
    """

    __slots__ = ("_journal", "inflation", "now")

    def __init__(self, journal: Journal) -> None:
        self.now = 0
        self.inflation = 0.0
        self._journal = journal

    def tick(self) -> int:
        self._journal.log(self._untick)
        self.now += 1
        return self.now

    def inflate(self, value: float) -> None:
        if value > self.inflation:
            self._journal.assign(self, "inflation", value)

    def _untick(self) -> None:
        assert self.now > 0, self.now
        self.now -= 1


class EvictionQueue(Generic[Item]):
    """Owns the entries and the tallies of one queue. Mutable. A rollback restores the order exactly.

    Candidates are known by their numbers, in columns: with an object for each, a million tree nodes would
    take a gigabyte.
    """

    __slots__ = (
        "_count",
        "_entries",
        "_items",
        "_journal",
        "_policy",
        "_price",
        "_skipped",
        "_version",
        "_versions",
        "clock",
        "exact",
        "prices",
        "queued",
        "tallies",
        "victim_key",
    )

    def __init__(
        self,
        policy: Policy,
        price: Callable[[Item], Price],
        clock: Clock,
        numbers: Numbers[Item],
        journal: Journal,
    ) -> None:
        self.clock = clock
        self.victim_key: Key = (0, 0.0, 0.0)
        """The key that the last victim had."""
        self.tallies = Tallies(numbers)
        self._policy = policy
        self._price = price
        self.prices: dict[int, Price] = {}
        """By number, for a few candidates: most are priced twice in a row, at a change and at an eviction."""
        self._items = numbers.items
        self._entries = Entries()
        self._version = 0
        """Never taken back by a rollback, so that a dead entry stays dead."""
        self._versions: array[int] = numbers.column("Q")
        """By number: the version of the entry that counts, 0 if there is none."""
        self.exact: array[int] = numbers.column("B")
        """By number: whether the entry that counts is known to have the present key, and not a lower one."""
        self.queued: array[int] = numbers.column("B")
        """By number: whether it is queued, skipped or not. For other modules to read."""
        self._count = 0
        self._skipped: set[int] = set()
        self._journal = journal

    # ---------------------------------------------------------------- queries

    def price_of(self, number: int) -> Price:
        item = self._items[number]
        assert item is not None, number
        return self.prices.get(number) or self._price(item)

    def key(self, number: int) -> Key:
        """The present key of a candidate, whether queued or not."""
        price = self.prices.get(number) or self._price(self._items[number])  # type: ignore[arg-type]
        rank = price.rank
        if rank < RANK_NEEDED:
            if self._policy.knows_boundaries:
                # Unneeded pages have no value to compare: the oldest are evicted first.
                return (rank, self.tallies.last_used[number], 0.0)
            # Policies that do not know boundaries treat all pages alike.
            rank = RANK_NEEDED
        return (rank, *self._policy.priority(self.tallies, number, price))

    def unneeded(self, until: Key) -> Iterator[tuple[Item, Price]]:
        """The next victims in turn, below `until`, as long as their pages are unneeded. Changes nothing.

        Stops at the first entry that may be outdated, or that an entry from elsewhere may precede: to go
        further, entries would have to be reinserted, which is up to `victim`.
        """
        for rank, used, _, _, number, version in self._entries.leading(until):
            if self._versions[number] != version:
                continue  # dead
            if rank != RANK_UNNEEDED or self.tallies.last_used[number] != used:
                return
            price, item = self.price_of(number), self._items[number]
            if price.rank != RANK_UNNEEDED or item is None:
                return
            yield item, price

    def items(self) -> list[Item]:
        """All queued items: the next victim first, skipped ones last. O(n log n), for inspection."""
        numbers = [number for number, version in enumerate(self._versions) if version]
        assert len(numbers) + len(self._skipped) == self._count, (len(numbers), self._count)

        def order(number: int) -> tuple[bool, Key, int, int]:
            return number in self._skipped, self.key(number), self.tallies.ages[number], number

        ordered = [self._items[number] for number in sorted([*numbers, *self._skipped], key=order)]
        return [item for item in ordered if item is not None]

    def __len__(self) -> int:
        """The number of queued candidates."""
        return self._count

    def entered(self) -> Iterator[Sequence[int]]:
        """The candidates that have an entry that counts, or are skipped; some at a time."""
        yield from self._entries.live(self._versions)
        yield sorted(self._skipped)

    # ---------------------------------------------------------------- transitions

    def remember(self, number: int, price: Price) -> None:
        """`price` is valid until the candidate changes: then it leaves `prices`, and `exact` becomes 0."""
        assert self._items[number] is not None, number
        if len(self.prices) >= PRICES_KEPT:
            self.prices.clear()
        self.prices[number] = price

    def add(self, number: int) -> None:
        """Queues a candidate that has pages to evict and was not queued."""
        assert not self.queued[number], number
        tallies = self.tallies
        if tallies.uses[number]:  # it was queued before, and keeps its age
            self._journal.log(self._withdraw, number)
        else:
            before = (tallies.last_used[number], tallies.base[number], tallies.importance[number])
            self._journal.log(self._undo_first_add, number, before)
            # The request that publishes the pages is their first use.
            tallies.last_used[number], tallies.base[number] = self.clock.now, self.clock.inflation
            tallies.uses[number], tallies.importance[number] = 1, 0
        self._count += 1
        self.queued[number] = 1
        self._insert(self.key(number), number)

    def remove(self, number: int) -> None:
        """Takes a candidate out. Its entries stay until they reach the front."""
        assert self.queued[number], number
        if self._versions[number]:
            self._journal.log(self._undo_remove, number)
        else:
            self._journal.log(self._undo_remove_skipped, number)
        self._withdraw(number)

    def use(self, numbers: Sequence[int], *, hit: bool, priority: int) -> None:
        """A request of `priority` has read candidates now; `hit` if it was admitted on them.

        Keys rise, so the queue is not touched.
        """
        tallies, now, base, exact = self.tallies, self.clock.now, self.clock.inflation, self.exact
        last_used, bases, uses, importance = (
            tallies.last_used,
            tallies.base,
            tallies.uses,
            tallies.importance,
        )
        before = [(n, last_used[n], bases[n], uses[n], importance[n]) for n in numbers]
        self._journal.log(self._undo_use, before)
        for number in numbers:
            last_used[number], bases[number], exact[number] = now, base, 0
            if hit:
                uses[number] += 1
            if priority > importance[number]:
                importance[number] = priority

    def split(self, upper: int, lower: int) -> None:
        """`upper`, new, takes the front pages of `lower`, with the same history. It is not queued yet."""
        assert not self.queued[upper], upper
        self._journal.log(self.tallies.assign, upper, self.tallies.of(upper))
        self.tallies.assign(upper, self.tallies.of(lower))

    def requeue(self, number: int) -> None:
        """The price of a candidate may have fallen: inserts an entry with its present key."""
        assert self.queued[number], number
        if self._versions[number]:
            self._insert(self.key(number), number)

    def invalidate(self, number: int) -> None:
        """The key may be anything now, and cannot be computed yet: the lowest key is a valid bound."""
        if self._versions[number]:
            self._insert(LOWEST, number)

    def skip(self, number: int) -> None:
        """Rows read all pages of a candidate: `victim` passes it over until `end_skips`.

        Without this, every eviction would look again at each page that a running request reads.
        """
        assert self._versions[number], number
        self._journal.log(self._unmark_skipped, number)
        self._mark_skipped(number)

    def end_skips(self) -> None:
        """References have ended: skipped candidates may be victims again."""
        for number in sorted(self._skipped):
            self._journal.log(self._mark_skipped, number)
            self._unmark_skipped(number)

    def victim(self) -> int | None:
        """The candidate with the lowest key, which stays queued, unless all candidates are skipped.

        Sets `victim_key`. Logs nothing: entries change, but not the order of candidates.
        """
        entries, versions, exact = self._entries, self._versions, self.exact
        while (first := entries.first(versions)) is not None:
            bound, number = first[:3], first[4]
            # The first entry bounds all keys from below, so a candidate at its own bound has the lowest key.
            now = bound if exact[number] else self.key(number)
            if now <= bound:
                self.victim_key = now
                return number
            entries.pop()
            self._insert(now, number)  # its key has risen
        return None

    # ---------------------------------------------------------------- primitives

    def _insert(self, key: Key, number: int) -> None:
        """Inserts an entry, which kills the earlier ones."""
        assert self.queued[number], number
        self._version += 1
        self._versions[number] = self._version
        # A price that is not kept is that of a pinned node: it changes when the pin ends, also by a rollback.
        self.exact[number] = key is not LOWEST and number in self.prices
        self._entries.push(packed(key, self.tallies.ages[number], number, self._version))
        # A sweep looks at four times as many entries as were inserted since the last one, so dead entries
        # never outnumber the candidates by much, and no insertion takes long.
        if not self._version % SWEEP_EVERY and len(self._entries) > 2 * self._count + SWEEP_EVERY:
            self._entries.sweep(4 * SWEEP_EVERY, self._versions)

    def _withdraw(self, number: int) -> None:
        assert self._count > 0, number
        self.queued[number] = 0
        if self._versions[number]:
            self._versions[number] = 0
        else:
            self._skipped.remove(number)
        self._count -= 1

    def _undo_first_add(self, number: int, before: tuple[int, float, int]) -> None:
        """As if it had never been queued."""
        self._withdraw(number)
        tallies = self.tallies
        tallies.last_used[number], tallies.base[number], tallies.importance[number] = before
        tallies.uses[number] = 0

    def _undo_remove(self, number: int) -> None:
        assert not self.queued[number], number
        self._count += 1
        self.queued[number] = 1
        self._insert(LOWEST, number)

    def _undo_remove_skipped(self, number: int) -> None:
        self._undo_remove(number)
        self._mark_skipped(number)

    def _undo_use(self, before: list[tuple[int, int, float, int, int]]) -> None:
        tallies = self.tallies
        for number, last_used, base, uses, importance in before:
            tallies.last_used[number], tallies.base[number] = last_used, base
            tallies.uses[number], tallies.importance[number] = uses, importance
            self.invalidate(number)

    def _mark_skipped(self, number: int) -> None:
        assert self._versions[number], number
        self._versions[number] = 0
        self._skipped.add(number)

    def _unmark_skipped(self, number: int) -> None:
        assert self.queued[number] and not self._versions[number], number
        self._skipped.remove(number)
        # Its entries are dead, and its key may have changed meanwhile.
        self._insert(LOWEST, number)

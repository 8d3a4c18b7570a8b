"""The eviction queue: the order of victims by each policy, and that a rollback restores it."""

from dataclasses import dataclass, field

import pytest

from transom.kv.eviction_policy import RANK_NEEDED, RANK_PINNED, RANK_UNNEEDED, CachePolicy, Price
from transom.kv.eviction_queue import LOWEST_NEEDED, Clock, EvictionQueue
from transom.kv.journal import Journal
from transom.kv.numbers import Numbers


@dataclass
class Thing:
    name: str
    price: Price = field(default_factory=lambda: Price(RANK_NEEDED, 10, 10))


class Shelf:
    """A queue, and the numbers of its candidates by name."""

    def __init__(self, policy: CachePolicy, names: str) -> None:
        self.journal = Journal()
        self.clock = Clock(self.journal)
        self.numbers: Numbers[Thing] = Numbers(self.journal)
        self.queue: EvictionQueue[Thing] = EvictionQueue(
            policy.policy, lambda thing: thing.price, self.clock, self.numbers, self.journal
        )
        self.candidates: dict[str, int] = {}
        with self.journal.transaction():
            for name in names:
                self.clock.tick()
                self.add(name)

    def add(self, name: str) -> None:
        self.candidates[name] = self.numbers.enter(Thing(name))
        self.queue.add(self.candidates[name])

    def price(self, name: str, price: Price) -> None:
        thing = self.numbers.items[self.candidates[name]]
        assert thing is not None
        thing.price = price

    def use(self, names: str, *, priority: int = 0) -> None:
        with self.journal.transaction():
            for name in names:
                self.clock.tick()
                self.queue.use([self.candidates[name]], hit=True, priority=priority)

    def all(self) -> str:
        return "".join(thing.name for thing in self.queue.items())

    def empty(self) -> str:
        """The names of all victims in turn."""
        names = ""
        while (candidate := self.queue.victim()) is not None:
            thing = self.numbers.items[candidate]
            assert thing is not None
            names += thing.name
            with self.journal.transaction():
                self.queue.remove(candidate)
        return names


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (CachePolicy.LRU, "cbad"),
        (CachePolicy.FIFO, "abcd"),
        (CachePolicy.LFU, "dcab"),
    ],
)
def test_each_policy_has_its_order(policy: CachePolicy, expected: str) -> None:
    shelf = Shelf(policy, "abc")
    shelf.use("bcba")
    shelf.use("a")
    shelf.use("cb"[::-1])
    shelf.use("cba")
    with shelf.journal.transaction():
        shelf.clock.tick()
        shelf.add("d")
    assert shelf.all() == expected
    assert shelf.empty() == expected


def test_priority_evicts_the_least_important_first() -> None:
    shelf = Shelf(CachePolicy.PRIORITY, "abc")
    shelf.use("a", priority=2)
    shelf.use("b", priority=1)
    assert shelf.empty() == "cba"


def test_value_is_tokens_per_byte_and_grows_with_use_where_requests_branched() -> None:
    shelf = Shelf(CachePolicy.VALUE, "abcd")
    shelf.price("a", Price(RANK_NEEDED, 10, 20))
    shelf.price("c", Price(RANK_NEEDED, 10, 10, branched=True))
    shelf.use("cd")
    assert shelf.empty() == "abdc"


def test_among_equals_the_oldest_is_evicted_and_the_newest_if_they_go_as_a_whole() -> None:
    shelf = Shelf(CachePolicy.VALUE, "abc")
    shelf.use("cab")
    assert shelf.all() == "cab"
    for name in "abc":
        shelf.price(name, Price(RANK_NEEDED, 10, 10, whole=True))
    assert shelf.all() == "bac"


def test_unneeded_pages_are_evicted_first_and_pinned_pages_last() -> None:
    shelf = Shelf(CachePolicy.VALUE, "abc")
    shelf.price("a", Price(RANK_PINNED, 1, 100))
    shelf.price("c", Price(RANK_UNNEEDED, 100, 1))
    with shelf.journal.transaction():
        shelf.queue.requeue(shelf.candidates["c"])
    assert shelf.empty() == "cba"


def test_a_price_that_is_not_kept_is_asked_again_at_the_eviction() -> None:
    """The price of a pinned node changes when the pin ends, and no call tells the queue."""
    shelf = Shelf(CachePolicy.VALUE, "ab")
    shelf.price("a", Price(RANK_UNNEEDED, 10, 10))
    with shelf.journal.transaction():
        shelf.queue.requeue(shelf.candidates["a"])
    shelf.price("a", Price(RANK_PINNED, 10, 10))
    assert shelf.empty() == "ba"


def test_value_ages_as_evictions_inflate_it() -> None:
    """Many uses long ago end up below one use now."""
    shelf = Shelf(CachePolicy.VALUE, "a")
    shelf.use("a" * 7)
    with shelf.journal.transaction():
        shelf.clock.inflate(3.0)
        shelf.add("b")
    assert shelf.empty() == "ab"


def test_a_skipped_candidate_is_a_victim_again_when_references_end() -> None:
    shelf = Shelf(CachePolicy.LRU, "ab")
    with shelf.journal.transaction():
        shelf.queue.skip(shelf.candidates["a"])
    victim = shelf.queue.victim()
    assert victim == shelf.candidates["b"]
    with shelf.journal.transaction():
        shelf.queue.end_skips()
    assert shelf.empty() == "ab"


@pytest.mark.parametrize("policy", list(CachePolicy))
def test_a_rollback_restores_the_order(policy: CachePolicy) -> None:
    shelf = Shelf(policy, "abcd")
    with shelf.journal.transaction():
        shelf.queue.skip(shelf.candidates["d"])
    before = shelf.all()
    with pytest.raises(KeyError), shelf.journal.transaction():
        shelf.clock.tick()
        shelf.queue.use([shelf.candidates["b"]], hit=True, priority=3)
        shelf.queue.remove(shelf.candidates["a"])
        shelf.queue.victim()
        shelf.clock.inflate(9.0)
        shelf.queue.end_skips()
        new = shelf.numbers.enter(Thing("new"))
        shelf.queue.split(new, shelf.candidates["c"])
        shelf.queue.add(new)
        shelf.queue.remove(shelf.candidates["d"])
        shelf.numbers.leave(shelf.candidates["d"])
        shelf.add("after")
        raise KeyError
    assert shelf.all() == before == "abcd"
    assert shelf.clock.inflation == 0
    with shelf.journal.transaction():
        shelf.queue.end_skips()
    assert shelf.empty() == "abcd"


def test_an_empty_queue_has_no_victim() -> None:
    assert Shelf(CachePolicy.VALUE, "").queue.victim() is None


@pytest.mark.parametrize("policy", CachePolicy)
def test_a_rolled_back_first_entry_leaves_no_age(policy: CachePolicy) -> None:
    """A candidate queued again later is as new as if the first entry had never been."""
    shelf = Shelf(policy, "a")
    with shelf.journal.transaction():
        with pytest.raises(KeyError), shelf.journal.transaction():
            shelf.add("b")
            raise KeyError
        shelf.clock.tick()
        shelf.add("c")
        shelf.clock.tick()
        shelf.add("b")
    assert shelf.all() == shelf.empty() == "acb"


def test_unneeded_victims_are_read_in_turn_up_to_the_first_that_may_be_outdated() -> None:
    shelf = Shelf(CachePolicy.VALUE, "abcdef")
    for name in "abcdef":
        shelf.price(name, Price(RANK_UNNEEDED, 10, 10))
    with shelf.journal.transaction():
        for name in "abcdef":
            shelf.queue.requeue(shelf.candidates[name])
    assert shelf.queue.victim() == shelf.candidates["a"]

    def unneeded(until: tuple[int, float, float] = LOWEST_NEEDED) -> str:
        return "".join(thing.name for thing, _ in shelf.queue.unneeded(until))

    assert unneeded() == "abcdef"
    assert unneeded((RANK_UNNEEDED, shelf.queue.tallies.last_used[shelf.candidates["c"]], 0.0)) == "ab"
    shelf.use("e")
    assert unneeded() == "abcd", "e was used since, so its entry is outdated"
    shelf.price("d", Price(RANK_NEEDED, 10, 10))
    assert unneeded() == "abc", "the pages of d are needed now"
    with shelf.journal.transaction():
        shelf.queue.skip(shelf.candidates["b"])
    assert unneeded() == "ac"
    with shelf.journal.transaction():
        shelf.queue.invalidate(shelf.candidates["f"])
    assert unneeded() == "", "f may come before all"

"""Orders: who is asked for pages first, by each policy, and that undoing restores every place."""

from dataclasses import dataclass, field

import pytest

from transom.kv.eviction_policy import CachePolicy, Candidate, Price
from transom.kv.eviction_queue import USEFUL, Clock, EvictionQueue
from transom.kv.journal import Journal


@dataclass
class Thing:
    name: str
    price: Price = field(default_factory=lambda: Price(1, 10, 10))


class Shelf:
    """An order, and links by name."""

    def __init__(self, policy: CachePolicy, names: str) -> None:
        self.journal = Journal()
        self.clock = Clock(self.journal)
        self.order: EvictionQueue[Thing] = EvictionQueue(
            policy.policy, lambda thing: thing.price, self.clock, self.journal
        )
        self.links = {name: Candidate(Thing(name)) for name in names}
        with self.journal.transaction():
            for link in self.links.values():
                self.clock.tick()
                self.order.enter(link)

    def use(self, names: str, *, priority: int = 0) -> None:
        with self.journal.transaction():
            for name in names:
                self.clock.tick()
                self.order.use([self.links[name]], hit=True, priority=priority)

    def all(self) -> str:
        return "".join(thing.name for thing in self.order.items())

    def empty(self) -> str:
        """The victims, one after the other."""
        gone = ""
        while (link := self.order.victim()) is not None:
            gone += link.item.name
            with self.journal.transaction():
                self.order.leave(link)
        return gone


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (CachePolicy.LRU, "cbad"),
        (CachePolicy.FIFO, "abcd"),
        (CachePolicy.LFU, "dcab"),
    ],
)
def test_each_policy_asks_in_its_order(policy: CachePolicy, expected: str) -> None:
    shelf = Shelf(policy, "abc")
    shelf.use("bcba")
    shelf.use("a")
    shelf.use("cb"[::-1])
    shelf.use("cba")
    with shelf.journal.transaction():
        shelf.links["d"] = Candidate(Thing("d"))
        shelf.clock.tick()
        shelf.order.enter(shelf.links["d"])
    assert shelf.all() == expected
    assert shelf.empty() == expected


def test_priority_asks_the_least_important_first() -> None:
    shelf = Shelf(CachePolicy.PRIORITY, "abc")
    shelf.use("a", priority=2)
    shelf.use("b", priority=1)
    assert shelf.empty() == "cba"


def test_value_is_tokens_per_byte_and_grows_with_use_where_requests_part() -> None:
    shelf = Shelf(CachePolicy.VALUE, "abcd")
    shelf.links["a"].item.price = Price(1, 10, 20)
    shelf.links["c"].item.price = Price(1, 10, 10, branched=True)
    shelf.use("cd")
    assert shelf.empty() == "abdc"


def test_of_equals_the_oldest_goes_unless_they_go_as_a_whole() -> None:
    shelf = Shelf(CachePolicy.VALUE, "abc")
    shelf.use("cab")
    assert shelf.all() == "cab"
    for link in shelf.links.values():
        link.item.price = Price(1, 10, 10, whole=True)
    assert shelf.all() == "bac"


def test_what_is_useless_goes_before_all_and_what_is_pinned_after() -> None:
    shelf = Shelf(CachePolicy.VALUE, "abc")
    shelf.links["a"].item.price = Price(2, 1, 100)
    shelf.links["c"].item.price = Price(0, 100, 1)
    with shelf.journal.transaction():
        shelf.order.refresh(shelf.links["c"])
    assert shelf.empty() == "cba"


def test_value_fades_as_others_give() -> None:
    """Used often long ago is worth less, in the end, than used once just now."""
    shelf = Shelf(CachePolicy.VALUE, "a")
    shelf.use("a" * 7)
    with shelf.journal.transaction():
        shelf.clock.inflate(3.0)
        shelf.links["b"] = Candidate(Thing("b"))
        shelf.order.enter(shelf.links["b"])
    assert shelf.empty() == "ab"


def test_who_is_passed_over_is_asked_again_when_references_end() -> None:
    shelf = Shelf(CachePolicy.LRU, "ab")
    with shelf.journal.transaction():
        shelf.order.park(shelf.links["a"])
    victim = shelf.order.victim()
    assert victim is not None and victim.item.name == "b"
    with shelf.journal.transaction():
        shelf.order.unpark()
    assert shelf.empty() == "ab"


@pytest.mark.parametrize("policy", list(CachePolicy))
def test_undoing_restores_every_place(policy: CachePolicy) -> None:
    shelf = Shelf(policy, "abcd")
    with shelf.journal.transaction():
        shelf.order.park(shelf.links["d"])
    before = shelf.all()
    with pytest.raises(KeyError), shelf.journal.transaction():
        shelf.clock.tick()
        shelf.order.use([shelf.links["b"]], hit=True, priority=3)
        shelf.order.leave(shelf.links["a"])
        shelf.order.victim()
        shelf.clock.inflate(9.0)
        shelf.order.unpark()
        new = Candidate(Thing("new"))
        shelf.order.split(new, shelf.links["c"])
        shelf.order.enter(new)
        shelf.order.leave(shelf.links["d"])
        raise KeyError
    assert shelf.all() == before == "abcd"
    assert shelf.clock.inflation == 0
    with shelf.journal.transaction():
        shelf.order.unpark()
    assert shelf.empty() == "abcd"


def test_nobody_left_is_nobody() -> None:
    assert Shelf(CachePolicy.VALUE, "").order.victim() is None


@pytest.mark.parametrize("policy", CachePolicy)
def test_a_first_listing_that_was_undone_leaves_no_age(policy: CachePolicy) -> None:
    """What was listed for the first time only then is as new as if it had never been."""
    shelf = Shelf(policy, "a")
    first, second = Candidate(Thing("b")), Candidate(Thing("c"))
    with shelf.journal.transaction() as transaction:
        savepoint = transaction.savepoint()
        shelf.order.enter(first)
        transaction.rollback(savepoint)
        shelf.clock.tick()
        shelf.order.enter(second)
        shelf.clock.tick()
        shelf.order.enter(first)
    assert second.serial < first.serial and second.last < first.last
    assert shelf.all() == shelf.empty() == "acb"


def test_who_has_what_nobody_needs_is_known_in_turn_up_to_the_first_that_is_not_sure() -> None:
    shelf = Shelf(CachePolicy.VALUE, "abcdef")
    for link in shelf.links.values():
        link.item.price = link.price = Price(0, 10, 10)
    with shelf.journal.transaction():
        for name in "abcdef":
            shelf.order.refresh(shelf.links[name])
    assert shelf.order.victim() is shelf.links["a"]

    def useless(until: tuple[int, float, float] = USEFUL) -> str:
        return "".join(thing.name for thing, _ in shelf.order.useless(until))

    assert useless() == "abcdef"
    assert useless((0, shelf.links["c"].last, 0.0)) == "ab"
    shelf.use("e")
    assert useless() == "abcd", "e was used since: the queue has it at its old place"
    shelf.links["d"].price = None
    assert useless() == "abc", "nobody knows what d has"
    with shelf.journal.transaction():
        shelf.order.park(shelf.links["b"])
    assert useless() == "a"
    with shelf.journal.transaction():
        shelf.order.bound(shelf.links["f"])
    assert useless() == "", "f may be before all"

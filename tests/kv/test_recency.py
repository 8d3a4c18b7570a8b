"""LeastRecentlyUsed: who is asked for pages first, and that undoing restores the place."""

import pytest

from transom.kv.journal import Journal
from transom.kv.recency import LeastRecentlyUsed, Link


@pytest.fixture
def journal() -> Journal:
    return Journal()


def ring(journal: Journal, names: str) -> tuple[LeastRecentlyUsed[str], dict[str, Link[str]]]:
    order = LeastRecentlyUsed(journal, "")
    links = {name: Link(name) for name in names}
    with journal.transaction():
        for link in links.values():
            order.use(link)
    return order, links


def test_the_one_not_used_for_longest_is_the_victim(journal: Journal) -> None:
    order, links = ring(journal, "abc")
    with journal.transaction():
        order.use(links["a"])
    assert (order.victim(), order.items()) == ("b", ["b", "c", "a"])


def test_a_split_leaves_both_parts_as_old_as_the_whole(journal: Journal) -> None:
    order, links = ring(journal, "abc")
    with journal.transaction():
        order.split(Link("upper"), links["b"])
    assert order.items() == ["a", "b", "upper", "c"]


def test_who_leaves_is_not_asked(journal: Journal) -> None:
    order, links = ring(journal, "abc")
    with journal.transaction():
        order.leave(links["a"])
    assert (order.items(), links["a"].listed) == (["b", "c"], False)


def test_undoing_restores_every_place(journal: Journal) -> None:
    order, links = ring(journal, "abcd")
    with pytest.raises(KeyError), journal.transaction():
        order.use(links["b"])
        order.leave(links["a"])
        order.split(Link("upper"), links["c"])
        order.use(links["a"])
        order.use(Link("new"))
        order.leave(links["d"])
        raise KeyError
    assert order.items() == ["a", "b", "c", "d"]


def test_asking_an_empty_order_is_a_bug(journal: Journal) -> None:
    with pytest.raises(AssertionError, match="nobody has pages"):
        LeastRecentlyUsed(journal, "").victim()

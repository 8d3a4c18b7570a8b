"""PagePool: every page has one owner, and a wrong hand fails at once."""

import numpy as np
import pytest

from transom.errors import NoSpace
from transom.kv.journal import Journal
from transom.kv.pool import FREE, PagePool


@pytest.fixture
def journal() -> Journal:
    return Journal()


@pytest.fixture
def pool(journal: Journal) -> PagePool:
    return PagePool("full", 6, journal)


def test_page_0_is_never_allocated(pool: PagePool, journal: Journal) -> None:
    with journal.transaction():
        assert sorted(pool.allocate(6, owner=1).tolist()) == [1, 2, 3, 4, 5, 6]


def test_allocating_more_than_is_free_allocates_nothing_and_names_the_numbers(
    pool: PagePool, journal: Journal
) -> None:
    with journal.transaction():
        pool.allocate(4, owner=1)
        with pytest.raises(NoSpace) as raised:
            pool.allocate(3, owner=1)
    assert (raised.value.component, raised.value.need, raised.value.have, pool.free) == ("full", 3, 2, 2)


@pytest.mark.parametrize("given", [[1, 1], [0], [2, 5], [5]])
def test_freeing_twice_or_for_the_wrong_owner_fails_and_changes_nothing(
    pool: PagePool, journal: Journal, given: list[int]
) -> None:
    """Pages 1 to 3 are of owner 1, page 4 of owner 2, 5 and 6 are free."""
    with journal.transaction():
        pool.allocate(3, owner=1)
        pool.allocate(1, owner=2)
        with pytest.raises(AssertionError):
            pool.free_private(given, owner=1)
        with pytest.raises(AssertionError):
            pool.free_private([4], owner=1)
        assert pool.free == 2
        pool.free_private([1], owner=1)
        with pytest.raises(AssertionError):
            pool.free_private([1], owner=1)


def test_a_page_of_the_tree_is_freed_neither_as_private_nor_while_it_is_read(
    pool: PagePool, journal: Journal
) -> None:
    with journal.transaction():
        pages = pool.allocate(2, owner=1)
        pool.adopt(pages, owner=1)
        with pytest.raises(AssertionError):
            pool.free_private(pages, owner=1)
        with pytest.raises(AssertionError):
            pool.free_evicted(pages)
        pool.unreference(pages)
        assert (pool.free, pool.tree, pool.idle, pool.available) == (4, 2, 2, 6)
        with pytest.raises(AssertionError):
            pool.unreference(pages)
        pool.free_evicted(pages)
        assert (pool.free, pool.tree, pool.idle) == (6, 0, 0)


def test_references_count_readers(pool: PagePool, journal: Journal) -> None:
    with journal.transaction():
        pages = pool.allocate(3, owner=1)
        pool.adopt(pages, owner=1)
        pool.reference(pages[:2])
        pool.unreference(pages)
        assert pool.references(pages).tolist() == [1, 1, 0]
        assert (pool.idle, pool.unreferenced(pages)) == (1, 1)
        assert [type(pool.idle), type(pool.unreferenced(pages))] == [int, int], "not numpy's: they are sent"


def test_only_pages_of_the_tree_are_referenced(pool: PagePool, journal: Journal) -> None:
    with journal.transaction():
        private = pool.allocate(2, owner=1)
        published = pool.allocate(2, owner=1)
        pool.adopt(published, owner=1)
        for pages in (private, [published[0], private[0]], pool.free_pages()[:1]):
            with pytest.raises(AssertionError):
                pool.reference(pages)
        assert pool.references(range(7)).tolist() == [0, 0, 0, 1, 1, 0, 0]


def test_a_rollback_restores_the_order_of_the_free_list(pool: PagePool, journal: Journal) -> None:
    before = pool.free_pages().tolist()
    with pytest.raises(KeyError), journal.transaction():
        pool.free_private(pool.allocate(3, owner=1)[[2, 0]], owner=1)
        pages = pool.allocate(4, owner=2)
        pool.adopt(pages[1:], owner=2)
        pool.unreference(pages[1:])
        pool.free_evicted(pages[[3, 1]])
        raise KeyError
    assert pool.free_pages().tolist() == before
    assert (pool.owners() == FREE).all() and not pool.references(np.arange(7)).any()


def test_counts_are_plain_ints_that_can_be_serialized(pool: PagePool, journal: Journal) -> None:
    """Counters leave the process as JSON, which knows no numpy."""
    with journal.transaction():
        pages = pool.allocate(3, owner=1)
        pool.adopt(pages, owner=1)
        pool.unreference(pages)
        pool.reference(pages[:2])
        pool.unreference(pages[:2])
        pool.free_evicted(pages[1:])
    counts = (pool.free, pool.tree, pool.idle, pool.untouched, pool.unreferenced(pages))
    assert {type(count) for count in counts} == {int}

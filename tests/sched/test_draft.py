import pytest
from hypothesis import given
from hypothesis import strategies as st

from transom.sched.draft import chunk_end, fit_end, is_cut
from transom.sched.request import Span

small = st.integers(0, 60)
pages = st.sampled_from([1, 3, 4, 16])


def test_a_span_is_never_empty() -> None:
    with pytest.raises(AssertionError):
        Span(3, 3)


@given(start=small, left=st.integers(1, 60), budget=st.integers(1, 40), page=pages)
def test_a_chunk_never_rounds_to_zero_and_keeps_to_its_budget(
    start: int, left: int, budget: int, page: int
) -> None:
    end = chunk_end(start, start + left, budget, page)
    assert start < end <= start + min(left, budget)


@given(start=small, left=st.integers(1, 60), budget=st.integers(1, 40), page=pages)
def test_a_chunk_that_is_not_the_last_ends_on_a_page_boundary_if_one_is_in_reach(
    start: int, left: int, budget: int, page: int
) -> None:
    known = start + left
    end = chunk_end(start, known, budget, page)
    boundary_in_reach = any(p % page == 0 for p in range(start + 1, start + budget + 1))
    if end < known and boundary_in_reach:
        assert end % page == 0
        assert end + page > start + budget, "a further boundary was in reach"


def test_a_chunk_without_budget_stays_where_it_is() -> None:
    assert chunk_end(5, 9, 0, 4) == 5


def test_a_chunk_is_cut_only_when_it_stops_inside_a_page_before_the_end() -> None:
    assert is_cut(5, 9, 4)
    assert not is_cut(8, 9, 4)
    assert not is_cut(9, 9, 4)


@given(start=small, left=st.integers(1, 60), pages_free=st.integers(0, 20), page=pages)
def test_a_span_shrinks_to_the_furthest_end_for_which_there_are_pages(
    start: int, left: int, pages_free: int, page: int
) -> None:
    held = -(-start // page)

    def pages_short(end: int) -> int:
        return -(-end // page) - held - pages_free

    end = fit_end(start, start + left, page, pages_short)
    fitting = [e for e in range(start + 1, start + left + 1) if pages_short(e) <= 0]
    assert end == max(fitting, default=start)

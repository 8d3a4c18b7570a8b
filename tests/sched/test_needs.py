from hypothesis import given
from hypothesis import strategies as st

from transom.kv.components import Grid
from transom.kv.holding import Holding, Namespace
from transom.sched.needs import MEMORY, averaged, expected_end, pages_at, still_to_take
from transom.values import Full, RequestId, Window


def held(grids: tuple[Grid, ...], computed: int, allocated: int) -> Holding:
    return Holding(
        request=RequestId(1),
        row=0,
        namespace=Namespace(0, "", None),
        start=0,
        computed=computed,
        allocated=allocated,
        published=0,
        kept=tuple(grid.keep(computed) for grid in grids),
    )


def test_a_request_is_expected_to_go_one_token_further_as_long_as_it_may() -> None:
    assert expected_end(10, 0, 100, 5) == 15
    assert expected_end(14, 4, 100, 5) == 15
    assert expected_end(40, 30, 100, 5) == 41
    assert expected_end(12, 2, 12, 5) == 12


def test_the_expected_output_follows_the_outputs_that_end() -> None:
    mean = 32.0
    for _ in range(10 * MEMORY):
        mean = averaged(mean, 100)
    assert 99 < mean <= 100


@given(
    window=st.sampled_from([1, 2, 4, 7, 16]),
    page=st.sampled_from([1, 3, 4, 16]),
    computed=st.integers(0, 50),
    more=st.integers(1, 50),
)
def test_what_is_still_to_take_is_enough_token_by_token(
    window: int, page: int, computed: int, more: int
) -> None:
    """Played through: a request that grows token by token and slides never holds more than was foreseen."""
    grids = (Grid(Full(), page, True), Grid(Window(window), page, False))
    holding = held(grids, computed, computed)
    end = computed + more
    foreseen = still_to_take(grids, holding, end)
    for c, grid in enumerate(grids):
        now = grid.ceil(computed) - grid.keep(computed)
        at_end = grid.ceil(end) - grid.keep(end - 1)
        assert at_end - now <= foreseen[c]
        assert foreseen[c] <= grid.ceil(end) - grid.ceil(computed)


def test_a_window_pays_for_what_comes_with_what_falls_out() -> None:
    grids = (Grid(Full(), 4, True), Grid(Window(8), 4, False))
    assert still_to_take(grids, held(grids, 40, 40), 80) == (10, 1)


def test_pages_at_an_end_is_monotone() -> None:
    grid = Grid(Window(7), 4, False)
    counts = [pages_at(grid, end) for end in range(1, 60)]
    assert counts == sorted(counts)

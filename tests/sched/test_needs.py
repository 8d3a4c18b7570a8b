from transom.kv.components import Grid
from transom.sched.needs import pages_at
from transom.values import Window


def test_pages_at_an_end_is_monotone() -> None:
    grid = Grid(Window(7), 4, False)
    counts = [pages_at(grid, end) for end in range(1, 60)]
    assert counts == sorted(counts)

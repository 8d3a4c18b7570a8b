from transom.kv.component_specs import Window
from transom.kv.page_rules import Grid
from transom.sched.needs import pages_at


def test_pages_at_an_end_is_monotone() -> None:
    grid = Grid(Window(7), 4, False)
    counts = [pages_at(grid, end) for end in range(1, 60)]
    assert counts == sorted(counts)

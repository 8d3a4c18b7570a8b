from transom.kv.component_specs import Window
from transom.kv.page_rules import RangePages
from transom.sched.needs import pages_at


def test_pages_at_an_end_is_monotone() -> None:
    rule = RangePages(Window(7), 4, False)
    counts = [pages_at(rule, end) for end in range(1, 60)]
    assert counts == sorted(counts)

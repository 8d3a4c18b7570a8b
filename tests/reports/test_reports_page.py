"""docs/from-the-reports.md names tests that exist, and all tests of this folder."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "from-the-reports.md"
LINKS = re.findall(r"\[`(test_\w+)`\]\(([^)]+)\)", PAGE.read_text(encoding="utf-8"))


@pytest.mark.parametrize(("name", "target"), LINKS)
def test_every_row_links_to_a_test_that_exists(name: str, target: str) -> None:
    path = PAGE.parent / target
    assert path.is_file(), target
    assert re.search(rf"^def {name}\(", path.read_text(encoding="utf-8"), re.MULTILINE), (name, target)


def test_the_page_has_a_row_for_every_report_test() -> None:
    """Every test of tests/reports is on the page, except one that checks a detail of the pool."""
    found = {
        name
        for path in Path(__file__).parent.glob("test_*.py")
        if path.name != Path(__file__).name
        for name in re.findall(r"^def (test_\w+)\(", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert found - {name for name, _ in LINKS} <= {"test_a_pool_accepts_page_numbers_of_any_integer_type"}

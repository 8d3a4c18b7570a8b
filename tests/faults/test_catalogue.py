"""docs/faults.md links each fault to its tests, or states why it has no test."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "faults.md"
TEXT = PAGE.read_text(encoding="utf-8")
ROWS = re.findall(r"^\| ([ATS]-\d\d) \| (.+?) \| (.+?) \|$", TEXT, re.MULTILINE)
LINKS = [
    (fault, name, target)
    for fault, _, tests in ROWS
    for name, target in re.findall(r"\[`(test_\w+)`\]\(([^)]+)\)", tests)
]
IDS = [f"A-{n:02}" for n in range(1, 12)] + [f"T-{n:02}" for n in range(1, 21)]
IDS += [f"S-{n:02}" for n in range(1, 20)]
UNTESTED = {"T-17": "host tier"}


def fault_tests() -> dict[str, set[str]]:
    """Names of the fault tests by id."""
    found: dict[str, set[str]] = {}
    for path in Path(__file__).parent.glob("test_*.py"):
        for name, kind, number in re.findall(
            r"^def (test_([ats])_(\d\d)_\w+)\(", path.read_text(encoding="utf-8"), re.MULTILINE
        ):
            found.setdefault(f"{kind.upper()}-{number}", set()).add(name)
    return found


def test_every_fault_has_a_row_in_order() -> None:
    assert [fault for fault, _, _ in ROWS] == IDS


@pytest.mark.parametrize("fault", IDS)
def test_every_fault_has_a_test_or_a_reason_for_none(fault: str) -> None:
    linked = {name for other, name, _ in LINKS if other == fault}
    if fault in UNTESTED:
        assert not linked and fault not in fault_tests()
        assert any(other == fault and UNTESTED[fault] in tests for other, _, tests in ROWS)
    else:
        assert linked == fault_tests()[fault], "the page links exactly the tests that exist"


@pytest.mark.parametrize(("fault", "name", "target"), LINKS)
def test_every_link_leads_to_its_test(fault: str, name: str, target: str) -> None:
    path = PAGE.parent / target
    assert path.is_file(), (fault, target)
    assert re.search(rf"^def {name}\(", path.read_text(encoding="utf-8"), re.MULTILINE), (name, target)

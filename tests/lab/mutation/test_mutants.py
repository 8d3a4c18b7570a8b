"""The wrong edits still apply to the code as it is."""

import re
from collections import Counter
from pathlib import Path

import pytest
from lab.mutation.mutants import HEADING, ROOT, SUITE, Verdict, noticed_before, replace_section, section
from lab.mutation.wrong_edits import KV, MUTANTS, Mutant

BY_NAME = {mutant.name: mutant for mutant in MUTANTS}


def test_there_are_enough_of_them_and_each_has_a_name() -> None:
    assert len(BY_NAME) == len(MUTANTS) >= 40
    assert {path.name for path in (ROOT / KV).glob("*.py")} - {mutant.file for mutant in MUTANTS} <= {
        "__init__.py",
        "check.py",
        "component_specs.py",
        "holding.py",
    }, "a module of kv/ that nobody has tried to break"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_applies_at_exactly_one_place_and_is_python(mutant: Mutant, tmp_path: Path) -> None:
    (tmp_path / KV).mkdir(parents=True)
    target = tmp_path / KV / mutant.file
    target.write_text((ROOT / KV / mutant.file).read_text(encoding="utf-8"), encoding="utf-8")
    mutant.apply(tmp_path)
    compile(target.read_text(encoding="utf-8"), mutant.file, "exec")


@pytest.mark.parametrize("name", ["publish-uncomputed", "replace-locked-full"])
def test_the_two_reports_bugs_must_die_in_their_own_tests_and_in_small_scope(name: str) -> None:
    assert BY_NAME[name].alone == ("tests/reports", "tests/exhaustive")


def test_the_section_is_replaced_and_what_follows_stays() -> None:
    from datetime import date

    text = section([Verdict(MUTANTS[0], SUITE, "tests/x.py::test_y", 1.0)], "abc", date(2026, 1, 2))
    page = replace_section(f"# Proof\n\n{HEADING}\n\nold\n\n## Next\n\nkept\n", text)
    assert "old" not in page and page.endswith("## Next\n\nkept\n") and "1 of 1" in page
    assert replace_section(page, text) == page
    assert noticed_before(page) == {MUTANTS[0].name: "tests/x.py::test_y"}
    assert Counter(re.findall(r"^## .*$", page, re.MULTILINE)) == {HEADING: 1, "## Next": 1}

"""The harness that tries wrong edits: it draws a sample, finds the tests that notice, and writes an entry."""

from datetime import date

import pytest
from lab.mutation.edits import Edit, generated, source_of
from lab.mutation.mutants import HEADING, Verdict, entry, files_to_run, judge, sample, with_entry

POOL = generated("kv.pool", source_of("kv.pool"))


def test_a_sample_has_as_many_edits_of_each_kind_and_is_that_of_its_seed() -> None:
    drawn = sample(POOL, 24, 1)
    assert drawn == sample(POOL, 24, 1) and drawn != sample(POOL, 24, 2)
    counts = {kind: sum(edit.kind == kind for edit in drawn) for kind in {edit.kind for edit in POOL}}
    assert sum(counts.values()) == len(set(drawn)) == 24
    assert min(counts.values()) >= 1, counts
    assert len(sample(POOL, 10**6, 0)) == len(POOL)


def test_likely_tests_run_first_and_the_slowest_last() -> None:
    likely, others = files_to_run("kv.pool")
    assert list(likely) == ["tests/kv/test_pool.py", "tests/lab/fuzz/test_fuzz.py"]
    assert {"tests/exhaustive/test_small_scope.py", "tests/kv/test_machine.py"} <= set(others[-4:])
    likely, others = files_to_run("sched.step_cost")
    assert "tests/sched/test_step_cost.py" in likely and likely[-1] == "tests/lab/faults/test_faults.py"
    assert "tests/sched/test_loop.py" in others


def test_an_edit_is_noticed_in_a_copy_of_the_tree() -> None:
    edit = next(e for e in POOL if e.function == "PagePool.__init__" and e.kind == "drop statement")
    before = source_of("kv.pool")
    assert judge(edit, ["tests/sched/test_step_cost.py"]).noticed_by == ""
    assert judge(edit, ["tests/kv/test_pool.py"]).noticed_by.startswith("tests/kv/test_pool.py::test_")
    assert source_of("kv.pool") == before


def test_an_entry_has_the_shares_and_the_survivors() -> None:
    one, other = sample(POOL, 2, 0)
    text = entry([Verdict(one, "tests/x.py::test_y"), Verdict(other, "")], "2 edits", "abc", date(2026, 1, 2))
    assert text.startswith("2026-01-02, abc, 2 edits: fast tests notice 1 of 2 edits.")
    assert "| kv.pool | 1 of 2 |" in text
    assert f"`{other.id}`" in text and f"`{one.id}`" not in text


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ("# Log\n", f"# Log\n\n{HEADING}\n\nnew\n"),
        (f"# Log\n\n{HEADING}\n\nold\n", f"# Log\n\n{HEADING}\n\nold\n\nnew\n"),
        (f"{HEADING}\n\nold\n\n## Next\n\nkept\n", f"{HEADING}\n\nold\n\nnew\n\n## Next\n\nkept\n"),
    ],
)
def test_an_entry_goes_to_the_end_of_its_section(page: str, expected: str) -> None:
    assert with_entry(page, "new\n") == expected


def test_an_edit_names_its_line() -> None:
    edit: Edit = POOL[0]
    lines = source_of("kv.pool").splitlines()
    changed = edit.apply(source_of("kv.pool")).splitlines()
    assert lines[edit.line - 1] != changed[edit.line - 1]

"""Generated edits: of every kind, at places that may be edited, and with every line where it was."""

import ast

import pytest
from lab.mutation.edits import generated, made, modules, source_of

from transom.kv.journal import Journal

SOURCE = '''\
"""A module."""

LIMIT = 3


class Box:
    """Holds 3."""

    __slots__ = ("n",)

    def put(self, n: int, other: int = 2) -> int:
        """Adds 1."""
        assert n < 3, "below 3"
        if n < other and self.n:
            raise ValueError("1 is too few")
        self.n = max(n, other)
        self._journal.log(
            self.put,
            n,
        )
        self.call(n, other)
        return self.n + 1
'''
EXPECTED = {
    "compare": ["if n <= other and self.n:"],
    "and or": ["if n < other or self.n:"],
    "negate": ["if not (n < other and self.n):"],
    "min max": ["self.n = min(n, other)"],
    "drop statement": ["pass", "pass"],
    "skip undo": ["pass"],
    "swap arguments": ["n,", "self.call(other, n)"],
    "off by one": ["return self.n + 2", "return self.n + 0"],
}


def test_each_kind_of_edit_changes_one_place_and_keeps_all_lines() -> None:
    found: dict[str, list[str]] = {}
    for edit in generated("kv.box", SOURCE):
        after = edit.apply(SOURCE)
        assert after.count("\n") == SOURCE.count("\n")
        ast.parse(after)
        changed = [b for a, b in zip(SOURCE.split("\n"), after.split("\n"), strict=True) if a != b]
        found.setdefault(edit.kind, []).append(changed[0].strip())
    assert found == EXPECTED


def test_ids_survive_reformatting_and_renames_of_variables() -> None:
    renamed = SOURCE.replace("other", "another").replace(
        "            self.put,\n            n,\n", "self.put, n"
    )
    assert [e.id for e in generated("kv.box", SOURCE)] == [e.id for e in generated("kv.box", renamed)]


@pytest.mark.parametrize("module", modules())
def test_every_edit_of_a_module_is_python(module: str) -> None:
    source = source_of(module)
    edits = generated(module, source)
    assert len({edit.id for edit in edits}) == len(edits)
    for edit in edits[::7]:
        ast.parse(edit.apply(source))


def test_an_edit_applies_to_the_text_that_it_was_made_for_alone() -> None:
    (edit,) = [edit for edit in generated("kv.box", SOURCE) if edit.kind == "min max"]
    with pytest.raises(ValueError, match="is no longer at byte"):
        edit.apply("# " + SOURCE)


def test_an_edit_can_be_made_to_the_running_product_and_is_undone() -> None:
    edits = generated("kv.journal", source_of("kv.journal"))
    edit = next(e for e in edits if e.function == "Journal.enter" and e.kind == "drop statement")
    journal = Journal()
    with made(edit):
        journal.enter()
        assert journal._depth == 0
    journal.enter()
    assert journal._depth == 1

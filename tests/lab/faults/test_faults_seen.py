"""The fault campaign finds errors: with a wrong edit in sched/ some life breaks soon."""

import pytest
from tests.lab.faults.edits import EDITS, Edit

from transom_lab.faults.campaign import live
from transom_lab.faults.life import draw_life

SEEDS = 400


def breaks(seed: int) -> str:
    """The error of a life; empty if it has no fault."""
    life = draw_life(seed)
    _, broke = live(life, range(len(life.events)))
    return "" if broke is None else broke.text


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.name)
def test_a_wrong_edit_breaks_a_life(edit: Edit) -> None:
    """If lives are drawn differently, this is slow until the seeds of the edits are updated."""
    with edit.made():
        seed = next((seed for seed in (edit.seed, *range(SEEDS)) if breaks(seed)), None)
    assert seed is not None, edit
    assert not breaks(seed), "it breaks without the edit too"

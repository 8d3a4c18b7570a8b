"""The fault campaign finds errors: with a wrong edit in sched/ some lifetime breaks soon."""

import re

import pytest
from lab.mutation.curated import SCHED, Curated
from lab.mutation.edits import made

from transom_lab.faults.campaign import live
from transom_lab.faults.lifetime import draw_lifetime

SEEDS = 400


def breaks(seed: int) -> str:
    """The error of a lifetime; empty if it has no fault."""
    lifetime = draw_lifetime(seed)
    _, broke = live(lifetime, range(len(lifetime.events)))
    return "" if broke is None else broke.text


@pytest.mark.parametrize("curated", SCHED, ids=lambda curated: curated.name)
def test_a_wrong_edit_breaks_a_lifetime(curated: Curated) -> None:
    """If lifetimes are drawn differently, this is slow until the seeds of the edits are updated."""
    with made(curated.edit()):
        seed = next((seed for seed in (curated.seed, *range(SEEDS)) if breaks(seed)), None)
        assert seed is not None, curated
        assert not re.match("(Attribute|Name|Type)Error", breaks(seed)), "the edit no longer fits the code"
    assert not breaks(seed), "the lifetime breaks without the edit too"

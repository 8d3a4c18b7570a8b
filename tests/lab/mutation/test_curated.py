"""Curated edits still apply, and tests notice every one.

The fast lane runs simulated lifetimes and the two reports' own tests; the slow lane runs all fast tests for
each.
"""

import ast
import re
from collections import Counter

import pytest
from lab.mutation.curated import CURATED, KV, REPORT_A, REPORT_B, Curated
from lab.mutation.edits import made, source_of
from lab.mutation.mutants import judge
from tests.exhaustive.scope import Wrong, explore
from tests.exhaustive.test_small_scope import SCOPES
from tests.reports.test_chunks import test_scheduled_chunk_advances as scheduled_chunk_advances
from tests.reports.test_recovery import test_locked_full_survives_recovery as locked_full_survives_recovery

from transom.kv.cache import PrefixCaching
from transom_lab.faults.campaign import live
from transom_lab.faults.lifetime import draw_lifetime
from transom_lab.fuzz.campaign import Drawn, Tally, run_episode

EPISODES = 60
UNSEEN_BY_FUZZING = {"the most recently used goes first"}
"""An order of eviction is never wrong, only bad: tests/kv has tests of each policy."""


@pytest.mark.parametrize("curated", CURATED, ids=lambda curated: curated.name)
def test_a_curated_edit_applies_and_keeps_all_lines(curated: Curated) -> None:
    edit = curated.edit()
    before = source_of(edit.module)
    after = edit.apply(before)
    ast.parse(after)
    assert after != before and after.count("\n") == before.count("\n")


def test_each_curated_edit_has_a_name_of_its_own() -> None:
    assert len({(each.package, each.name) for each in CURATED}) == len(CURATED)


@pytest.mark.parametrize("curated", [c for c in KV if c.name not in UNSEEN_BY_FUZZING], ids=lambda c: c.name)
def test_a_wrong_edit_of_the_memory_core_breaks_a_simulated_lifetime(curated: Curated) -> None:
    """A lifetime of the fault world if the edit names one, otherwise an episode of the fuzzer."""
    with made(curated.edit()):
        error = fault(curated.seed) if curated.seed else first_error()
    assert error, curated
    assert not re.match("(Attribute|Name|Type)Error", error), "the edit no longer fits the code"


def fault(seed: int) -> str:
    lifetime = draw_lifetime(seed)
    _, broke = live(lifetime, range(len(lifetime.events)))
    return "" if broke is None else broke.text


def first_error() -> str:
    """Of a few episodes of the fuzzer, half of them with a window, which a repair can rebuild."""
    for number in range(EPISODES):
        mix = "FW" if number % 2 else None
        broken = run_episode(Drawn(seed=1, mix=mix), number, 1_000, Tally(Counter()))
        if broken is not None:
            return broken.error
    return ""


@pytest.mark.parametrize("report", [REPORT_A, REPORT_B], ids=["report A", "report B"])
def test_small_scopes_notice_the_bug_of_a_report(report: Curated) -> None:
    with made(report.edit()), pytest.raises(Wrong):
        explore(*SCOPES["two equal requests, pages for both"])


def test_its_own_test_notices_report_a() -> None:
    with made(REPORT_A.edit()), pytest.raises(AssertionError):
        scheduled_chunk_advances(1, 4, PrefixCaching.ON)


def test_its_own_test_notices_report_b() -> None:
    with made(REPORT_B.edit()), pytest.raises(AssertionError):
        locked_full_survives_recovery(1, 4)


@pytest.mark.slow
@pytest.mark.parametrize("curated", CURATED, ids=lambda curated: curated.name)
def test_fast_tests_notice_a_curated_edit(curated: Curated) -> None:
    assert judge(curated.edit()).noticed_by


@pytest.mark.slow
@pytest.mark.parametrize("curated", [c for c in CURATED if c.alone], ids=lambda curated: curated.name)
def test_each_suite_alone_notices_the_bug_of_a_report(curated: Curated) -> None:
    for suite in curated.alone:
        assert judge(curated.edit(), [suite]).noticed_by, suite

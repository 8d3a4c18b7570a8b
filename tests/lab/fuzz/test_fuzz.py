"""The fuzzer reaches every transition of the cache, finds faults, and reports them as short scripts."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from transom.errors import ConfigError, TransomError
from transom.kv.cache import HybridCache
from transom.kv.eviction_policy import CachePolicy
from transom.kv.holding import Holding, StartPoint
from transom.kv.match import repair_start, repaired
from transom.kv.page_rules import Share, SlidingPages
from transom.steps import PageCopy
from transom.values import Tokens
from transom_lab.fuzz import operations as do
from transom_lab.fuzz.campaign import Broken, Drawn, Tally, replay, run_episode
from transom_lab.fuzz.command import CacheBroke, fuzz, replay_file
from transom_lab.fuzz.draw import draw_setting
from transom_lab.fuzz.operations import Setting, read_script, write_script
from transom_lab.fuzz.shrink import shrink
from transom_lab.worlds.mixes import MIXES, PAGE_SIZES, WINDOWS

SETTING = Setting(page_size=4, window=7, mix="FW", pages=(12, 9), rows=3, context=40, prefix_caching=True)
SCRIPT: list[do.Operation] = [
    do.Ask(request=1, tokens=(1, 2, 3, 4, 5), salt="x"),
    do.Admit(request=1),
    do.Undone(operations=(do.Extend(request=1, tokens=3), do.Flush())),
    do.Extend(request=1, tokens=5),
    do.Run(request=1, tokens=5),
    do.RunCopies(),
    do.Fork(request=1, child=2),
    do.Run(request=2, tokens=1),
    do.Pin(tokens=(1, 2, 3, 4), steps=2),
    do.Publish(request=1),
]

ALWAYS_POSSIBLE = (
    do.Ask, do.Admit, do.AdmitCold, do.Extend, do.Run, do.Publish, do.Slide, do.Truncate, do.Drop, do.Flush,
    do.Fork, do.Pin, do.Evict, do.Undone,
)  # fmt: skip
"""Operations that occur in every mix. Pending copies do not."""

REPAIRED = ("FW", "FWV", "WLF", "FC", "CFW")
"""Mixes with repairs: windows or chunks that are recomputed from full pages."""


@pytest.mark.parametrize("episodes", [10, pytest.param(40, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mix", MIXES)
def test_thousands_of_operations_of_every_mix_find_no_fault(mix: str, episodes: int) -> None:
    """A thousand operations in each episode. Everything except the mix is drawn."""
    tally = Tally(Counter())
    for number in range(episodes):
        assert run_episode(Drawn(seed=1, mix=mix), number, 1_000, tally) is None
    assert tally.total >= 1_000 * episodes
    assert set(tally.operations) >= {word.__name__ for word in ALWAYS_POSSIBLE}, tally
    assert min(tally.hits, tally.evicted, tally.refused) > 5, "an idle run proves nothing"
    if mix in ("F", "FW", "FWV", "WLF"):
        assert min(tally.hits, tally.duplicates_returned) > 10 * episodes and tally.operations["RunCopies"], (
            tally
        )
    if mix in ("W", "FW", "FWV", "WLF"):
        assert tally.holes_filled > 5 * episodes, tally
    if mix in REPAIRED:
        assert tally.repairs, tally
    assert tally.skipped < tally.total / 5, "most operations can be done"


def test_every_kind_of_cache_is_drawn() -> None:
    from random import Random

    drawn = [draw_setting(Random(seed), None, None, None) for seed in range(300)]
    assert {setting.page_size for setting in drawn} == set(PAGE_SIZES)
    assert {setting.window for setting in drawn} == set(WINDOWS)
    assert {setting.mix for setting in drawn} == set(MIXES)
    assert {setting.prefix_caching for setting in drawn} == {True, False}
    assert {setting.policy for setting in drawn} == set(CachePolicy)
    with_state = {mix for mix in MIXES if "S" in mix}
    assert {setting.mix for setting in drawn if setting.layers} == {*REPAIRED, *with_state}
    shared = [setting for setting in drawn if setting.page_bytes]
    assert 30 < len(shared) < 120 and {setting.mix for setting in shared} == set(MIXES)


def test_the_same_seed_gives_the_same_run() -> None:
    tallies = [Tally(Counter()), Tally(Counter())]
    for tally in tallies:
        assert run_episode(Drawn(seed=5), 2, 300, tally) is None
    assert tallies[0] == tallies[1]


# ---------------------------------------------------------------- scripts


def test_a_script_reads_back_as_it_was_written() -> None:
    assert read_script(write_script((SETTING, SCRIPT))) == (SETTING, SCRIPT)


def test_any_part_of_a_script_is_a_script() -> None:
    for left_out in range(len(SCRIPT)):
        assert replay(SETTING, SCRIPT[:left_out] + SCRIPT[left_out + 1 :]) is None


@pytest.mark.parametrize(
    "line",
    [
        "Steal(request=1)",
        "Admit(request=open('x'))",
        "Admit(",
        "__import__('os')",
        "Admit(number=1)",
        "3 + x",
    ],
)
def test_an_invalid_line_is_named_in_the_error(line: str) -> None:
    with pytest.raises(ConfigError, match="line 3"):
        read_script(f"# a comment\n{SETTING!r}\n{line}\n")


def test_a_script_begins_with_its_setting() -> None:
    with pytest.raises(ConfigError, match="Setting"):
        read_script("Flush()\n")


# ---------------------------------------------------------------- faults that it finds


def publish_uncomputed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts the fault of report A back: allocated tokens are published as computed."""
    publish = HybridCache.publish

    def wrong(self: HybridCache, holding: Holding, tokens: Tokens) -> None:
        computed = holding.computed
        holding.computed = min(holding.allocated, len(tokens))
        publish(self, holding, tokens)
        holding.computed = computed

    monkeypatch.setattr(HybridCache, "publish", wrong)


def test_a_fault_is_found_shrunk_and_replayed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "script.txt"
    with monkeypatch.context() as patch:
        publish_uncomputed(patch)
        with pytest.raises(CacheBroke):
            fuzz(Drawn(seed=3), 4_000)
        file.write_text(capsys.readouterr().out)
        _, operations = read_script(file.read_text())
        assert len(operations) <= 6, operations
        with pytest.raises(CacheBroke, match=f"operation {len(operations)} of {len(operations)}"):
            replay_file(str(file))
    replay_file(str(file))
    assert "no fault found" in capsys.readouterr().out


def test_shrinking_keeps_exactly_the_operations_that_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three operations far apart are the cause; all operations between them are left out."""
    publish_uncomputed(monkeypatch)
    noise: list[do.Operation] = [do.RunCopies()] * 40
    tokens = tuple(range(9))
    cause = [do.AdmitCold(request=1, tokens=tokens, salt=""), do.Extend(request=1, tokens=9), do.Publish(1)]
    script = [*noise, cause[0], *noise, cause[1], *noise, cause[2], *noise]
    assert shrink(Broken((SETTING, script), "")).script == (SETTING, cause)


def test_a_read_of_foreign_keys_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy never runs, so the page still has the contents of its last owner."""
    monkeypatch.setattr(HybridCache, "pending_copies", lambda self: ())
    monkeypatch.setattr("transom_lab.fuzz.draw.PAGE_SIZES", (4,))
    broken = run_episode(Drawn(seed=2, mix="F"), 0, 2_000, Tally(Counter()))
    assert broken is not None and re.search("reads position|was not computed for", broken.error), broken


def test_a_repair_that_caches_inexact_keys_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = SlidingPages.share

    def wrong(rule: SlidingPages, component: int, path: Any, begin: StartPoint, partial: Any) -> Share:
        found = right(rule, component, path, begin, partial)
        return found._replace(exact=found.kept) if begin.is_repair else found

    monkeypatch.setattr(SlidingPages, "share", wrong)
    assert "was not computed for this prefix" in first_error(mix="FW")


def test_a_repair_that_starts_too_late_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even by a single token."""
    start = repair_start
    monkeypatch.setattr(
        "transom.kv.match.repair_start",
        lambda rules, layers, until: min(until - 1, start(rules, layers, until) + 1),
    )
    assert "computed from inexact keys" in first_error(mix="FW")


def test_a_repair_offered_beside_a_state_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """No window of tokens restores a recurrent state, so beside a state no repair may be offered."""
    monkeypatch.setattr(
        "transom.kv.match.repaired",
        lambda hit, rules, layers: repaired(hit, rules[:2], tuple([layer for layer in layers if layer < 2])),
    )
    assert re.search("possible|another state", first_error(mix="FWS"))


def test_a_fork_that_writes_to_its_parents_page_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its copies are pending, and copy no token."""
    monkeypatch.setattr(
        "transom.kv.fork.PageCopy",
        lambda component, source, target, slots: PageCopy(component, source, target, 0),
    )
    assert re.search("reads position|was not computed for|inexact", first_error(mix="FW", page_size=4))


def first_error(mix: str, page_size: int = 1) -> str:
    """The first error of a few episodes; empty if all are sound."""
    drawn = Drawn(1, page_size, 4, mix)
    episodes = (run_episode(drawn, number, 1_000, Tally(Counter())) for number in range(20))
    return next((broken.error for broken in episodes if broken is not None), "")


# ---------------------------------------------------------------- output


def test_progress_shows_rate_operations_hits_holes_and_evictions(capsys: pytest.CaptureFixture[str]) -> None:
    fuzz(Drawn(seed=0, page_size=4, window=4, mix="FW"), 600)
    printed = capsys.readouterr().out
    for word in ("operations", "/s", "hits", "holes filled", "evicted", "Extend", "no fault found"):
        assert word in printed, printed


@pytest.mark.parametrize(
    ("drawn", "operations", "part"),
    [
        (Drawn(seed=0, mix="FQ"), 1, "Q"),
        (Drawn(seed=0, page_size=0), 1, "--page-size"),
        (Drawn(seed=0, window=-1), 1, "--window"),
        (Drawn(seed=0), 0, "--ops"),
    ],
)
def test_invalid_flags_are_named_in_the_error(drawn: Drawn, operations: int, part: str) -> None:
    with pytest.raises(TransomError, match=part):
        fuzz(drawn, operations)


def test_a_missing_file_is_named_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        replay_file(str(tmp_path / "none"))


def test_digests_differ_by_namespace_position_and_layer() -> None:
    from transom.kv.cache import Namespace
    from transom_lab.worlds.contents import of_layer, prefix_digests

    spaces = [Namespace(0, "", None), Namespace(1, "", None), Namespace(0, "x", None)]
    runs = [np.array(tokens, np.int32) for tokens in ([0] * 40, [0] * 20 + [1] * 20, [1] * 40)]
    found = np.concatenate([prefix_digests(space, run) for space in spaces for run in runs])
    both = np.concatenate([of_layer(found, layer) for layer in (0, 1)])
    assert len(set(both.tolist())) == 2 * 3 * (40 + 20 + 40)


def test_a_wrong_key_changes_what_the_model_computes_after_it() -> None:
    """The chain itself notices, without a comparison of the key: every later token of every later layer."""
    from transom.kv.component_specs import Full, Window
    from transom_lab.worlds.contents import Model, after_layer, chain_of, of_layer, totals

    model = Model((Full(), Window(4)), (1, 0), 40)
    right = chain_of(model, np.arange(1, 31, dtype=np.uint64))
    keys = right.keys[0].copy()
    keys[10] ^= np.uint64(1)
    sums, first = totals(keys, 0), np.maximum(0, np.arange(30) - 3)
    entered = after_layer(right.entering[0], sums[1:] - sums[first])
    assert np.flatnonzero(entered != right.entering[1]).tolist() == [10, 11, 12, 13]
    left = after_layer(entered, totals(of_layer(entered, 1), 0)[1:])
    assert np.flatnonzero(left != right.entering[2]).tolist() == list(range(10, 30))

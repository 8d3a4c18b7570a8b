"""Every state that a few requests can reach in a small cache is sound, and every move rolls back completely.

Most scopes are closed: the exploration ends when no move leads to a new state, not at a depth.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.exhaustive.scope import Scope, Wrong, explore

from transom.kv.cache import HybridCache
from transom.kv.holding import Holding, StartPoint
from transom.kv.page_rules import Share, SlidingPages
from transom.values import Tokens
from transom_lab.fuzz import operations as do
from transom_lab.fuzz.operations import Setting

SAME = ((1, 1, 1), (1, 1, 1))
APART = ((1, 1, 1), (1, 1, 2))
PAGED = ((1, 1, 1, 1), (1, 1, 1, 2))


def setting(
    page_size: int, window: int, mix: str, pages: tuple[int, ...], *, rows: int = 2, context: int = 3
) -> Setting:
    return Setting(page_size, window, mix, pages, rows, context, prefix_caching=True)


HYBRID = setting(1, 2, "FW", (3, 3))
REPAIRED = replace(setting(1, 2, "FW", (6, 4), context=4), layers=(1, 1, 0))
WHOLE = 99
"""A depth beyond that of any closed scope: explore until no new state is left."""

SCOPES: dict[str, tuple[Scope, int]] = {
    "two equal requests, pages for one": (Scope(HYBRID, SAME, (2, 9)), WHOLE),
    "two equal requests, pages for both": (Scope(replace(HYBRID, pages=(6, 4)), SAME, (9,)), WHOLE),
    "two requests that branch": (Scope(replace(HYBRID, pages=(4, 3)), APART, (9,)), WHOLE),
    "full attention alone": (Scope(setting(1, 2, "F", (4,)), APART, (1, 9)), WHOLE),
    "a window alone": (Scope(setting(1, 2, "W", (3,)), APART, (2, 9)), WHOLE),
    "pages of two tokens, branch inside one":
        (Scope(setting(2, 2, "FW", (3, 3), context=4), PAGED, (9,)), WHOLE),
    "a window of one, begun in a hole": (Scope(setting(2, 1, "FW", (3, 2), context=4), PAGED, (3, 9)), WHOLE),
    "two windows": (Scope(setting(1, 1, "FWV", (4, 2, 4), context=4), ((1, 1, 1, 1),) * 2, (2, 9)), 13),
    "a flush in between": (Scope(HYBRID, SAME, (1, 9), flushes=1), 12),
    "copies and a flush": (Scope(setting(2, 2, "FW", (4, 3), context=5), PAGED, (2, 9), flushes=1), 9),
    "no prefix cache": (Scope(replace(HYBRID, prefix_caching=False), SAME, (1, 9)), WHOLE),
    "three requests": (Scope(replace(HYBRID, pages=(4, 3), rows=3), (*SAME, (1, 2)), (9,)), 9),
    "states": (Scope(setting(1, 2, "FS", (4, 3)), SAME, (2, 9)), WHOLE),
    "repair": (Scope(REPAIRED, ((1, 1, 1, 1),) * 2, (2, 9), evicted=(1,)), 12),
    "a fork": (Scope(setting(2, 2, "FW", (4, 4)), SAME, (2, 9), forks=True), WHOLE),
}  # fmt: skip

DEEPER: dict[str, tuple[Scope, int]] = {
    "two equal requests, token by token": (Scope(HYBRID, SAME, (1, 9)), WHOLE),
    "pages of two tokens, branch inside one, chunks of three": (
        Scope(setting(2, 2, "FW", (3, 3), context=4), PAGED, (3, 9)),
        WHOLE,
    ),
    "a flush in between": (Scope(HYBRID, SAME, (1, 9), flushes=1), 16),
    "four tokens, and a flush": (
        Scope(setting(1, 2, "FW", (6, 4), context=4), ((1, 1, 1, 1), (1, 1, 2, 2)), (2, 9), flushes=1),
        WHOLE,
    ),
    "a window alone, token by token": (
        Scope(setting(2, 2, "W", (3,), context=4), PAGED, (1, 9), flushes=1),
        WHOLE,
    ),
    "pages of three under a window of four": (
        Scope(setting(3, 4, "FW", (4, 4), context=7), ((1,) * 7, (1, 1, 1, 1, 2, 2)), (3, 9)),
        16,
    ),
    "three requests": (Scope(replace(HYBRID, rows=3), (*SAME, (1, 2)), (9,)), 16),
}


@pytest.mark.parametrize("name", SCOPES)
def test_every_state_of_a_small_scope_is_sound(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    explore_all(name, *SCOPES[name], capsys)


@pytest.mark.slow
@pytest.mark.parametrize("name", DEEPER)
def test_every_state_of_a_wider_scope_is_sound(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    explore_all(name, *DEEPER[name], capsys)


def explore_all(name: str, scope: Scope, depth: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Explores the scope, prints its size, and requires that it was not trivially small."""
    explored = explore(scope, depth)
    with capsys.disabled():
        print(
            f"\n{name}: {explored.states:,} states, {explored.transitions:,} moves, "
            f"{explored.depth} deep{', closed' if explored.closed else ''}"
        )
    assert explored.closed or depth != WHOLE, explored
    assert explored.states > 50 and explored.transitions > 5 * explored.states, explored


def test_a_failure_is_reported_with_the_shortest_moves_that_lead_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Publishing tokens that were never computed (report A) is found after three moves, the minimum."""
    publish: Callable[[HybridCache, Holding, Tokens], None] = HybridCache.publish

    def wrong(self: HybridCache, holding: Holding, tokens: Tokens) -> None:
        computed, holding.computed = holding.computed, min(holding.allocated, len(tokens))
        publish(self, holding, tokens)
        holding.computed = computed

    monkeypatch.setattr(HybridCache, "publish", wrong)
    scope, depth = DEEPER["two equal requests, token by token"]
    with pytest.raises(Wrong) as raised:
        explore(scope, depth)
    shortest = ((do.Ask(0, SAME[0], ""), do.Admit(0)), (do.Extend(0, 1),), (do.Publish(0),))
    assert repr(shortest) in str(raised.value)


def test_a_repair_that_caches_inexact_pages_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = SlidingPages.share

    def wrong(rule: SlidingPages, component: int, path: Any, begin: StartPoint, partial: Any) -> Share:
        found = right(rule, component, path, begin, partial)
        return found._replace(exact=0) if begin.is_repair else found

    monkeypatch.setattr(SlidingPages, "share", wrong)
    with pytest.raises(Wrong, match="inexact"):
        explore(*SCOPES["repair"])

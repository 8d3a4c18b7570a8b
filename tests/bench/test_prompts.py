"""Prompts depend on workload and seed only, and share the prefix that the workload defines."""

import subprocess
import sys
from itertools import combinations

import pytest

from transom.bench.workloads import WORKLOADS, Prompts, make_prompts

SMALLEST_PASSAGE = 2_000


def beginning(texts: list[str]) -> str:
    """The common prefix of all texts."""
    first, last = min(texts), max(texts)
    return first[: next((n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))]


def first_turns(prompts: Prompts) -> list[str]:
    return [turns[0] for turns in prompts.conversations]


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_same_seed_gives_the_same_prompts_in_another_process(name: str) -> None:
    code = (
        "from transom.bench.workloads import *\n"
        f"print(make_prompts(WORKLOADS[{name!r}], 5).digest, make_prompts(WORKLOADS[{name!r}], 6).digest)"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    same, other = printed.split()
    assert make_prompts(WORKLOADS[name], 5).digest == same != other


@pytest.mark.parametrize(
    ("name", "count", "turns"),
    [("w1", 1, 1), ("w2c8", 32, 1), ("w2c16", 32, 1), ("w3", 32, 1), ("w4", 8, 4), ("w4s", 8, 4)],
)
def test_a_workload_has_its_number_of_conversations_and_turns(name: str, count: int, turns: int) -> None:
    prompts = make_prompts(WORKLOADS[name], 0)
    assert [len(conversation) for conversation in prompts.conversations] == [turns] * count
    assert WORKLOADS[name].requests == count * turns


@pytest.mark.parametrize("seed", [0, 1])
def test_prompts_share_their_prefix_and_nothing_after_it(seed: int) -> None:
    for name in ("w3", "w4s"):
        prompts = make_prompts(WORKLOADS[name], seed)
        assert len(prompts.shared) > SMALLEST_PASSAGE
        told = beginning(first_turns(prompts))
        assert told.startswith(prompts.shared)
        assert len(told) < len(prompts.shared) + len("\n\nUser: ") + 12


@pytest.mark.parametrize("name", ["w2c8", "w2c16", "w4"])
def test_prompts_without_a_common_prefix_differ_within_two_words(name: str) -> None:
    assert not make_prompts(WORKLOADS[name], 0).shared
    for one, other in combinations(first_turns(make_prompts(WORKLOADS[name], 0)), 2):
        assert len(beginning([one.removeprefix("User: "), other.removeprefix("User: ")]).split(" ")) <= 3


def test_workloads_and_seeds_have_no_common_prefix() -> None:
    beginnings = [
        turns[0][:40]
        for name in ("w1", "w2c8", "w2c16", "w3")
        for seed in (0, 1, 2)
        for turns in make_prompts(WORKLOADS[name], seed).conversations[:1]
    ]
    assert len(set(beginnings)) == len(beginnings)

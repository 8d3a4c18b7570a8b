"""Fault campaigns: many lifetimes without a fault, determinism, and findings that replay in one command."""

import re

import pytest
from lab.mutation.curated import by_name
from lab.mutation.edits import made

from transom.errors import ConfigError
from transom.values import FinishReason
from transom_lab.faults.campaign import Tally, live, run_faults, run_part
from transom_lab.faults.command import SchedulerBroke, faults, numbers, written
from transom_lab.faults.lifetime import draw_lifetime

SHORT = 40
EVERY_EVENT = {
    "Iterate", "Arrive", "SendAgain", "Abort", "AbortInFlight", "AbortAll", "AbortEnded", "Flush", "Pause",
    "Resume", "UpdateWeights", "Drain", "Pin", "Crash", "Evict", "FailStep", "DelayStep", "ShiftClock",
}  # fmt: skip


def test_hundreds_of_lifetimes_have_no_fault() -> None:
    """The slow lane runs ten thousand, half as long again."""
    tally = Tally()
    assert run_faults(0, 400, SHORT, tally=tally) is None
    assert set(tally.events) == EVERY_EVENT and set(tally.ends) == set(FinishReason)
    assert min(tally.retractions, tally.forks, tally.failed_steps, tally.refused, tally.crashes) > 20, tally
    assert min(tally.cached_tokens, tally.recomputed_tokens) > 400 and tally.repaired_tokens > 12, tally


@pytest.mark.slow
def test_ten_thousand_lifetimes_have_no_fault() -> None:
    assert run_faults(1_000_000, 10_000) is None


def test_the_same_seed_gives_the_same_lifetime() -> None:
    lifetime = draw_lifetime(11)
    assert lifetime == draw_lifetime(11) and lifetime != draw_lifetime(12)
    worlds = [live(lifetime, range(len(lifetime.events)))[0] for _ in range(2)]
    assert worlds[0].scheduler.stats() == worlds[1].scheduler.stats()
    assert worlds[0].cache.events(0) == worlds[1].cache.events(0)


def test_a_finding_is_printed_as_the_command_that_replays_it(capsys: pytest.CaptureFixture[str]) -> None:
    curated = by_name("a waiting request that is aborted ends twice")
    with made(curated.edit()):
        with pytest.raises(SchedulerBroke, match=r"of its \d+ events"):
            faults(curated.seed, 200)
        printed = capsys.readouterr().out
        command = re.search(
            r"^transom simulate --faults --seed (\d+) --only ([\d,-]+)$", printed, re.MULTILINE
        )
        assert command is not None, printed
        seed, only = int(command[1]), command[2]
        assert len(numbers(only)) <= 4, "an arrival or two, an abort, an iteration"
        with pytest.raises(SchedulerBroke, match="an event of a request that is not running"):
            faults(seed, only=only)
    faults(seed, only=only)
    assert "no fault found" in capsys.readouterr().out


def test_any_part_of_a_lifetime_is_a_lifetime() -> None:
    lifetime = draw_lifetime(3)
    for step in (2, 3):
        assert run_part(3, 60, range(0, len(lifetime.events), step)) is None


@pytest.mark.parametrize("text", ["0-3,7", "5", "0,2,4-9"])
def test_event_numbers_are_written_as_they_are_read(text: str) -> None:
    assert written(numbers(text)) == text


@pytest.mark.parametrize("text", ["", "a", "3-", "-1", "1,,2"])
def test_invalid_event_numbers_are_named_in_the_error(text: str) -> None:
    with pytest.raises(ConfigError, match="--only"):
        numbers(text)


def test_a_run_can_be_limited_by_iterations(capsys: pytest.CaptureFixture[str]) -> None:
    faults(5, turns=40)
    assert "no fault found" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="--seeds is 0"):
        faults(5, 0)

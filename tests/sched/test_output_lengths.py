"""Predictions for unfinished outputs: the upper quartile of the recent outputs that were longer."""

import numpy as np
import pytest

from transom.sched.output_lengths import HISTORY, OutputHistory, OutputLengths


def recent(*lengths: int) -> OutputLengths:
    return OutputLengths(np.array(sorted(lengths), np.int64))


def test_the_first_estimate_holds_until_a_dozen_outputs_have_ended() -> None:
    seen = OutputHistory(32)
    assert seen.lengths().remaining_of(0) == 32
    for _ in range(11):
        seen.add(5)
    assert seen.lengths().remaining_of(0) == 32
    seen.add(5)
    assert seen.lengths().remaining_of(0) == 5


@pytest.mark.parametrize(
    ("so_far", "remaining"),
    [
        (0, 6),  # of 1 2 3 4 5 6 7 8, the sixth
        (1, 6),  # of 2 .. 8, the sixth of seven: 7
        (4, 3),  # of 5 6 7 8, the third: 7
        (6, 2),  # of 7 8, the second
        (7, 1),
        (8, 8),  # longer than all: as much again
        (50, 50),
    ],
)
def test_the_remaining_length_is_the_upper_quartile_of_the_longer_outputs(
    so_far: int, remaining: int
) -> None:
    seen = recent(8, 3, 1, 6, 2, 7, 5, 4)
    assert seen.remaining_of(so_far) == remaining
    assert seen.remaining(np.array([0, so_far])).tolist() == [6, remaining]


def test_outputs_of_one_length_predict_that_length() -> None:
    seen = recent(*[40] * 10)
    assert [seen.remaining_of(so_far) for so_far in (0, 10, 39)] == [40, 30, 1]


def test_unfinished_outputs_count_if_they_are_longer_than_all_ended_ones() -> None:
    """Two short outputs ended; two unfinished ones have 10 and 12 tokens, and count as 20 and 24."""
    seen = recent(2, 3).with_unfinished(np.array([12, 1, 3, 10]))
    assert seen.lengths.tolist() == [2, 3, 20, 24]
    assert (seen.remaining_of(0), seen.remaining_of(12)) == (20, 12)
    assert recent(2, 30).with_unfinished(np.array([10])).lengths.tolist() == [2, 30]


def test_old_outputs_are_forgotten() -> None:
    seen = OutputHistory(32)
    for length in (*[1_000] * HISTORY, *[3] * HISTORY):
        seen.add(length)
    assert seen.lengths().lengths.tolist() == [3] * HISTORY


def test_at_least_one_token_is_always_expected() -> None:
    seen = recent(1, 1, 1)
    assert [seen.remaining_of(so_far) for so_far in range(4)] == [1, 1, 2, 3]

"""Sampling in the numpy backend: cuts, ties, the draw and log-probabilities."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from transom.ops.philox import uniform
from transom.ops.protocol import SamplingRows
from transom.ops.reference import ReferenceOps

F32 = NDArray[np.float32]
OPS = ReferenceOps()


def how(
    rows: int = 1,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seed: int = 0,
    position: int = 0,
) -> SamplingRows:
    """The same parameters for every row; positions ascend from `position`."""
    return SamplingRows(
        temperature=np.full(rows, temperature, dtype=np.float32),
        top_k=np.full(rows, top_k, dtype=np.int32),
        top_p=np.full(rows, top_p, dtype=np.float32),
        min_p=np.full(rows, min_p, dtype=np.float32),
        seed=np.full(rows, seed, dtype=np.uint64),
        position=np.arange(position, position + rows, dtype=np.int32),
    )


def draws(logits: list[float], count: int, **parameters: float) -> NDArray[np.int32]:
    rows = np.tile(np.array(logits, dtype=np.float32), (count, 1))
    return OPS.sample(rows, how(count, **parameters))[0]  # type: ignore[arg-type]


def test_greedy_takes_the_lowest_id_of_the_highest_logit() -> None:
    logits = np.array([[1, 3, 3, 2], [5, 5, 5, 5], [-0.0, 0.0, -1, -2], [-3, -2, -1, -1]], dtype=np.float32)
    tokens, _ = OPS.sample(logits, how(4, temperature=0))
    assert tokens.tolist() == [1, 0, 0, 2] and tokens.dtype == np.int32


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_log_probabilities_are_those_of_the_untempered_distribution(temperature: float) -> None:
    logits = (np.random.default_rng(1).standard_normal((20, 1003)) * 8).astype(np.float32)
    tokens, logprobs = OPS.sample(logits, how(20, temperature=temperature, seed=3))
    for row, token in enumerate(tokens):
        wide = logits[row].astype(np.float64)
        exact = wide[token] - wide.max() - math.log(sum(math.exp(x - wide.max()) for x in wide))
        assert logprobs[row] == pytest.approx(exact, rel=1e-6, abs=2e-7)
    assert logprobs.dtype == np.float32


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    logits = (np.random.default_rng(2).standard_normal((6, 300)) * 3).astype(np.float32)
    tokens, logprobs = OPS.sample(logits, how(6, seed=11, top_p=0.9))
    for row in range(6):
        token, logprob = OPS.sample(logits[row : row + 1], how(seed=11, top_p=0.9, position=row))
        assert token[0] == tokens[row] and logprob[0] == logprobs[row]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_tempered_distribution(temperature: float) -> None:
    """Chi-square of 2,000 draws over 8 tokens: one fair generator in a thousand exceeds 24.3."""
    logits = [0.0, 1.0, -1.0, 2.0, 0.5, -2.0, 1.5, 0.0]
    counts = np.bincount(draws(logits, 2_000, temperature=temperature, seed=5), minlength=8)
    weights = np.exp(np.array(logits) / temperature)
    expected = 2_000 * weights / weights.sum()
    assert ((counts - expected) ** 2 / expected).sum() < 24.3


def test_seeds_differ_and_repeat() -> None:
    logits = [0.0] * 50
    first = draws(logits, 100, seed=1)
    assert np.array_equal(first, draws(logits, 100, seed=1))
    assert not np.array_equal(first, draws(logits, 100, seed=2))
    assert not np.array_equal(first, draws(logits, 100, seed=1 + 2**32))


def test_the_draw_depends_on_position_not_on_the_row() -> None:
    logits = [0.0] * 50
    assert np.array_equal(draws(logits, 100, seed=1)[40:60], draws(logits, 20, seed=1, position=40))


def test_the_draw_is_the_first_cumulated_weight_above_u() -> None:
    """Four equal tokens, in order of id: the quarter that holds u is the token."""
    got = draws([1.0, 1.0, 1.0, 1.0], 500, seed=9)
    assert got.tolist() == [int(4 * uniform(9, position)) for position in range(500)]


def test_a_cumulated_weight_equal_to_u_is_not_above_it() -> None:
    """At this position u is 0xC5DF / 65536 exactly: the first 0xC5DF equal tokens are skipped."""
    assert uniform(0, 167078) == 0xC5DF / 65536
    tokens, _ = OPS.sample(np.zeros((1, 65536), dtype=np.float32), how(position=167078))
    assert tokens[0] == 0xC5DF


def test_tokens_are_ordered_by_logit_before_the_draw() -> None:
    got = draws([0.0, 10.0, 10.0], 500, seed=9, top_k=2)
    assert got.tolist() == [1 + int(2 * uniform(9, position)) for position in range(500)]


@pytest.mark.parametrize(
    ("top_k", "kept"),
    [
        (0, {0, 1, 2, 3, 4}),
        (1, {3}),
        (2, {1, 3}),
        (3, {1, 2, 3}),
        (5, {0, 1, 2, 3, 4}),
        (99, {0, 1, 2, 3, 4}),
    ],
)
def test_top_k_keeps_the_first_k_lowest_ids_first_among_equals(top_k: int, kept: set[int]) -> None:
    assert set(draws([0.0, 1.0, 1.0, 1.5, 0.0], 500, top_k=top_k).tolist()) == kept


def test_ties_are_cut_by_id_among_thousands() -> None:
    logits = np.zeros((50, 5000), dtype=np.float32)
    logits[:, ::2] = 1
    tokens, _ = OPS.sample(logits, how(50, top_k=10))
    assert set(tokens.tolist()) <= set(range(0, 20, 2))


LOGITS_OF_TENTHS = [math.log(p) for p in (0.1, 0.4, 0.2, 0.3)]


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [
        (0.0, {1}),
        (0.3, {1}),
        (0.45, {1, 3}),
        (0.69, {1, 3}),
        (0.75, {1, 2, 3}),
        (0.95, {0, 1, 2, 3}),
        (1.0, {0, 1, 2, 3}),
    ],
)
def test_top_p_keeps_the_shortest_prefix_that_reaches_p(top_p: float, kept: set[int]) -> None:
    assert set(draws(LOGITS_OF_TENTHS, 300, top_p=top_p).tolist()) == kept


@pytest.mark.parametrize(
    ("min_p", "kept"), [(0.0, {0, 1, 2, 3}), (0.3, {1, 2, 3}), (0.6, {1, 3}), (0.8, {1}), (1.0, {1})]
)
def test_min_p_keeps_tokens_with_at_least_that_share_of_the_most_likely_one(
    min_p: float, kept: set[int]
) -> None:
    assert set(draws(LOGITS_OF_TENTHS, 300, min_p=min_p).tolist()) == kept


def test_min_p_compares_tempered_weights() -> None:
    assert set(draws(LOGITS_OF_TENTHS, 300, min_p=0.6, temperature=3.0).tolist()) == {0, 1, 2, 3}


def test_top_p_reaches_p_exactly_and_stops() -> None:
    """Two of four equal tokens are exactly half: the third is not kept."""
    assert set(draws([1.0] * 4, 500, top_p=0.5).tolist()) == {0, 1}


def test_top_p_counts_only_what_top_k_and_min_p_left() -> None:
    """0.4 is 57% of the 0.7 that top_k keeps, which exceeds 0.5; it would not be half of the whole."""
    assert set(draws(LOGITS_OF_TENTHS, 500, top_k=2, top_p=0.5).tolist()) == {1}
    assert set(draws(LOGITS_OF_TENTHS, 500, min_p=0.7, top_p=0.5).tolist()) == {1}


def test_a_token_far_below_is_never_drawn() -> None:
    assert set(draws([0.0, -88.0, -200.0, -math.inf], 300).tolist()) == {0}
    assert set(draws([0.0, -1.0], 300, temperature=1e-3).tolist()) == {0}
    assert set(draws([0.0, -1.0], 300, temperature=1e-45).tolist()) == {0}


def test_a_huge_temperature_is_uniform() -> None:
    assert set(draws([0.0, -30.0, 30.0], 300, temperature=1e30).tolist()) == {0, 1, 2}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_row_with_nan_or_infinity_gives_token_0_and_nan(temperature: float, bad: float) -> None:
    logits = np.array([[1, 2, bad], [1, 2, 3], [-math.inf] * 3], dtype=np.float32)
    tokens, logprobs = OPS.sample(logits, how(3, temperature=temperature, top_k=1))
    assert tokens.tolist() == [0, 2, 0]
    assert np.isnan(logprobs[[0, 2]]).all() and np.isfinite(logprobs[1])


def test_minus_infinity_is_a_legal_logit() -> None:
    logits = np.array([[-math.inf, 1, -math.inf]], dtype=np.float32)
    for temperature in (0.0, 1.0):
        tokens, logprobs = OPS.sample(logits, how(temperature=temperature))
        assert tokens[0] == 1 and logprobs[0] == 0

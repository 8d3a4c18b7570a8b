"""Native sampling: the reference's tokens and log-probabilities, for every cut and at every edge."""

import numpy as np
import pytest
from numpy.typing import NDArray

from transom import _native
from transom.ops.native import NativeOps
from transom.ops.philox import uniform
from transom.ops.protocol import SamplingRows
from transom.ops.reference import ReferenceOps

F32 = NDArray[np.float32]
REFERENCE = ReferenceOps()


def how(
    rows: int, temperature: float, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> SamplingRows:
    return SamplingRows(
        temperature=np.full(rows, temperature, dtype=np.float32),
        top_k=np.full(rows, top_k, dtype=np.int32),
        top_p=np.full(rows, top_p, dtype=np.float32),
        min_p=np.full(rows, min_p, dtype=np.float32),
        seed=np.arange(rows, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15),
        position=np.arange(rows, dtype=np.int32) + 11,
    )


def assert_chosen_alike(native: NativeOps, logits: F32, choice: SamplingRows) -> None:
    tokens, logprobs = native.sample(logits, choice)
    expected_tokens, expected_logprobs = REFERENCE.sample(logits, choice)
    np.testing.assert_array_equal(tokens, expected_tokens)
    np.testing.assert_array_equal(logprobs, expected_logprobs)


CUTS = [
    (0, 1.0, 0.0),
    (1, 1.0, 0.0),
    (40, 1.0, 0.0),
    (0, 0.9, 0.0),
    (0, 0.0, 0.0),
    (0, 1.0, 0.05),
    (0, 1.0, 1.0),
    (40, 0.5, 0.01),
    (5000, 0.99, 0.0),
    (0, 0.9999, 1e-6),
    (999, 0.3, 0.2),
]


@pytest.mark.parametrize(("top_k", "top_p", "min_p"), CUTS)
def test_sampled_tokens_are_the_references(native: NativeOps, top_k: int, top_p: float, min_p: float) -> None:
    rng = np.random.default_rng(top_k)
    for size in (1, 15, 1000, 4099):
        for spread in (0.01, 1.0, 8.0):
            logits = (rng.standard_normal((6, size)) * spread).astype(np.float32)
            logits[1] = np.round(logits[1])  # many ties
            logits[2, size // 2 :] = -np.inf
            for temperature in (0.0, 1e-5, 0.7, 1.0, 3.0):
                assert_chosen_alike(native, logits, how(6, temperature, top_k, top_p, min_p))


def test_logits_that_differ_less_than_their_distance_to_the_highest_keep_their_order(
    native: NativeOps,
) -> None:
    logits = np.full((64, 600), 1e-9, dtype=np.float32)
    logits *= np.random.default_rng(0).permuted(np.tile(np.arange(1, 601, dtype=np.float32), (64, 1)), axis=1)
    logits[:, 7] = 5.0
    assert_chosen_alike(native, logits, how(64, 3.0, top_k=50))


def test_zeros_of_both_signs_are_one_logit(native: NativeOps) -> None:
    logits = np.where(np.arange(64 * 50).reshape(64, 50) % 3 == 0, np.float32(-0.0), np.float32(0.0))
    assert_chosen_alike(native, logits, how(64, 0.0))
    assert_chosen_alike(native, logits, how(64, 1.0, top_k=20))


def test_tokens_of_a_large_vocabulary_are_the_references(native: NativeOps) -> None:
    rng = np.random.default_rng(3)
    logits = (rng.standard_normal((4, 262_144)) * np.array([[0.5], [3], [5], [1]])).astype(np.float32)
    for choice in (how(4, 0.0), how(4, 1.0), how(4, 0.8, top_p=0.95), how(4, 1.3, top_k=64, min_p=0.02)):
        assert_chosen_alike(native, logits, choice)


def test_a_row_with_nan_samples_token_0_and_changes_no_other_row(native: NativeOps) -> None:
    logits = np.random.default_rng(0).standard_normal((5, 100)).astype(np.float32)
    logits[0, 99], logits[1, 50], logits[2] = np.nan, np.inf, -np.inf
    for temperature in (0.0, 1.0):
        assert_chosen_alike(native, logits, how(5, temperature))
        tokens, logprobs = native.sample(logits, how(5, temperature))
        assert tokens[:3].tolist() == [0, 0, 0] and np.isnan(logprobs[:3]).all()
        assert np.isfinite(logprobs[3:]).all()


@pytest.mark.parametrize("top", [0, 1, 7])
def test_logprobs_are_the_references_and_equal_those_of_sampling(native: NativeOps, top: int) -> None:
    rng = np.random.default_rng(top)
    for size in (7, 15, 1000, 4099):
        logits = (rng.standard_normal((6, size)) * 4).astype(np.float32)
        logits[1] = np.round(logits[1])  # many ties
        logits[2, 3:] = -np.inf
        logits[3, 5] = np.nan
        logits[4] = 0
        tokens, logprobs = native.sample(logits, how(6, 1.0))
        found = native.logprobs(logits, tokens, top)
        for ours, expected in zip(found, REFERENCE.logprobs(logits, tokens, top), strict=True):
            np.testing.assert_array_equal(ours, expected)
        np.testing.assert_array_equal(found[0], logprobs)
        if top:
            greedy, of_greedy = native.sample(logits, how(6, 0.0))
            np.testing.assert_array_equal(found[1][:, 0], greedy)
            np.testing.assert_array_equal(found[2][:, 0], of_greedy)


def test_the_generator_is_the_references() -> None:
    for seed in (0, 1, 2**32, 2**64 - 1, 0x0123456789ABCDEF):
        for position in (0, 1, 77, 2**31 - 1):
            assert _native.uniform(seed, position) == uniform(seed, position)

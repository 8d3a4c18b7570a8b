"""Exponential, logarithm, folded sums and the generator: accuracy, edges and order."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from transom.ops.elementary import exp, folded_dot, folded_sum, log64, tanh
from transom.ops.philox import philox, uniform

F32 = NDArray[np.float32]


def slow_fma(a: np.float32, b: np.float32, c: np.float32) -> np.float32:
    """In extended precision: independent of the code under test."""
    return np.float32(np.longdouble(a) * np.longdouble(b) + np.longdouble(c))


def test_exp_is_within_1_5_units_in_the_last_place() -> None:
    x = np.linspace(-87, 88, 400_001).astype(np.float32)
    exact = np.exp(x.astype(np.float64))
    error = np.abs(exp(x) - exact) / np.spacing(exact.astype(np.float32))
    assert error.max() < 1.5, error.max()


def test_exp_follows_the_specification_step_by_step() -> None:
    coefficients = (
        "1.9875691500e-4",
        "1.3981999507e-3",
        "8.3334519073e-3",
        "4.1665795894e-2",
        "1.6666665459e-1",
        "5.0000001201e-1",
    )
    for x in np.random.default_rng(1).uniform(-87, 88, 500).astype(np.float32):
        n = np.rint(np.float32(x * np.float32(1.4426950408889634)))
        r = slow_fma(n, np.float32(-0.693359375), x)
        r = slow_fma(n, np.float32(2.12194440e-4), r)
        p = np.float32(coefficients[0])
        for c in coefficients[1:]:
            p = slow_fma(p, r, np.float32(c))
        p = np.float32(slow_fma(p, np.float32(r * r), r) + np.float32(1))
        assert exp(np.array([x]))[0] == np.float32(math.ldexp(float(p), int(n))), x


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        (0.0, 1.0),
        (-0.0, 1.0),
        (-87.00001, 0.0),
        (-1000.0, 0.0),
        (-np.inf, 0.0),
        (np.nan, np.nan),
    ],
)
def test_exp_at_its_edges(x: float, expected: float) -> None:
    np.testing.assert_equal(exp(np.array([x], dtype=np.float32))[0], np.float32(expected))


def test_exp_saturates_above_88() -> None:
    x = np.array([88, 88.5, 1e30, np.inf], dtype=np.float32)
    got = exp(x)
    assert np.isfinite(got).all() and (got == got[0]).all()


def test_exp_just_inside_the_lower_edge_is_normal() -> None:
    assert exp(np.array([-87], dtype=np.float32))[0] > np.finfo(np.float32).tiny


def test_tanh_is_close_and_saturates() -> None:
    x = np.linspace(-20, 20, 20_001).astype(np.float32)
    np.testing.assert_allclose(tanh(x), np.tanh(x.astype(np.float64)), rtol=0, atol=2e-7)
    assert (tanh(np.array([-np.inf, np.inf, 200], dtype=np.float32)) == [-1, 1, 1]).all()


def test_log_agrees_with_the_library_to_an_ulp() -> None:
    values = 1 + np.random.default_rng(2).exponential(size=2000) ** 8
    for z in [1.0, 1.4142135623730951, 2.0, 2.0**40, 262144.0, *values.tolist()]:
        assert log64(z) == pytest.approx(math.log(z), rel=4e-16, abs=2e-16)


def test_log_of_one_is_exactly_zero() -> None:
    assert log64(1.0) == 0.0


def test_a_folded_dot_adds_in_lanes_and_then_folds() -> None:
    rng = np.random.default_rng(3)
    for width in (16, 48, 256):
        a, b = (rng.standard_normal(width).astype(np.float32) for _ in range(2))
        lanes = [np.float32(0)] * 16
        for k in range(width):
            lanes[k % 16] = slow_fma(a[k], b[k], lanes[k % 16])
        for half in (8, 4, 2, 1):
            lanes = [np.float32(lanes[j] + lanes[j + half]) for j in range(half)]
        assert folded_dot(a, b) == lanes[0]


@pytest.mark.parametrize("width", [1, 15, 16, 17, 64, 100])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_folded_sum_adds_in_lanes_and_then_folds(width: int, dtype: type[np.floating]) -> None:
    x = np.random.default_rng(width).exponential(size=width).astype(dtype)
    lanes = [dtype(0)] * 16
    for k in range(width):
        lanes[k % 16] = lanes[k % 16] + x[k]
    for half in (8, 4, 2, 1):
        lanes = [lanes[j] + lanes[j + half] for j in range(half)]
    assert folded_sum(x) == lanes[0] and folded_sum(x).dtype == dtype


def test_philox_equals_the_published_test_vectors() -> None:
    """Known answers of the authors' Random123 library, philox4x32 with 10 rounds."""
    ones = 0xFFFFFFFF
    assert philox((0, 0, 0, 0), (0, 0)) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    assert philox((ones,) * 4, (ones, ones)) == (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)
    pi = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
    assert philox(pi, (0xA4093822, 0x299F31D0)) == (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)


def test_uniform_uses_both_halves_of_the_seed_and_the_position() -> None:
    assert uniform(0, 0) == 0x6627E8D5 / 2**32
    assert len({uniform(seed, position) for seed in (0, 1, 2**32, 2**63) for position in range(50)}) == 200

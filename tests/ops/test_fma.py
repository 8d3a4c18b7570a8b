"""fma against exact rational arithmetic."""

from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray

from transom.ops.fma import fma

F32 = NDArray[np.float32]


def nearest_float32(exact: Fraction) -> np.float32:
    """Round to nearest, ties to even, as IEEE 754 defines it: by the spacing of floats around `exact`."""
    size = abs(exact)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent
    spacing = Fraction(2) ** max(exponent - 23, -149)
    rounded = round(size / spacing) * spacing  # round() of a Fraction takes ties to even
    if rounded >= 2**128:
        return np.float32(np.inf if exact > 0 else -np.inf)
    magnitude = np.float32(float(rounded))
    return magnitude if exact > 0 else np.float32(-magnitude)


def exact_fma(a: np.float32, b: np.float32, c: np.float32) -> np.float32:
    exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    if exact != 0:
        return nearest_float32(exact)
    with np.errstate(under="ignore"):
        sign_of_product = np.copysign(np.float32(1), a) * np.copysign(np.float32(1), b)
    both_negative = sign_of_product < 0 and np.signbit(c)
    return np.float32(-0.0 if both_negative else 0.0)


def check(a: F32, b: F32, c: F32) -> None:
    expected = np.array([exact_fma(*abc) for abc in zip(a, b, c, strict=True)], dtype=np.float32)
    got = fma(a, b, c)
    wrong = np.flatnonzero(got.view(np.int32) != expected.view(np.int32))
    assert len(wrong) == 0, [(a[i], b[i], c[i], got[i], expected[i]) for i in wrong[:3]]


def finite_bits(rng: np.random.Generator, count: int) -> F32:
    values = rng.integers(0, 2**32, count, dtype=np.uint32).view(np.float32)
    return np.where(np.isfinite(values), values, np.float32(1.5))


def test_any_finite_bits_round_once() -> None:
    rng = np.random.default_rng(1)
    check(finite_bits(rng, 4000), finite_bits(rng, 4000), finite_bits(rng, 4000))


def test_sums_of_like_size_round_once() -> None:
    rng = np.random.default_rng(2)
    a, b, c = (rng.standard_normal(6000).astype(np.float32) for _ in range(3))
    check(a, b, c * np.float32(2.0) ** rng.integers(-50, 50, 6000).astype(np.float32))


def test_cancellation_leaves_the_exact_remainder() -> None:
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal(3000).astype(np.float32) for _ in range(2))
    check(a, b, -(a * b))


def test_near_ties_are_decided_by_what_float64_drops() -> None:
    rng = np.random.default_rng(4)
    halves = rng.integers(2**23, 2**24, 4000).astype(np.float32)
    half_unit = np.float32(0.5) * rng.choice([-1, 1], 4000).astype(np.float32)
    check(half_unit, np.ones(4000, dtype=np.float32), halves)  # true ties
    nudge = np.float32(2.0**-23) * rng.integers(-3, 4, 4000).astype(np.float32)
    check(half_unit, np.float32(1) + nudge, halves)  # within 53 bits of a tie
    low = np.float32(2.0**-24) * (1 + np.float32(2.0**-23) * rng.integers(-3, 4, 4000).astype(np.float32))
    scale = np.float32(2.0) ** rng.integers(-80, 80, 4000).astype(np.float32)
    check(low * scale, 1 + nudge, scale)  # half a unit above 1, and dust far below


def dusty_halves(exponent: int) -> tuple[F32, F32]:
    """Pairs whose product is +-2**exponent * (1 - i**2 * 2**-46): just below a power of two."""
    i = np.arange(-20, 21).astype(np.float32) * np.float32(2.0**-23)
    first, second = np.float32(2.0 ** (exponent // 2)), np.float32(2.0 ** (exponent - exponent // 2))
    return np.concatenate([(1 + i) * first, -(1 + i) * first]), np.tile((1 - i) * second, 2)


@pytest.mark.parametrize("exponent", [0, 17, 40, -60, -125, 100])
def test_a_remainder_that_float64_drops_breaks_a_tie(exponent: int) -> None:
    """The product is slightly less than half a unit of c: the float64 sum is a tie, the exact sum is not."""
    a, b = dusty_halves(exponent - 24)
    for odd in (0, 1, 2, 3):
        c = np.float32(2.0**exponent * (1 + odd * 2.0**-23))
        check(a, b, np.full_like(a, c))
        check(a, b, np.full_like(a, -c))


@pytest.mark.parametrize("units", [0, 1, 2, 3, 2**21, 2**21 + 1, 2**22, 2**22 + 1, 2**23 - 1, 2**23])
def test_a_remainder_breaks_a_tie_of_subnormals(units: int) -> None:
    a, b = dusty_halves(-150)
    c = np.float32(units * 2.0**-149)
    check(a, b, np.full_like(a, c))
    check(a, b, np.full_like(a, -c))


def test_subnormal_results_round_once() -> None:
    rng = np.random.default_rng(5)
    a = (rng.standard_normal(6000) * 2.0**-70).astype(np.float32)
    b = (rng.standard_normal(6000) * 2.0**-70).astype(np.float32)
    c = (rng.integers(-20, 21, 6000) * 2.0**-149).astype(np.float32)
    check(a, b, c)
    odd = (2 * rng.integers(-300, 301, 6000) + 1).astype(np.float32)
    check(odd * np.float32(2.0**-100), np.full(6000, 2.0**-50, dtype=np.float32), c)  # ties of 2**-149
    check(odd * np.float32(2.0**-75), odd * np.float32(2.0**-75), c)


def test_results_near_the_smallest_normal_and_the_largest_float_round_once() -> None:
    rng = np.random.default_rng(6)
    small = np.float32(2.0**-126) + (rng.integers(-9, 10, 3000) * 2.0**-149).astype(np.float32)
    check(
        (rng.standard_normal(3000) * 2.0**-75).astype(np.float32), np.full(3000, 2.0**-75, np.float32), small
    )
    largest = np.full(3000, np.finfo(np.float32).max)
    check(
        rng.standard_normal(3000).astype(np.float32) * np.float32(2.0**52),
        np.full(3000, 2.0**52, np.float32),
        largest,
    )


def test_zeros_have_the_sign_of_ieee_754() -> None:
    zeros = np.array([0.0, -0.0, 1.0, -1.0], dtype=np.float32)
    a, b, c = (axis.ravel() for axis in np.meshgrid(zeros, zeros, zeros))
    check(a, b, c)


@pytest.mark.parametrize(
    ("a", "b", "c", "expected"),
    [
        (np.inf, 1, 1, np.inf),
        (np.inf, -2, 1, -np.inf),
        (np.inf, 0, 1, np.nan),
        (np.inf, 1, -np.inf, np.nan),
        (1, 1, -np.inf, -np.inf),
        (np.nan, 1, 1, np.nan),
        (1, 1, np.nan, np.nan),
        (3e38, 10, -np.inf, -np.inf),
        (3e38, 10, 0, np.inf),
        (3e38, 2, -3e38, np.float32(3e38)),
    ],
)
def test_infinities_and_nan_follow_ieee_754(a: float, b: float, c: float, expected: float) -> None:
    np.testing.assert_equal(fma(np.float32(a), np.float32(b), np.float32(c)), np.float32(expected))


def test_operands_broadcast() -> None:
    rng = np.random.default_rng(7)
    a, b, c = (rng.standard_normal(shape).astype(np.float32) for shape in ((5, 1), (7,), (3, 1, 1)))
    got = fma(a, b, c)
    assert got.shape == (3, 5, 7) and got.dtype == np.float32
    full = (x.ravel() for x in np.broadcast_arrays(a, b, c))
    assert (got.ravel() == fma(*full)).all()

"""Exponential, hyperbolic tangent, logarithm and folded sums, to the bit as `protocol` specifies them."""

import numpy as np
from numpy.typing import NDArray

from transom.ops.fma import fma
from transom.ops.protocol import EXP, F32, LANES, LN2, LN2_HIGH, LN2_LOW, LOG, LOG2E, SQRT_HALF

ONE = np.float32(1)
TWO = np.float32(2)
ZERO = np.float32(0)


@np.errstate(over="ignore", under="ignore", invalid="ignore")
def exp(x: F32) -> F32:
    """e ** x, within 2 units in the last place; 0 below -87, e ** 88 above 88."""
    x = np.minimum(x, np.float32(88))
    inside = x >= np.float32(-87)
    n = np.rint(x * LOG2E)
    r = fma(n, -LN2_LOW, fma(n, -LN2_HIGH, x))
    p: F32 = np.full_like(r, EXP[0])
    for c in EXP[1:]:
        p = fma(p, r, c)
    p = fma(p, r * r, r) + ONE
    return np.where(inside, p * _power_of_two(np.where(inside, n, ZERO)), np.where(np.isnan(x), x, ZERO))


def _power_of_two(n: F32) -> F32:
    return np.asarray((n.astype(np.int32) + 127) << 23).view(np.float32)


@np.errstate(over="ignore", under="ignore", invalid="ignore")
def tanh(x: F32) -> F32:
    """1 - 2 / (exp(2 * x) + 1): small in absolute error, not in relative."""
    return ONE - TWO / (exp(TWO * x) + ONE)


def log64(z: float) -> float:
    """Natural logarithm of a finite z >= 1, of basic float64 operations: math libraries differ in bits."""
    m, e = np.frexp(np.float64(z))
    m, e = (m * 2, e - 1) if m < SQRT_HALF else (m, e)
    s = (m - 1) / (m + 1)
    t = s * s
    p = np.float64(LOG[0])
    for c in LOG[1:]:
        p = p * t + c
    return float(e * LN2 + 2 * (s * p))


def fold(lanes: NDArray[np.floating]) -> NDArray[np.floating]:
    """Sum of 16 lanes (the last axis): j += j + 8, then + 4, + 2, + 1."""
    for half in (8, 4, 2, 1):
        lanes = lanes[..., :half] + lanes[..., half : 2 * half]
    return np.asarray(lanes[..., 0])


def folded_dot(a: F32, b: F32) -> F32:
    """Dot over the last axis, a multiple of 16, broadcast over the other axes."""
    assert a.shape[-1] == b.shape[-1] and a.shape[-1] % LANES == 0, (a.shape, b.shape)
    lanes: F32 = np.zeros(LANES, dtype=np.float32)
    for start in range(0, a.shape[-1], LANES):
        part = slice(start, start + LANES)
        lanes = fma(a[..., part], b[..., part], lanes)
    return fold(lanes).astype(np.float32, copy=False)


def folded_sum(x: NDArray[np.floating]) -> NDArray[np.floating]:
    """Sum over the last axis, of any length, in its own dtype: lane j % 16 adds element j, ascending."""
    short = -x.shape[-1] % LANES
    padded = np.concatenate([x, np.zeros((*x.shape[:-1], short), dtype=x.dtype)], axis=-1)
    columns = padded.reshape(*x.shape[:-1], -1, LANES)
    lanes = np.zeros((*x.shape[:-1], LANES), dtype=x.dtype)
    for step in range(columns.shape[-2]):
        lanes = lanes + columns[..., step, :]
    return fold(lanes)

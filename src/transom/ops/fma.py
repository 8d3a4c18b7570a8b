"""Float32 fused multiply-add on numpy arrays, exact: one rounding of a * b + c, to nearest even.

numpy has no fma. The product of two float32 is exact in float64 (48 bits of 53, exponents in range), so only
the sum and the narrowing round. If the sum is rounded *to odd*, both together have the effect of one rounding
(Boldo and Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd",
IEEE Transactions on Computers 57 (4), 2008): 53 bits are at least 24 + 2, and fewer are kept for subnormals.
"""

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]

_DROPPED = np.int64((1 << 29) - 1)
_HALF = np.int64(1 << 28)
_SMALLEST_NORMAL = np.float32(2.0**-126)


@np.errstate(over="ignore", under="ignore", invalid="ignore")
def fma(a: F32 | np.float32, b: F32 | np.float32, c: F32 | np.float32) -> F32:
    """a * b + c with one rounding, elementwise, broadcast. Infinities and NaN follow IEEE 754."""
    product: F64 = np.multiply(a, b, dtype=np.float64)
    total: F64 = np.asarray(np.add(product, c, dtype=np.float64))
    result = np.asarray(total.astype(np.float32))
    doubtful = _doubtful(total, result)
    if doubtful.any():
        wide = np.broadcast_to(np.asarray(c, dtype=np.float64), total.shape)
        product = np.broadcast_to(product, total.shape)
        result[doubtful] = _sum_to_odd(product[doubtful], wide[doubtful]).astype(np.float32)
    return result


def _doubtful(total: F64, result: F32) -> NDArray[np.bool_]:
    """Where rounding twice may differ from rounding once: sums that look like ties, and subnormal results.

    These are rare, so `fma` does the slow rounding to odd for them only.
    """
    ties = (total.view(np.int64) & _DROPPED) == _HALF
    small = np.abs(result) <= _SMALLEST_NORMAL
    if small.any():
        ties |= small & (total != 0)
    return np.asarray(ties)


def _sum_to_odd(a: F64, b: F64) -> F64:
    """a + b, rounded to odd: if inexact, the neighbour with a last bit of 1."""
    total = a + b
    b_seen = total - a
    # TwoSum (Knuth): a + b == total + error exactly; error is NaN if total is not finite.
    error = (a - (total - b_seen)) + (b - b_seen)
    bits = total.view(np.int64)
    even = (bits & 1) == 0
    outward = np.where((error > 0) == (total > 0), 1, -1)
    odd = np.where(even & (np.abs(error) > 0), bits + outward, bits)
    return odd.view(np.float64)

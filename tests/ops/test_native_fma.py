"""Native fma is one rounding, also where it is made of float64: the reference's bits on hard cases."""

import numpy as np
import pytest
from numpy.typing import NDArray

from transom.ops.native import NativeOps
from transom.ops.pack import pack_float
from transom.ops.reference import ReferenceOps

F32 = NDArray[np.float32]
REFERENCE = ReferenceOps()


def any_bits(rng: np.random.Generator, count: int) -> F32:
    return rng.integers(0, 2**32, count, dtype=np.uint32).view(np.float32)


def close_to_one(rng: np.random.Generator, count: int) -> F32:
    """Numbers near 1 with few bits set, so that products end in long runs of the same bit."""
    return (1 + rng.integers(-9, 10, count) * 2.0 ** rng.integers(-23, -10, count)).astype(np.float32)


def cases() -> dict[str, tuple[F32, F32, F32]]:
    """Triples (a, b, c) for a * b + c: a and c per row, b per output."""
    rng = np.random.default_rng(0)
    rows, outputs = 500, 37
    near, scale = close_to_one(rng, rows), 2.0 ** rng.integers(-60, 60, rows)
    far = (near * scale * 2.0 ** rng.integers(-60, 60, rows)).astype(np.float32)
    with np.errstate(all="ignore"):
        tiny = any_bits(rng, rows) * np.float32(1e-38)
    return {
        "any bits": (any_bits(rng, rows), any_bits(rng, outputs), any_bits(rng, rows)),
        "apart": ((near * scale).astype(np.float32), close_to_one(rng, outputs), far),
        "cancelling": (near, close_to_one(rng, outputs), -close_to_one(rng, rows)),
        "subnormal": (tiny, close_to_one(rng, outputs), -tiny),
        "overflowing": (near * np.float32(3e38), close_to_one(rng, outputs), -near * np.float32(1e35)),
    }


@pytest.mark.parametrize("case", cases())
def test_a_product_and_a_sum_are_rounded_once(native: NativeOps, case: str) -> None:
    a, b, c = cases()[case]
    weights = pack_float(np.stack([np.ones_like(b), b], axis=1))  # c * 1 + 0, then a * b + c
    x = np.stack([c, a], axis=1)
    with np.errstate(all="ignore"):
        expected = REFERENCE.matmul(x, weights)
    got = native.matmul(native.prepare(x, weights), weights)
    assert isinstance(got, np.ndarray) and isinstance(expected, np.ndarray)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    seen = ~np.isnan(expected)
    np.testing.assert_array_equal(got[seen].view(np.uint32), expected[seen].view(np.uint32))

"""Packing is a permutation: unpacking returns the original arrays."""

import numpy as np
import pytest

from transom.ops.pack import (
    concatenate,
    dequantize,
    pack,
    pack_float,
    rows_of,
    unpack,
    unpack_float,
)
from transom.ops.protocol import PackedMatrix, Precision


def random_matrix(
    seed: int, out: int, width: int, group: int, *, zero_offsets: bool, precision: Precision = Precision.INT8
) -> PackedMatrix:
    rng = np.random.default_rng(seed)
    codes = rng.integers(-128, 128, (out, width)).astype(np.int8)
    scales = rng.standard_normal((out, width // group)).astype(np.float32)
    low = rng.standard_normal((out, width // group)).astype(np.float32) if zero_offsets else None
    return pack(codes, scales, low, group, precision)


@pytest.mark.parametrize("out", [1, 15, 16, 17, 40])
@pytest.mark.parametrize(("group", "zero_offsets"), [(16, True), (32, False)])
def test_unpack_inverts_pack(out: int, group: int, zero_offsets: bool) -> None:
    rng = np.random.default_rng(out)
    codes = rng.integers(-128, 128, (out, 96)).astype(np.int8)
    scales = rng.standard_normal((out, 96 // group)).astype(np.float32)
    low = rng.standard_normal(scales.shape).astype(np.float32) if zero_offsets else None
    got = unpack(pack(codes, scales, low, group, Precision.INT16))
    np.testing.assert_array_equal(got[0], codes)
    np.testing.assert_array_equal(got[1], scales)
    assert (got[2] is None) if low is None else np.array_equal(got[2], low)  # type: ignore[arg-type]


def test_the_layout_is_that_of_the_protocol() -> None:
    matrix = random_matrix(1, 40, 64, 16, zero_offsets=True)
    codes, scales, zero_offsets = unpack(matrix)
    assert matrix.codes.shape == (3, 16, 16, 4) and matrix.scales.shape == (3, 4, 16)
    assert zero_offsets is not None and matrix.zero_offsets is not None
    for n, k in [(0, 0), (1, 5), (17, 63), (39, 31)]:
        assert int(matrix.codes[n // 16, k // 4, n % 16, k % 4]) - 128 == codes[n, k]
        assert matrix.scales[n // 16, k // 16, n % 16] == scales[n, k // 16]
        assert matrix.zero_offsets[n // 16, k // 16, n % 16] == zero_offsets[n, k // 16]


def test_padding_is_code_zero_and_scale_zero() -> None:
    matrix = random_matrix(2, 17, 32, 32, zero_offsets=True)
    assert matrix.zero_offsets is not None
    assert (matrix.codes[1, :, 1:] == 128).all()
    assert (matrix.scales[1, :, 1:] == 0).all() and (matrix.zero_offsets[1, :, 1:] == 0).all()


@pytest.mark.parametrize("zero_offsets", [False, True])
def test_dequantize_is_scale_times_code_plus_zero_offset(zero_offsets: bool) -> None:
    matrix = random_matrix(3, 37, 64, 16, zero_offsets=zero_offsets)
    codes, scales, low = unpack(matrix)
    wide = np.repeat(scales.astype(np.float64), 16, axis=1) * codes
    if low is not None:
        wide += np.repeat(low.astype(np.float64), 16, axis=1)
    values = dequantize(matrix)
    np.testing.assert_array_max_ulp(values, wide.astype(np.float32), maxulp=1)
    picked = np.array([36, 0, 5, 5])
    np.testing.assert_array_equal(rows_of(matrix, picked), values[picked])


def test_float_matrices_come_back_and_pad_with_zeros() -> None:
    values = np.random.default_rng(4).standard_normal((19, 32)).astype(np.float32)
    matrix = pack_float(values)
    np.testing.assert_array_equal(unpack_float(matrix), values)
    assert matrix.values.shape == (2, 32, 16) and (matrix.values[1, :, 3:] == 0).all()


def test_concatenation_stacks_outputs_also_off_the_tile_boundary() -> None:
    parts = [random_matrix(seed, out, 64, 32, zero_offsets=True) for seed, out in ((5, 10), (6, 16), (7, 3))]
    joined = concatenate(parts)
    assert joined.out_features == 29 and joined.group == 32
    np.testing.assert_array_equal(dequantize(joined), np.concatenate([dequantize(part) for part in parts]))


def test_concatenation_of_different_groups_keeps_every_weight() -> None:
    parts = [
        random_matrix(8, 16, 64, 32, zero_offsets=True),
        random_matrix(9, 20, 64, 16, zero_offsets=False),
    ]
    joined = concatenate(parts)
    assert joined.group == 16 and joined.zero_offsets is not None
    np.testing.assert_array_equal(dequantize(joined), np.concatenate([dequantize(part) for part in parts]))

"""Quantized and float matmul, embedding and activation codes of the numpy backend."""

import numpy as np
import pytest
from numpy.typing import NDArray

from transom.ops.pack import dequantize, pack, pack_float, unpack
from transom.ops.protocol import Activations, Matrix, PackedMatrix, Precision
from transom.ops.reference import ReferenceOps

F32 = NDArray[np.float32]
OPS = ReferenceOps()


def slow_fma(a: np.float32, b: np.float32, c: np.float32) -> np.float32:
    """In extended precision: independent of the code under test."""
    return np.float32(np.longdouble(a) * np.longdouble(b) + np.longdouble(c))


def random_matrix(
    seed: int, out: int, width: int, group: int, precision: Precision, *, zero_offsets: bool
) -> PackedMatrix:
    rng = np.random.default_rng(seed)
    codes = rng.integers(-128, 128, (out, width)).astype(np.int8)
    scales = (rng.standard_normal((out, width // group)) * 0.01).astype(np.float32)
    low = (rng.standard_normal((out, width // group)) * 0.5).astype(np.float32) if zero_offsets else None
    return pack(codes, scales, low, group, precision)


def random_rows(seed: int, tokens: int, width: int) -> F32:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((tokens, width)) * rng.exponential(size=(tokens, 1)) * 10).astype(np.float32)


def quantized(x: F32, matrix: PackedMatrix) -> Activations:
    prepared = OPS.prepare(x, matrix)
    assert isinstance(prepared, Activations)
    return prepared


def matmul(x: F32, matrix: Matrix) -> F32:
    return OPS.matmul(OPS.prepare(x, matrix), matrix)


def slow_matmul(x: Activations, matrix: PackedMatrix) -> F32:
    """The specification of `Ops.matmul`, one scalar at a time, on Python integers."""
    codes, scales, zero_offsets = unpack(matrix)
    result = np.zeros((len(x.codes), matrix.out_features), dtype=np.float32)
    for m, n in np.ndindex(*result.shape):
        acc = np.float32(0)
        for g in range(matrix.in_features // matrix.group):
            part = range(g * matrix.group, (g + 1) * matrix.group)
            sx = x.scales[m, part.start // 32]
            dot = sum(int(x.codes[m, k]) * int(codes[n, k]) for k in part)
            acc = slow_fma(np.float32(dot), np.float32(sx * scales[n, g]), acc)
            if zero_offsets is not None:
                total = sum(int(x.codes[m, k]) for k in part)
                acc = slow_fma(np.float32(total), np.float32(sx * zero_offsets[n, g]), acc)
        result[m, n] = acc
    return result


@pytest.mark.parametrize("precision", list(Precision))
@pytest.mark.parametrize("group", [16, 32])
@pytest.mark.parametrize("zero_offsets", [False, True])
def test_matmul_equals_a_scalar_loop_to_the_bit(precision: Precision, group: int, zero_offsets: bool) -> None:
    matrix = random_matrix(1, 21, 96, group, precision, zero_offsets=zero_offsets)
    x = quantized(random_rows(2, 3, 96), matrix)
    np.testing.assert_array_equal(OPS.matmul(x, matrix), slow_matmul(x, matrix))


@pytest.mark.parametrize("precision", list(Precision))
def test_matmul_of_extreme_codes_is_exact(precision: Precision) -> None:
    """All codes at -128 and all activations at their limit: the largest possible dot."""
    codes = np.full((17, 64), -128, dtype=np.int8)
    scales = np.full((17, 2), 0.37, dtype=np.float32)
    matrix = pack(codes, scales, scales, 32, precision)
    x = quantized(np.full((2, 64), 3.3, dtype=np.float32), matrix)
    assert (x.codes == precision.code_limit).all()
    np.testing.assert_array_equal(OPS.matmul(x, matrix), slow_matmul(x, matrix))


@pytest.mark.parametrize(("precision", "tolerance"), [(Precision.INT8, 1e-2), (Precision.INT16, 5e-5)])
def test_matmul_is_close_to_float64(precision: Precision, tolerance: float) -> None:
    matrix = random_matrix(3, 300, 640, 32, precision, zero_offsets=True)
    x = random_rows(4, 5, 640)
    exact = x.astype(np.float64) @ dequantize(matrix).astype(np.float64).T
    error = np.abs(matmul(x, matrix) - exact).max(axis=1) / np.abs(exact).max(axis=1)
    assert error.max() < tolerance, error


@pytest.mark.parametrize("precision", list(Precision))
def test_a_row_does_not_depend_on_its_neighbours(precision: Precision) -> None:
    matrix = random_matrix(5, 500, 64, 16, precision, zero_offsets=True)
    x = random_rows(6, 70, 64)
    together = matmul(x, matrix)
    for rows in (slice(0, 1), slice(3, 5), slice(69, 70), slice(10, 60)):
        np.testing.assert_array_equal(matmul(x[rows], matrix), together[rows])


def test_an_output_does_not_depend_on_the_others() -> None:
    matrix = random_matrix(7, 700, 64, 32, Precision.INT8, zero_offsets=False)
    codes, scales, _ = unpack(matrix)
    x = random_rows(8, 2, 64)
    few = pack(codes[300:305], scales[300:305], None, 32, Precision.INT8)
    np.testing.assert_array_equal(matmul(x, few), matmul(x, matrix)[:, 300:305])


def test_more_rows_than_a_block_holds_are_all_computed() -> None:
    matrix = random_matrix(9, 40, 32, 32, Precision.INT8, zero_offsets=False)
    x = random_rows(10, 9000, 32)
    np.testing.assert_array_equal(matmul(x, matrix)[8990:], matmul(x[8990:], matrix))


# ---------------------------------------------------------------- activation codes


def test_activation_codes_follow_the_specification() -> None:
    for precision in Precision:
        x = random_rows(11, 4, 96)
        got = quantized(x, random_matrix(12, 16, 96, 32, precision, zero_offsets=False))
        for row, group in np.ndindex(4, 3):
            part = slice(32 * group, 32 * group + 32)
            largest = np.abs(x[row, part]).max()
            inverse = np.float32(precision.code_limit) / largest
            codes = [round(float(v * inverse)) for v in x[row, part]]
            assert got.codes[row, part].tolist() == codes
            assert got.scales[row, group] == largest / np.float32(precision.code_limit)
            assert got.sums[row, 2 * group] == sum(codes[:16])
            assert got.sums[row, 2 * group + 1] == sum(codes[16:])
        assert np.abs(got.codes).max() == precision.code_limit


def test_halves_round_to_even_codes() -> None:
    x = np.zeros((1, 32), dtype=np.float32)
    x[0, :5] = [127, 0.5, 1.5, 2.5, -0.5]
    got = quantized(x, random_matrix(13, 16, 32, 32, Precision.INT8, zero_offsets=False))
    assert got.codes[0, :5].tolist() == [127, 0, 2, 2, 0]


def test_groups_of_tiny_values_become_zeros() -> None:
    x = np.zeros((1, 96), dtype=np.float32)
    x[0, 32:64] = 9e-31
    x[0, 64:] = np.float32(1e-30)
    got = quantized(x, random_matrix(14, 16, 96, 32, Precision.INT8, zero_offsets=False))
    assert not got.codes[0, :64].any() and (got.codes[0, 64:] == 127).all()
    assert got.scales[0, 0] == 0 and got.scales[0, 1] == 0 and got.scales[0, 2] > 0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_changes_no_other_row(bad: float) -> None:
    matrix = random_matrix(15, 20, 96, 32, Precision.INT8, zero_offsets=True)
    x = random_rows(16, 3, 96)
    clean = matmul(x, matrix)
    x[1, 40] = bad
    codes = quantized(x, matrix)
    assert not codes.codes[1].any() and np.isnan(codes.scales[1]).all() and not codes.sums[1].any()
    got = matmul(x, matrix)
    assert np.isnan(got[1]).all()
    np.testing.assert_array_equal(got[[0, 2]], clean[[0, 2]])


# ---------------------------------------------------------------- floats and embedding


def test_float_matmul_adds_in_ascending_order_by_fma() -> None:
    rng = np.random.default_rng(17)
    values = rng.standard_normal((19, 40)).astype(np.float32)
    x = rng.standard_normal((3, 40)).astype(np.float32)
    got = matmul(x, pack_float(values))
    for m, n in np.ndindex(3, 19):
        acc = np.float32(0)
        for k in range(40):
            acc = slow_fma(x[m, k], values[n, k], acc)
        assert got[m, n] == acc


def test_embedding_rows_are_dequantized_then_scaled() -> None:
    matrix = random_matrix(18, 50, 64, 16, Precision.INT16, zero_offsets=True)
    codes, scales, zero_offsets = unpack(matrix)
    assert zero_offsets is not None
    tokens = np.array([49, 0, 7, 7], dtype=np.int32)
    got = OPS.embed(matrix, tokens, 25.3)
    for row, token in enumerate(tokens):
        for k in range(64):
            value = slow_fma(
                scales[token, k // 16], np.float32(codes[token, k]), zero_offsets[token, k // 16]
            )
            assert got[row, k] == value * np.float32(25.3)


def test_float_embedding_rows_are_scaled() -> None:
    values = np.random.default_rng(19).standard_normal((37, 32)).astype(np.float32)
    tokens = np.array([36, 1], dtype=np.int32)
    np.testing.assert_array_equal(OPS.embed(pack_float(values), tokens, 3.0), values[tokens] * np.float32(3))

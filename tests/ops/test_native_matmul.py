"""Native matmul, quantization and embedding: the reference's bits, alone or in a batch, on any threads."""

import numpy as np
import pytest
from numpy.typing import NDArray

from transom.ops.native import NativeOps
from transom.ops.pack import pack, pack_float
from transom.ops.protocol import LANES, Activations, FloatMatrix, Gate, PackedMatrix, Precision
from transom.ops.reference import ReferenceOps

F32 = NDArray[np.float32]
REFERENCE = ReferenceOps()
KINDS = [(p, group, zero_offsets) for p in Precision for group in (16, 32) for zero_offsets in (False, True)]
ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 13, 16, 17, 31, 48, 70)


def random(seed: int, *shape: int) -> F32:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def matrix(out: int, inner: int, precision: Precision, group: int, zero_offsets: bool) -> PackedMatrix:
    codes = np.random.default_rng(out).integers(-128, 128, (out, inner)).astype(np.int8)
    floors = random(2, out, inner // group) if zero_offsets else None
    return pack(codes, random(1, out, inner // group), floors, group, precision)


def activations(x: object) -> Activations:
    assert isinstance(x, Activations)
    return x


def unpacked(x: Activations) -> Activations:
    """Activations of the native backend in the layout that `Activations` specifies."""
    tokens, groups, _ = x.codes.shape
    raw = x.codes.view(np.int8)
    if x.precision == Precision.INT8:
        codes, scales = raw[:, :, :32].astype(np.int16), raw[:, :, 32:36]
    else:
        codes = 254 * raw[:, :, :32].astype(np.int16) + raw[:, :, 32:64]
        scales = raw[:, :, 64:68]
    return Activations(
        codes=codes.reshape(tokens, -1),
        scales=np.ascontiguousarray(scales).view(np.float32).reshape(tokens, groups),
        sums=codes.reshape(tokens, -1, LANES).sum(axis=2, dtype=np.int32),
        precision=x.precision,
    )


def assert_same(left: NDArray[np.generic], right: NDArray[np.generic]) -> None:
    """Equal to the bit, including the signs of zeros; any NaN equals any NaN."""
    np.testing.assert_array_equal(left, right)
    if left.dtype == np.float32:
        np.testing.assert_array_equal(np.signbit(left[left == 0]), np.signbit(right[right == 0]))


@pytest.mark.parametrize(("precision", "group", "zero_offsets"), KINDS)
def test_packed_matmul_has_the_bits_of_the_reference(
    native: NativeOps, precision: Precision, group: int, zero_offsets: bool
) -> None:
    for out, inner in ((1, 32), (77, 96), (160, 64)):
        weights = matrix(out, inner, precision, group, zero_offsets)
        for count in ROWS:
            x = random(count, count, inner)
            expected = REFERENCE.matmul(REFERENCE.prepare(x, weights), weights)
            assert_same(native.matmul(native.prepare(x, weights), weights), expected)


@pytest.mark.parametrize("precision", Precision)
def test_a_row_alone_has_the_bits_it_has_in_a_batch(native: NativeOps, precision: Precision) -> None:
    weights, x = matrix(112, 640, precision, 32, False), random(0, 300, 640)
    batch = native.matmul(native.prepare(x, weights), weights)
    for row in (0, 1, 47, 48, 149, 298, 299):
        assert_same(native.matmul(native.prepare(x[row : row + 1].copy(), weights), weights)[0], batch[row])


@pytest.mark.parametrize(("low", "high"), [(0, 15), (-16, 15), (-32, 32), (-33, 32), (-32, 33)])
def test_codes_of_few_bits_have_the_bits_of_the_reference(native: NativeOps, low: int, high: int) -> None:
    """Kernels may multiply bytes if codes are small: no sum may saturate, and -33 and 33 are not small."""
    rng = np.random.default_rng(0)
    for group, zero_offsets in ((16, False), (32, True)):
        codes = np.where(rng.random((77, 96)) < 0.5, high, low)
        codes[:16] = high
        codes[16:32] = low
        codes[48:] = rng.integers(low, high + 1, (29, 96))
        floors = random(2, 77, 96 // group) if zero_offsets else None
        weights = pack(codes.astype(np.int8), random(1, 77, 96 // group), floors, group, Precision.INT8)
        x = random(3, 40, 96)
        x[0], x[1] = 1.0, -1.0
        assert_same(
            native.matmul(native.prepare(x, weights), weights),
            REFERENCE.matmul(REFERENCE.prepare(x, weights), weights),
        )


def test_extreme_codes_neither_saturate_nor_overflow(native: NativeOps) -> None:
    for precision, group, zero_offsets in KINDS:
        for sign in (-128, 127):
            codes = np.full((16, 64), sign, dtype=np.int8)
            ones = np.ones((16, 64 // group), np.float32)
            weights = pack(codes, ones, ones if zero_offsets else None, group, precision)
            for value in (-1.0, 1.0):
                x = np.full((1, 64), value, dtype=np.float32)
                expected = REFERENCE.matmul(REFERENCE.prepare(x, weights), weights)
                assert_same(native.matmul(native.prepare(x, weights), weights), expected)


def test_float_matmul_has_the_bits_of_the_reference(native: NativeOps) -> None:
    for out, inner in ((1, 1), (77, 33), (130, 40)):
        weights = pack_float(random(3, out, inner))
        for count in (1, 2, 4, 5, 6, 11, 70):
            x = random(count, count, inner)
            assert_same(native.matmul(native.prepare(x, weights), weights), REFERENCE.matmul(x, weights))


def odd_rows(inner: int) -> F32:
    """Rows with zeros, tiny and huge values, ties, an infinity, a NaN."""
    x = random(9, 9, inner)
    x[1, :32] = 0
    x[2] *= np.float32(1e-30)
    x[3] *= np.float32(1e37)
    x[4, :8] = np.arange(8) + np.float32(0.5)
    x[4, 8] = 127
    x[5, 40] = np.inf
    x[6, 0] = np.nan
    x[7] = 1e-40
    x[8, ::2] = -0.0
    return x


@pytest.mark.parametrize("precision", Precision)
def test_quantized_rows_are_those_of_the_reference(native: NativeOps, precision: Precision) -> None:
    weights, x = matrix(16, 96, precision, 32, True), odd_rows(96)
    got = unpacked(activations(native.prepare(x, weights)))
    expected = activations(REFERENCE.prepare(x, weights))
    assert_same(got.codes, expected.codes)
    assert_same(got.scales, expected.scales)
    assert_same(got.sums, expected.sums)
    native_bits = native.matmul(native.prepare(x, weights), weights)
    assert_same(native_bits, REFERENCE.matmul(expected, weights))
    assert np.isnan(native_bits[[5, 6]]).all() and np.isfinite(native_bits[[4, 7]]).all()


@pytest.mark.parametrize("precision", Precision)
def test_every_code_splits_into_two_planes_and_back(native: NativeOps, precision: Precision) -> None:
    limit = precision.code_limit
    codes = np.arange(-limit, limit + 1)
    rows = np.full((-(-len(codes) // 31), 32), limit, dtype=np.float32)
    rows[:, 1:] = np.resize(codes, (len(rows), 31))
    got = unpacked(activations(native.prepare(rows, matrix(16, 32, precision, 32, False))))
    assert_same(got.codes, rows.astype(np.int16))


@pytest.mark.parametrize("precision", Precision)
def test_norm_and_gate_prepare_what_the_reference_prepares(native: NativeOps, precision: Precision) -> None:
    weights, norm = matrix(33, 96, precision, 32, False), random(1, 96)
    for count in (1, 5, 70):
        x, gate_up = random(count, count, 96), random(count, count, 192) * 4
        pairs = (
            (native.norm_prepare(x, norm, 1e-6, weights), REFERENCE.norm_prepare(x, norm, 1e-6, weights)),
            (
                native.gated_prepare(gate_up, Gate.GELU_TANH, weights),
                REFERENCE.gated_prepare(gate_up, Gate.GELU_TANH, weights),
            ),
        )
        for got, expected in pairs:
            assert_same(unpacked(activations(got)).codes, activations(expected).codes)
            assert_same(native.matmul(got, weights), REFERENCE.matmul(expected, weights))


def test_embedding_has_the_bits_of_the_reference(native: NativeOps) -> None:
    tokens = np.random.default_rng(0).integers(0, 77, 40).astype(np.int32)
    tables: list[PackedMatrix | FloatMatrix] = [
        matrix(77, 96, p, group, zero_offsets) for p, group, zero_offsets in KINDS
    ]
    tables.append(pack_float(random(4, 77, 37)))
    for table in tables:
        assert_same(native.embed(table, tokens, 25.3), REFERENCE.embed(table, tokens, 25.3))

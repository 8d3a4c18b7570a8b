"""Converts between plain arrays and the layouts of `PackedMatrix` and `FloatMatrix`."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from transom.ops.fma import fma
from transom.ops.protocol import F32, LANES, FloatMatrix, PackedMatrix, Precision

I8 = NDArray[np.int8]

_ROWS_AT_ONCE = 4096


def pack(codes: I8, scales: F32, zero_offsets: F32 | None, group: int, precision: Precision) -> PackedMatrix:
    """codes `[out, in]`, scales and zero_offsets `[out, in / group]`; `in` a multiple of 32."""
    out, width = codes.shape
    assert group in (16, 32) and width % 32 == 0, (group, width)
    assert scales.shape == (out, width // group), (scales.shape, codes.shape)
    assert zero_offsets is None or zero_offsets.shape == scales.shape, (
        zero_offsets and zero_offsets.shape,
        scales.shape,
    )
    return PackedMatrix(
        codes=_pack_codes(codes),
        scales=_interleave(scales),
        zero_offsets=None if zero_offsets is None else _interleave(zero_offsets),
        group=group,
        out_features=out,
        in_features=width,
        precision=precision,
    )


def pack_float(values: F32) -> FloatMatrix:
    """values `[out, in]`."""
    out, width = values.shape
    return FloatMatrix(values=_interleave(values), out_features=out, in_features=width)


def _pack_codes(codes: I8) -> NDArray[np.uint8]:
    out, width = codes.shape
    padded = np.full((out + -out % LANES, width), 128, dtype=np.uint8)
    padded[:out] = codes.view(np.uint8) ^ np.uint8(128)
    return np.ascontiguousarray(padded.reshape(-1, LANES, width // 4, 4).transpose(0, 2, 1, 3))


def _interleave(values: F32) -> F32:
    """`[out, n]` to `[out_padded / 16, n, 16]`, padded with zeros."""
    out, width = values.shape
    padded = np.zeros((out + -out % LANES, width), dtype=np.float32)
    padded[:out] = values
    return np.ascontiguousarray(padded.reshape(-1, LANES, width).transpose(0, 2, 1))


# ---------------------------------------------------------------- unpacking


def unpack_codes(matrix: PackedMatrix, tiles: slice = slice(None)) -> I8:
    """The codes `[out_padded, in]` of a slice of tiles of 16 outputs, including padding."""
    quads = matrix.codes[tiles].view(np.uint32)[..., 0] ^ np.uint32(0x80808080)
    by_output = np.ascontiguousarray(quads.transpose(0, 2, 1))
    return by_output.reshape(-1, matrix.in_features // 4).view(np.int8)


def deinterleave(values: F32) -> F32:
    """`[tiles, n, 16]` to `[16 * tiles, n]`, including padding."""
    return values.transpose(0, 2, 1).reshape(-1, values.shape[1])


def unpack(matrix: PackedMatrix) -> tuple[I8, F32, F32 | None]:
    """The arguments of `pack`: codes, scales, zero offsets."""
    out = matrix.out_features
    zero_offsets = None if matrix.zero_offsets is None else deinterleave(matrix.zero_offsets)[:out]
    return unpack_codes(matrix)[:out], deinterleave(matrix.scales)[:out], zero_offsets


def unpack_float(matrix: FloatMatrix) -> F32:
    return deinterleave(matrix.values)[: matrix.out_features]


def rows_of(matrix: PackedMatrix, rows: NDArray[np.integer]) -> F32:
    """The weights of some outputs, `[rows, in]`: fma(scale, code, zero_offset or +0)."""
    tile, lane = rows // LANES, rows % LANES
    codes = (matrix.codes[tile, :, lane, :].reshape(len(rows), -1) ^ np.uint8(128)).view(np.int8)
    scales = np.repeat(matrix.scales[tile, :, lane], matrix.group, axis=1)
    zero_offsets: F32 = np.zeros(1, dtype=np.float32)
    if matrix.zero_offsets is not None:
        zero_offsets = np.repeat(matrix.zero_offsets[tile, :, lane], matrix.group, axis=1)
    return fma(scales, codes.astype(np.float32), zero_offsets)


def dequantize(matrix: PackedMatrix) -> F32:
    """All weights `[out, in]`, computed like `rows_of`."""
    out = np.empty((matrix.out_features, matrix.in_features), dtype=np.float32)
    for start in range(0, matrix.out_features, _ROWS_AT_ONCE):
        rows = np.arange(start, min(start + _ROWS_AT_ONCE, matrix.out_features))
        out[start : start + len(rows)] = rows_of(matrix, rows)
    return out


# ---------------------------------------------------------------- joining


def concatenate(matrices: Sequence[PackedMatrix]) -> PackedMatrix:
    """Stacks matrices of one precision along `out`.

    If one has zero offsets, the rest get zeros. If one has group 16, the other matrices'
    groups of 32 are split in two: their weights stay the same, but products are added in groups of 16.
    """
    first = matrices[0]
    assert all(m.precision == first.precision for m in matrices), [m.precision for m in matrices]
    assert all(m.in_features == first.in_features for m in matrices), [m.in_features for m in matrices]
    group = min(m.group for m in matrices)
    parts = [unpack(m) for m in matrices]
    codes = np.concatenate([part[0] for part in parts])
    scales = np.concatenate(list(_split_groups(matrices, [part[1] for part in parts], group)))
    if all(part[2] is None for part in parts):
        return pack(codes, scales, None, group, first.precision)
    offsets = [np.zeros_like(part[1]) if part[2] is None else part[2] for part in parts]
    zero_offsets = np.concatenate(list(_split_groups(matrices, offsets, group)))
    return pack(codes, scales, zero_offsets, group, first.precision)


def _split_groups(matrices: Sequence[PackedMatrix], values: Sequence[F32], group: int) -> Iterator[F32]:
    for matrix, value in zip(matrices, values, strict=True):
        yield np.repeat(value, matrix.group // group, axis=1)

"""Packs matrices of a model file into the layouts of `transom.ops.protocol`: exact, no requantization.

Two implementations with the same bits: native/packing.cpp; and numpy, if the extension is missing or
TRANSOM_NATIVE is 0.
"""

import importlib
import os
from collections.abc import Sequence
from types import ModuleType

import numpy as np

from transom.ops import pack as layout
from transom.ops.protocol import F32, LANES, FloatMatrix, Matrix, PackedMatrix, Precision
from transom.weights.blocks import FORMATS, decode_rows, expand, expand_floats
from transom.weights.gguf import GgufTensor

_CHECKED_AT_ONCE = 1 << 20


def vector(tensor: GgufTensor) -> F32:
    """A norm weight, float32 `[n]`. ModelFileError if it has another shape, is quantized or is not finite."""
    if len(tensor.shape) != 1:
        raise tensor.error(f"shape {tensor.shape}, where one dimension is expected")
    values = expand_floats(tensor)
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        raise tensor.error(f"element {bad[0]} is {values[bad[0]]}; all must be finite")
    return values


def pack(tensors: Sequence[GgufTensor], precision: Precision) -> Matrix:
    """One matrix of the tensors' rows, in order. The result does not reference the tensors.

    If all are quantized, a PackedMatrix: if one has zero offsets, the rest get zeros; if one has groups of
    16, groups of 32 are split in two. Otherwise a FloatMatrix, with quantized tensors expanded.
    ModelFileError if the shapes do not fit together, and if a scale, zero offset or float is not finite: all
    logits would be NaN.
    """
    _check_shapes(tensors)
    matrix = _packed(tensors, precision)
    if isinstance(matrix, FloatMatrix):
        _check_finite(tensors, matrix.values, "value")
    else:
        _check_finite(tensors, matrix.scales, "scale")
        if matrix.zero_offsets is not None:
            _check_finite(tensors, matrix.zero_offsets, "zero offset")
    return matrix


def _packed(tensors: Sequence[GgufTensor], precision: Precision) -> Matrix:
    native = _native()
    if all(tensor.type in FORMATS for tensor in tensors):
        return pack_numpy(tensors, precision) if native is None else _pack_native(native, tensors, precision)
    # Files that mix quantized and float tensors in one matrix are rare, so they have no native path.
    if native is None or any(tensor.type in FORMATS for tensor in tensors):
        return layout.pack_float(np.concatenate([expand(tensor) for tensor in tensors]))
    return _pack_floats_native(native, tensors)


def _check_shapes(tensors: Sequence[GgufTensor]) -> None:
    assert tensors, "a matrix has rows"
    width = tensors[0].shape[-1]
    for tensor in tensors:
        if len(tensor.shape) != 2:
            raise tensor.error(f"shape {tensor.shape}, where a matrix is expected")
        if tensor.shape[1] % 32:  # activations are quantized in groups of 32
            raise tensor.error(f"impossible shape {tensor.shape}: rows must be multiples of 32")
        if tensor.shape[1] != width:
            raise tensor.error(f"rows of {tensor.shape[1]}, but {tensors[0].name!r} has rows of {width}")


def _check_finite(tensors: Sequence[GgufTensor], values: F32, kind: str) -> None:
    """`values` are `[tiles, n, 16]`: lane l of tile t belongs to row 16 t + l of the stacked tensors."""
    # In parts, because a mask of all values of a float matrix would add a quarter of its size to the peak.
    tiles_at_once = max(1, _CHECKED_AT_ONCE // (values.shape[1] * LANES))
    for start in range(0, len(values), tiles_at_once):
        part = values[start : start + tiles_at_once]
        bad = ~np.isfinite(part)
        if bad.any():
            tile, column, lane = np.argwhere(bad)[0].tolist()
            row = (start + tile) * LANES + lane
            for tensor in tensors:
                if row < tensor.shape[0]:
                    raise tensor.error(
                        f"a {kind} of row {row} is {part[tile, column, lane]}; it must be finite"
                    )
                row -= tensor.shape[0]


def pack_numpy(tensors: Sequence[GgufTensor], precision: Precision) -> PackedMatrix:
    """`pack` in numpy, for quantized tensors of one width."""
    parts = []
    for tensor in tensors:
        rows = decode_rows(tensor)
        parts.append(
            layout.pack(rows.codes, rows.scales, rows.zero_offsets, FORMATS[tensor.type].group, precision)
        )
    return parts[0] if len(parts) == 1 else layout.concatenate(parts)


# ---------------------------------------------------------------- native


def _native() -> ModuleType | None:
    if os.environ.get("TRANSOM_NATIVE") == "0":
        return None
    try:
        return importlib.import_module("transom._native")
    except ModuleNotFoundError:
        return None


def _threads() -> int:
    # The cores that this process may use, as containers and `taskset` limit them; missing on macOS.
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _pack_native(native: ModuleType, tensors: Sequence[GgufTensor], precision: Precision) -> PackedMatrix:
    formats = [FORMATS[tensor.type] for tensor in tensors]
    group = min(format.group for format in formats)
    width = tensors[0].shape[1]
    rows = sum(tensor.shape[0] for tensor in tensors)
    tiles = -(-rows // LANES)
    codes = np.empty((tiles, width // 4, LANES, 4), dtype=np.uint8)
    # Codes are stored plus 128.
    codes[-1] = 128  # padding is code 0; the rest is overwritten
    scales = np.zeros((tiles, width // group, LANES), dtype=np.float32)
    zero_offsets = np.zeros_like(scales) if any(format.has_zero_offsets for format in formats) else None
    threads = _threads()
    first = 0
    for tensor in tensors:
        out = tensor.shape[0]
        native.pack_blocks(
            tensor.type, tensor.data, out, width, first, group, codes, scales, zero_offsets, threads
        )
        first += out
    return PackedMatrix(codes, scales, zero_offsets, group, rows, width, precision)


def _pack_floats_native(native: ModuleType, tensors: Sequence[GgufTensor]) -> FloatMatrix:
    width = tensors[0].shape[1]
    rows = sum(tensor.shape[0] for tensor in tensors)
    values = np.zeros((-(-rows // LANES), width, LANES), dtype=np.float32)
    threads = _threads()
    first = 0
    for tensor in tensors:
        native.pack_floats(tensor.type, tensor.data, tensor.shape[0], width, first, values, threads)
        first += tensor.shape[0]
    return FloatMatrix(values, rows, width)

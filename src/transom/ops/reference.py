"""The numpy backend: slow and complete. The oracle: other backends are tested against its bits."""

import numpy as np
from numpy.typing import NDArray

from transom.ops.elementary import ONE, TWO, exp, folded_dot
from transom.ops.fma import fma
from transom.ops.pack import deinterleave, rows_of, unpack_codes
from transom.ops.protocol import (
    ACTIVATION_GROUP,
    F32,
    I32,
    LANES,
    Activations,
    AttentionShape,
    FloatMatrix,
    Gate,
    Matrix,
    PackedMatrix,
    PagedKV,
    Precision,
    Prepared,
    SamplingRows,
    SpanRows,
)
from transom.ops.reference_attention import SpanKeys, attend_span
from transom.ops.reference_sampling import logprobs_row, sample_row

_OUTPUTS_AT_ONCE = 256
_RESULTS_AT_ONCE = 1 << 13
"""Blocks of a matmul: small enough for the cache, and so small that BLAS starts no threads for them."""

# Infinities and NaN are legal inputs: numpy must not warn about them.
_QUIET = np.errstate(over="ignore", under="ignore", invalid="ignore", divide="ignore")


class ReferenceOps:
    """`Ops` in numpy, without state."""

    @property
    def isa(self) -> str:
        return "numpy"

    def embed(self, table: Matrix, tokens: I32, scale: float) -> F32:
        rows = rows_of(table, tokens) if isinstance(table, PackedMatrix) else _float_rows(table, tokens)
        return rows * np.float32(scale)

    def norm(self, x: F32, weight: F32, eps: float) -> F32:
        return _norm(x, weight, eps)

    def norm_prepare(self, x: F32, weight: F32, eps: float, matrix: Matrix) -> Prepared:
        return self.prepare(_norm(x, weight, eps), matrix)

    def prepare(self, x: F32, matrix: Matrix) -> Prepared:
        return _quantize(x, matrix.precision) if isinstance(matrix, PackedMatrix) else x

    def matmul(self, x: Prepared, matrix: Matrix) -> F32:
        if isinstance(matrix, PackedMatrix):
            assert isinstance(x, Activations) and x.precision == matrix.precision, matrix.precision
            return _packed_matmul(x, matrix)
        assert not isinstance(x, Activations), "a float matrix takes float32 rows"
        return _float_matmul(x, matrix)

    def gated_prepare(self, gate_up: F32, gate: Gate, matrix: Matrix) -> Prepared:
        gates, up = np.split(gate_up, 2, axis=1)
        return self.prepare(_GATES[gate](gates) * up, matrix)

    def add(self, x: F32, y: F32) -> None:
        x += y

    def add_norm(self, x: F32, y: F32, weight: F32, eps: float) -> None:
        x += _norm(y, weight, eps)

    def rope_store(
        self,
        qkv: F32,
        shape: AttentionShape,
        q_norm: F32 | None,
        k_norm: F32 | None,
        eps: float,
        cos_sin: F32,
        kv: PagedKV,
        layer: int,
        spans: SpanRows,
    ) -> F32:
        heads = qkv.reshape(len(qkv), shape.heads + 2 * shape.kv_heads, shape.head_dim)
        q, k, v = np.split(heads, [shape.heads, shape.heads + shape.kv_heads], axis=1)
        k = _rotate(k if k_norm is None else _norm(k, k_norm, eps), cos_sin)
        which = slice(None) if spans.stored is None else spans.stored
        positions = spans.positions[which]
        pages, slots = kv.rows[spans.token_rows[which], positions // kv.page_size], positions % kv.page_size
        assert (pages > 0).all(), "a token to be stored has no page"
        kv.pages[pages, layer, 0, slots] = _stored(k[which], kv)
        kv.pages[pages, layer, 1, slots] = _stored(v[which], kv)
        return _rotate(q if q_norm is None else _norm(q, q_norm, eps), cos_sin)

    def attention(self, q: F32, shape: AttentionShape, kv: PagedKV, layer: int, spans: SpanRows) -> F32:
        out = np.empty_like(q)
        for span, row in enumerate(spans.rows):
            part = slice(int(spans.offsets[span]), int(spans.offsets[span + 1]))
            keys = SpanKeys(int(row), int(spans.starts[span]), spans.clip(span))
            out[part] = attend_span(q[part], keys, shape, kv, layer)
        return out.reshape(len(q), -1)

    def sample(self, logits: F32, sampling: SamplingRows) -> tuple[I32, F32]:
        sampled = [sample_row(row, sampling, index) for index, row in enumerate(logits)]
        tokens = np.array([token for token, _ in sampled], dtype=np.int32)
        return tokens, np.array([logprob for _, logprob in sampled], dtype=np.float32)

    def logprobs(self, logits: F32, tokens: I32, top: int) -> tuple[F32, I32, F32]:
        rows = [logprobs_row(row, int(token), top) for row, token in zip(logits, tokens, strict=True)]
        return (
            np.array([logprobs[0] for _, logprobs in rows], dtype=np.float32),
            np.array([best for best, _ in rows], dtype=np.int32).reshape(len(rows), top),
            np.array([logprobs[1:] for _, logprobs in rows], dtype=np.float32).reshape(len(rows), top),
        )

    def copy_pages(self, kv: PagedKV, source: int, target: int, tokens: int) -> None:
        kv.pages[target, :, :, :tokens] = kv.pages[source, :, :, :tokens]


# ---------------------------------------------------------------- rows


@_QUIET
def _norm(x: F32, weight: F32, eps: float) -> F32:
    """RMS norm over the last axis."""
    mean = folded_dot(x, x) / np.float32(x.shape[-1])
    inverse = ONE / np.sqrt(mean + np.float32(eps))
    normed: F32 = (x * inverse[..., np.newaxis]) * weight
    return normed


@_QUIET
def _gelu(x: F32) -> F32:
    u = np.float32(0.7978845608) * fma((np.float32(0.044715) * x) * x, x, x)
    return x / (ONE + exp(-TWO * u))


@_QUIET
def _silu(x: F32) -> F32:
    return x / (ONE + exp(-x))


_GATES = {Gate.GELU_TANH: _gelu, Gate.SILU: _silu}


@_QUIET
def _quantize(x: F32, precision: Precision) -> Activations:
    tokens, width = x.shape
    limit = np.float32(precision.code_limit)
    finite = np.isfinite(x).all(axis=1, keepdims=True)
    groups = np.where(finite, x, np.float32(0)).reshape(tokens, -1, ACTIVATION_GROUP)
    largest = np.abs(groups).max(axis=2)
    alive = largest >= np.float32(1e-30)
    inverse = np.where(alive, limit / largest, np.float32(0))
    codes = np.clip(np.rint(groups * inverse[..., np.newaxis]), -limit, limit).astype(np.int16)
    scales = np.where(alive, largest / limit, np.float32(0))
    return Activations(
        codes=codes.reshape(tokens, width),
        scales=np.where(finite, scales, np.float32(np.nan)),
        sums=codes.reshape(tokens, -1, LANES).sum(axis=2, dtype=np.int32),
        precision=precision,
    )


def _rotate(x: F32, cos_sin: F32) -> F32:
    """x `[tokens, heads, head_dim]`, cos_sin `[tokens, 2, head_dim / 2]`."""
    a, b = np.split(x, 2, axis=2)
    c, s = cos_sin[:, np.newaxis, 0], cos_sin[:, np.newaxis, 1]
    return np.concatenate([fma(a, c, -(b * s)), fma(b, c, a * s)], axis=2)


def _stored(x: F32, kv: PagedKV) -> NDArray[np.float16] | F32:
    if kv.pages.dtype == np.float32:
        return x
    return np.clip(x, np.float32(-65504), np.float32(65504)).astype(np.float16)


# ---------------------------------------------------------------- matmul


def _float_rows(table: FloatMatrix, rows: I32) -> F32:
    return table.values[rows // LANES, :, rows % LANES]


def _float_matmul(x: F32, matrix: FloatMatrix) -> F32:
    weights = deinterleave(matrix.values)[: matrix.out_features]
    acc = np.zeros((len(x), matrix.out_features), dtype=np.float32)
    for k in range(matrix.in_features):
        acc = fma(x[:, k, np.newaxis], weights[:, k], acc)
    return acc


def _packed_matmul(x: Activations, matrix: PackedMatrix) -> F32:
    tokens, groups = len(x.codes), matrix.in_features // matrix.group
    codes = x.codes.reshape(tokens, groups, matrix.group).transpose(1, 2, 0)
    scales = np.repeat(x.scales, ACTIVATION_GROUP // matrix.group, axis=1).T
    sums = x.sums.reshape(tokens, groups, -1).sum(axis=2).astype(np.float32).T
    outputs = []
    step = min(_OUTPUTS_AT_ONCE, _RESULTS_AT_ONCE // tokens) // LANES or 1
    for start in range(0, len(matrix.codes), step):
        tiles = slice(start, start + step)
        dots = _group_dots(codes, matrix, tiles)
        outputs.append(_add_groups(dots, scales, sums, matrix, tiles))
    return np.ascontiguousarray(np.concatenate(outputs)[: matrix.out_features].T)


def _group_dots(codes: NDArray[np.int16], matrix: PackedMatrix, tiles: slice) -> F32:
    """Dots per group, `[groups, outputs, tokens]`, of codes `[groups, group, tokens]`.

    Computed by BLAS in floating point, and exact in any order: every partial sum is an integer below 2**24
    (INT8: 32 * 127 * 128) in float32, or below 2**53 in float64.
    """
    exact = np.float32 if matrix.precision == Precision.INT8 else np.float64
    weights = unpack_codes(matrix, tiles).astype(exact)
    by_group = weights.reshape(len(weights), -1, matrix.group).transpose(1, 0, 2)
    dots: NDArray[np.floating] = np.matmul(by_group, codes.astype(exact))
    return dots.astype(np.float32, copy=False)


@_QUIET
def _add_groups(dots: F32, scales: F32, sums: F32, matrix: PackedMatrix, tiles: slice) -> F32:
    """`[outputs, tokens]`: adds up groups in ascending order, each with its zero offset.

    scales and sums are of the activations, `[groups, tokens]`.
    """
    acc = np.zeros(dots.shape[1:], dtype=np.float32)
    weight_scales = deinterleave(matrix.scales[tiles])
    zero_offsets = None if matrix.zero_offsets is None else deinterleave(matrix.zero_offsets[tiles])
    for g, dot in enumerate(dots):
        acc = fma(dot, weight_scales[:, g, np.newaxis] * scales[g], acc)
        if zero_offsets is not None:
            acc = fma(sums[g], zero_offsets[:, g, np.newaxis] * scales[g], acc)
    return acc

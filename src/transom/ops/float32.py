"""A float32 backend on BLAS, without quantized activations: the reference for accuracy.

It does not keep the bit contract: results may depend on the batch and on the BLAS library. Keys and values
are stored like in the other backends.
"""

import numpy as np
from numpy.typing import NDArray

from transom.ops.pack import dequantize, unpack_float
from transom.ops.philox import uniform
from transom.ops.protocol import (
    F32,
    I32,
    Activations,
    AttentionShape,
    Gate,
    Matrix,
    PackedMatrix,
    PagedKV,
    Prepared,
    SamplingRows,
    SpanRows,
)

F64 = NDArray[np.float64]


class Float32Ops:
    """`Ops` in plain float32. Mutable: owns the dequantized form of every matrix used so far."""

    def __init__(self) -> None:
        self._weights: dict[int, tuple[Matrix, F32]] = {}

    @property
    def isa(self) -> str:
        return "float32"

    def _dense(self, matrix: Matrix) -> F32:
        """`[out, in]`, dequantized at first use."""
        # The entry keeps the matrix alive, so that no other matrix can get its id.
        if id(matrix) not in self._weights:
            dense = dequantize(matrix) if isinstance(matrix, PackedMatrix) else unpack_float(matrix)
            self._weights[id(matrix)] = (matrix, dense)
        return self._weights[id(matrix)][1]

    def embed(self, table: Matrix, tokens: I32, scale: float) -> F32:
        return self._dense(table)[tokens] * np.float32(scale)

    def norm(self, x: F32, weight: F32, eps: float) -> F32:
        mean: F32 = np.square(x).mean(axis=-1, keepdims=True)
        normed: F32 = x / np.sqrt(mean + np.float32(eps)) * weight
        return normed

    def norm_prepare(self, x: F32, weight: F32, eps: float, matrix: Matrix) -> Prepared:
        return self.norm(x, weight, eps)

    def prepare(self, x: F32, matrix: Matrix) -> Prepared:
        return x

    def matmul(self, x: Prepared, matrix: Matrix) -> F32:
        assert not isinstance(x, Activations), "this backend never quantizes activations"
        result: F32 = x @ self._dense(matrix).T
        return result

    def gated_prepare(self, gate_up: F32, gate: Gate, matrix: Matrix) -> Prepared:
        gates, up = np.split(gate_up, 2, axis=1)
        return _GATES[gate](gates) * up

    def add(self, x: F32, y: F32) -> None:
        x += y

    def add_norm(self, x: F32, y: F32, weight: F32, eps: float) -> None:
        x += self.norm(y, weight, eps)

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
        heads = qkv.reshape(len(qkv), -1, shape.head_dim)
        q, k, v = np.split(heads, [shape.heads, shape.heads + shape.kv_heads], axis=1)
        k = _rotate(k if k_norm is None else self.norm(k, k_norm, eps), cos_sin)
        which = slice(None) if spans.stored is None else spans.stored
        positions = spans.positions[which]
        pages = kv.rows[spans.token_rows[which], positions // kv.page_size]
        for index, values in enumerate((k[which], v[which])):
            bounded = np.clip(values, -65504, 65504) if kv.pages.dtype == np.float16 else values
            kv.pages[pages, layer, index, positions % kv.page_size] = bounded
        return _rotate(q if q_norm is None else self.norm(q, q_norm, eps), cos_sin)

    def attention(self, q: F32, shape: AttentionShape, kv: PagedKV, layer: int, spans: SpanRows) -> F32:
        out = np.empty_like(q)
        for span, (row, start) in enumerate(zip(spans.rows, spans.starts, strict=True)):
            first, last = spans.offsets[span : span + 2]
            queries = np.arange(start, start + last - first)
            clip = spans.clip(span)
            lowest = clip if shape.window is None else max(clip, int(start) - shape.window + 1)
            keys = np.arange(lowest, queries[-1] + 1)
            k, v = (_read(kv, layer, index, int(row), keys) for index in (0, 1))
            out[first:last] = _attend(q[first:last], k, v, _bias(queries, keys, shape.window), shape)
        return out.reshape(len(q), -1)

    def sample(self, logits: F32, sampling: SamplingRows) -> tuple[I32, F32]:
        tokens = np.zeros(len(logits), dtype=np.int32)
        logprobs = np.full(len(logits), np.nan, dtype=np.float32)
        for row, values in enumerate(logits.astype(np.float64)):
            if np.isfinite(values.max()):
                tokens[row] = _sample(values, sampling, row)
                logprobs[row] = values[tokens[row]] - values.max() - np.log(_weights(values).sum())
        return tokens, logprobs

    def logprobs(self, logits: F32, tokens: I32, top: int) -> tuple[F32, I32, F32]:
        values = logits.astype(np.float64)
        shifted = values - values.max(axis=1, keepdims=True)
        logprobs = (shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))).astype(np.float32)
        best = np.argsort(-logits, axis=1, kind="stable")[:, :top].astype(np.int32)
        of_tokens = np.take_along_axis(logprobs, tokens[:, np.newaxis].astype(np.int64), axis=1)[:, 0]
        return of_tokens, best, np.take_along_axis(logprobs, best.astype(np.int64), axis=1)

    def copy_pages(self, kv: PagedKV, source: int, target: int, tokens: int) -> None:
        kv.pages[target, :, :, :tokens] = kv.pages[source, :, :, :tokens]


def _gelu_tanh(x: F32) -> F32:
    inner = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x**3)
    activated: F32 = np.float32(0.5) * x * (1 + np.tanh(inner))
    return activated


def _silu(x: F32) -> F32:
    with np.errstate(over="ignore"):
        activated: F32 = x / (1 + np.exp(-x))
    return activated


_GATES = {Gate.GELU_TANH: _gelu_tanh, Gate.SILU: _silu}


def _rotate(x: F32, cos_sin: F32) -> F32:
    half = x.shape[2] // 2
    pairs = x[..., :half] + 1j * x[..., half:]
    turned = pairs * (cos_sin[:, 0] + 1j * cos_sin[:, 1])[:, np.newaxis]
    return np.concatenate([turned.real, turned.imag], axis=2).astype(np.float32, copy=False)


def _read(kv: PagedKV, layer: int, index: int, row: int, positions: NDArray[np.int64]) -> F32:
    """`[kv_heads, keys, head_dim]`."""
    pages = kv.rows[row, positions // kv.page_size]
    values: F32 = kv.pages[pages, layer, index, positions % kv.page_size].astype(np.float32)
    return values.transpose(1, 0, 2)


def _bias(queries: NDArray[np.int64], keys: NDArray[np.int64], window: int | None) -> F32:
    """`[queries, keys]`: 0 where a key is visible, -inf where it is masked."""
    age = queries[:, np.newaxis] - keys
    visible = (age >= 0) & (age < (window or len(keys) + len(queries)))
    return np.where(visible, np.float32(0), np.float32(-np.inf))


def _attend(q: F32, k: F32, v: F32, bias: F32, shape: AttentionShape) -> F32:
    """One span. q and the result are `[tokens, heads, head_dim]`, k and v `[kv_heads, keys, head_dim]`."""
    share = shape.heads // shape.kv_heads
    grouped = q.reshape(len(q), shape.kv_heads, share, shape.head_dim).transpose(1, 2, 0, 3)
    scores = grouped @ k[:, np.newaxis].transpose(0, 1, 3, 2) * np.float32(shape.scale)
    if shape.softcap is not None:
        scores = np.float32(shape.softcap) * np.tanh(scores / np.float32(shape.softcap))
    scores = scores + bias
    p = np.exp(scores - scores.max(axis=-1, keepdims=True))
    mixed = (p / p.sum(axis=-1, keepdims=True)) @ v[:, np.newaxis]
    return np.asarray(mixed.transpose(2, 0, 1, 3).reshape(q.shape), dtype=np.float32)


def _weights(logits: F64, temperature: float = 1.0) -> F64:
    weights: F64 = np.exp((logits - logits.max()) / temperature)
    return weights


def _sample(logits: F64, sampling: SamplingRows, row: int) -> int:
    temperature = float(sampling.temperature[row])
    if temperature == 0:
        return int(logits.argmax())
    order = np.argsort(-logits, kind="stable")[: int(sampling.top_k[row]) or None]
    weights = _weights(logits, temperature)[order]
    weights = weights[weights >= sampling.min_p[row]]
    before = np.cumsum(weights) - weights
    kept = weights[: max(1, int((before < sampling.top_p[row] * weights.sum()).sum()))]
    share = np.cumsum(kept) / kept.sum()
    drawn = np.searchsorted(
        share, uniform(int(sampling.seed[row]), int(sampling.position[row])), side="right"
    )
    return int(order[min(int(drawn), len(kept) - 1)])

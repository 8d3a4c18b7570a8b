"""The native backend: `Ops` in the C++ extension, with the bits of `reference`.

The extension checks all arguments: a wrong shape, dtype or index is a ValueError that names the argument.
"""

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from transom import _native
from transom.ops.protocol import (
    ACTIVATION_GROUP,
    F32,
    I32,
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

# int16 words of ActivationBlock8 and ActivationBlock16 in native/kernels.h: the codes of an activation group,
# its scale and its sums, next to each other because a kernel reads them together.
_BLOCK_WORDS = {Precision.INT8: 32, Precision.INT16: 64}

_NO_SCALES: F32 = np.empty((0, 0), dtype=np.float32)
_NO_SUMS: I32 = np.empty((0, 0), dtype=np.int32)


@dataclass(frozen=True, slots=True)
class NativeInfo:
    """The kernels and threads in use, and the possible ones.

    isas          instruction sets that this CPU can run, fastest first
    threads       including the calling one
    cpu_features  features that kernels can use and this CPU has
    """

    isa: str
    isas: tuple[str, ...]
    threads: int
    cpu_features: tuple[str, ...]


def info() -> NativeInfo:
    return NativeInfo(
        isa=_native.isa(),
        isas=tuple(_native.isas()),
        threads=_native.threads(),
        cpu_features=tuple(_native.cpu_features()),
    )


def set_threads(count: int) -> None:
    """Set the number of threads that kernels of this process use, including the calling one."""
    _native.set_threads(count)


def set_isa(name: str) -> None:
    """Select kernels by name, one of `info().isas`, else ValueError. TRANSOM_ISA does the same at start."""
    _native.set_isa(name)


class NativeOps:
    """`Ops` in C++, without state.

    `threads` sets the number of threads for the whole process; None keeps the present number, which is
    initially the number of usable cores.

    Its Activations hold activation blocks in `codes`, in the layout that the matmul kernel reads; their
    `scales` and `sums` are empty.
    """

    def __init__(self, threads: int | None = None) -> None:
        if threads is not None:
            set_threads(threads)

    @property
    def isa(self) -> str:
        return info().isa

    def embed(self, table: Matrix, tokens: I32, scale: float) -> F32:
        out = np.empty((len(tokens), table.in_features), np.float32)
        if isinstance(table, PackedMatrix):
            _native.embed_packed(*_packed(table), tokens, scale, out)
        else:
            _native.embed_float(*_float(table), tokens, scale, out)
        return out

    def norm(self, x: F32, weight: F32, eps: float) -> F32:
        out = np.empty(x.shape, np.float32)
        _native.norm(x, weight, eps, out)
        return out

    def norm_prepare(self, x: F32, weight: F32, eps: float, matrix: Matrix) -> Prepared:
        if not isinstance(matrix, PackedMatrix):
            return self.norm(x, weight, eps)
        precision = matrix.precision
        blocks = _empty_blocks(len(x), matrix)
        _native.norm_prepare(x, weight, eps, precision, blocks)
        return Activations(blocks, _NO_SCALES, _NO_SUMS, precision)

    def prepare(self, x: F32, matrix: Matrix) -> Prepared:
        if not isinstance(matrix, PackedMatrix):
            return x
        precision = matrix.precision
        blocks = _empty_blocks(len(x), matrix)
        _native.prepare(x, precision, blocks)
        return Activations(blocks, _NO_SCALES, _NO_SUMS, precision)

    def matmul(self, x: Prepared, matrix: Matrix) -> F32:
        rows = x.codes if isinstance(x, Activations) else x
        out = np.empty((len(rows), matrix.out_features), np.float32)
        if not isinstance(matrix, PackedMatrix):
            _native.matmul_float(rows, *_float(matrix), out)
            return out
        if not isinstance(x, Activations) or x.precision != matrix.precision:
            raise ValueError(f"x: not prepared for a matrix of precision {matrix.precision.name}")
        _native.matmul_packed(rows, matrix.precision, *_packed(matrix), out)
        return out

    def gated_prepare(self, gate_up: F32, gate: Gate, matrix: Matrix) -> Prepared:
        if not isinstance(matrix, PackedMatrix):
            out = np.empty((len(gate_up), gate_up.shape[1] // 2), np.float32)
            _native.gated(gate_up, gate, out)
            return out
        precision = matrix.precision
        blocks = _empty_blocks(len(gate_up), matrix)
        _native.gated_prepare(gate_up, gate, precision, blocks)
        return Activations(blocks, _NO_SCALES, _NO_SUMS, precision)

    def add(self, x: F32, y: F32) -> None:
        x += y

    def add_norm(self, x: F32, y: F32, weight: F32, eps: float) -> None:
        _native.add_norm(x, y, weight, eps)

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
        heads, kv_heads, head_dim = shape.heads, shape.kv_heads, shape.head_dim
        q = np.empty((len(qkv), heads, head_dim), np.float32)
        stored = None if spans.stored is None else spans.stored.view(np.uint8)
        where = (kv.pages, kv.rows, kv.page_size, layer, spans.positions, spans.token_rows, stored)
        _native.rope_store(qkv, heads, kv_heads, head_dim, q_norm, k_norm, eps, cos_sin, *where, q)
        return q

    def attention(self, q: F32, shape: AttentionShape, kv: PagedKV, layer: int, spans: SpanRows) -> F32:
        out = np.empty((len(q), shape.heads * shape.head_dim), np.float32)
        heads, kv_heads, head_dim = shape.heads, shape.kv_heads, shape.head_dim
        # 0 stands for an absent window or softcap.
        window, softcap = shape.window or 0, shape.softcap or 0.0
        where = (kv.pages, kv.rows, kv.page_size, layer)
        which = (spans.rows, spans.starts, spans.offsets, spans.clips)
        _native.attention(q, heads, kv_heads, head_dim, window, shape.scale, softcap, *where, *which, out)
        return out

    def sample(self, logits: F32, sampling: SamplingRows) -> tuple[I32, F32]:
        tokens, logprobs = np.empty(len(logits), np.int32), np.empty(len(logits), np.float32)
        # In the order of the extension's arguments.
        columns = [getattr(sampling, field.name) for field in fields(sampling)]
        _native.sample(logits, *columns, tokens, logprobs)
        return tokens, logprobs

    def logprobs(self, logits: F32, tokens: I32, top: int) -> tuple[F32, I32, F32]:
        rows = len(logits)
        logprobs, best = np.empty(rows, np.float32), np.empty((rows, top), np.int32)
        best_logprobs = np.empty((rows, top), np.float32)
        _native.logprobs(logits, tokens, logprobs, best, best_logprobs)
        return logprobs, best, best_logprobs

    def copy_pages(self, kv: PagedKV, source: int, target: int, tokens: int) -> None:
        _native.copy_pages(kv.pages, kv.rows, kv.page_size, source, target, tokens)


def _packed(m: PackedMatrix) -> tuple[NDArray[np.uint8], F32, F32 | None, int, int, int]:
    return m.codes, m.scales, m.zero_offsets, m.group, m.out_features, m.in_features


def _float(m: FloatMatrix) -> tuple[F32, int, int]:
    return m.values, m.out_features, m.in_features


def _empty_blocks(tokens: int, matrix: PackedMatrix) -> NDArray[np.int16]:
    groups = matrix.in_features // ACTIVATION_GROUP
    return np.empty((tokens, groups, _BLOCK_WORDS[matrix.precision]), np.int16)

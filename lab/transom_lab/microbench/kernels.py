"""`transom bench micro`: speed of each native kernel alone, at the matrix sizes of a model.

The result is the fastest of several runs. The layer benchmarks cycle through as many matrices as the model
has layers, so that the weights come from memory, as in a real step, and not from the processor's caches.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import NamedTuple

import numpy as np

from transom.bench.sheet import ResultFiles, Row, Sheet, publish
from transom.errors import ConfigError
from transom.ops.native import NativeOps, info, set_isa, set_threads
from transom.ops.protocol import (
    F32,
    AttentionShape,
    Gate,
    PackedMatrix,
    PagedKV,
    Precision,
    Prepared,
    SamplingRows,
    SpanRows,
)

OPS = NativeOps()
MATRIX_KINDS = (
    (Precision.INT8, 32, False, 8),
    (Precision.INT8, 32, False, 5),
    (Precision.INT16, 32, False, 8),
    (Precision.INT16, 16, True, 8),
)
"""Precision of activations, weights per group, whether groups have zero offsets, bits per weight."""
ROUNDS = 4
"""Each round times every instruction set, so that a disturbance affects all of them and not only one."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Dimensions of a model, by default of Gemma 3 270M, and for how many seconds each kernel is run."""

    dim: int = 640
    hidden: int = 2048
    heads: int = 4
    head_dim: int = 256
    vocabulary: int = 262_144
    layers: int = 18
    window: int = 512
    tokens: int = 512
    """The longest prompt chunk of a step."""
    seconds: float = 0.3
    isas: tuple[str, ...] = (info().isa,)
    """Instruction sets; the first is the one that the rest are compared with."""

    @property
    def qkv(self) -> int:
        return (self.heads + 2) * self.head_dim

    @property
    def projections(self) -> dict[str, tuple[int, int]]:
        """Output and input features of the matrices of a layer."""
        return {
            "qkv": (self.qkv, self.dim),
            "o": (self.dim, self.heads * self.head_dim),
            "gate_up": (2 * self.hidden, self.dim),
            "down": (self.dim, self.hidden),
        }

    def attention(self, window: int | None) -> AttentionShape:
        return AttentionShape(self.heads, 1, self.head_dim, window, 0.0625)

    def best(self, run: Callable[[], object]) -> tuple[float, ...]:
        """The seconds of the fastest run, by instruction set."""
        best = [float("inf")] * len(self.isas)
        for _ in range(ROUNDS):
            for at, isa in enumerate(self.isas):
                set_isa(isa)
                best[at] = min(best[at], fastest(run, self.seconds / ROUNDS))
        set_isa(
            self.isas[0]
        )  # the setting is global; inputs of the next kernel are prepared with the first set
        return tuple(best)


def fastest(run: Callable[[], object], seconds: float) -> float:
    """The time of the fastest run. Runs for about `seconds`, and at least three times."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


DEFAULT = Sizes()


@dataclass(frozen=True, slots=True)
class KernelTiming:
    """One kernel: seconds by instruction set, bytes that it must read, and multiply-additions (`macs`).

    `macs` is 0 for kernels that arithmetic does not bound.
    """

    name: str
    seconds: tuple[float, ...]
    bytes: float
    macs: float

    def row(self) -> Row:
        first, *rest = self.seconds
        macs = self.macs / first / 1e9 if self.macs else None
        return Row(self.name, (first * 1e6, self.bytes / first / 1e9, macs, *(100 * first / s for s in rest)))


def bench_micro(
    parts: Sequence[str], files: ResultFiles, threads: int | None = None, sizes: Sizes = DEFAULT
) -> None:
    """Raises ConfigError for an unknown part or instruction set."""
    for isa in sizes.isas:
        if isa not in info().isas:
            raise ConfigError(f"--isa has {isa!r}; on this CPU it must be of {', '.join(info().isas)}")
    for part in parts:
        if part not in PARTS:
            raise ConfigError(f"PART is {part!r}; it must be one of {', '.join(PARTS)}")
    if threads is not None:
        set_threads(threads)
    publish("micro", (_sheet(part, sizes) for part in parts or PARTS), files)


def _sheet(part: str, sizes: Sizes) -> Sheet:
    rows = tuple(timing.row() for timing in PARTS[part](sizes))
    drawn = "us" if any(row.figures[2] is None for row in rows) else "GMAC/s"
    isa, *compared = sizes.isas
    title = f"{part}: {isa}, {info().threads} threads"
    if compared:
        title += f"; further columns: speed in % of {isa}'s"
    return Sheet(part, title, ("us", "GB/s", "GMAC/s", *compared), rows, (drawn,), drawn)


# ---------------------------------------------------------------- inputs


def random_matrix(
    out: int, inner: int, precision: Precision, group: int = 32, has_offsets: bool = False, bits: int = 8
) -> PackedMatrix:
    # Random codes are as good as real ones: the time of the kernels does not depend on the values.
    rng, half = np.random.default_rng(0), 1 << (bits - 1)
    codes = rng.integers(128 - half, 128 + half, (out // 16, inner // 4, 16, 4), dtype=np.uint8)
    scales = rng.random((out // 16, inner // group, 16), dtype=np.float32)
    return PackedMatrix(codes, scales, scales.copy() if has_offsets else None, group, out, inner, precision)


def matrix_bytes(matrix: PackedMatrix) -> int:
    offsets = 0 if matrix.zero_offsets is None else matrix.zero_offsets.nbytes
    return matrix.codes.nbytes + matrix.scales.nbytes + offsets


def random_rows(count: int, width: int) -> F32:
    return np.random.default_rng(1).standard_normal((count, width), dtype=np.float32)


# ---------------------------------------------------------------- parts


def head_timings(sizes: Sizes) -> Iterator[KernelTiming]:
    """The output matrix, with as many rows as a step samples tokens."""
    for precision in Precision:
        matrix = random_matrix(sizes.vocabulary, sizes.dim, precision)
        for count in (1, 4, 8, 16):
            x = OPS.prepare(random_rows(count, sizes.dim), matrix)
            seconds = sizes.best(partial(OPS.matmul, x, matrix))
            macs = count * sizes.vocabulary * sizes.dim
            yield KernelTiming(
                f"lm head, {precision.name}, {count} rows", seconds, matrix_bytes(matrix), macs
            )


def next_matmul(x: Prepared, matrices: Iterator[PackedMatrix]) -> None:
    OPS.matmul(x, next(matrices))


def layer_timings(sizes: Sizes) -> Iterator[KernelTiming]:
    """The matrices of the layers, with one row per token of a step."""
    for precision, group, has_offsets, bits in MATRIX_KINDS:
        for name, (out, inner) in sizes.projections.items():
            layers = [
                random_matrix(out, inner, precision, group, has_offsets, bits) for _ in range(sizes.layers)
            ]
            for count in (1, 16, sizes.tokens // 2, sizes.tokens):
                x = OPS.prepare(random_rows(count, inner), layers[0])
                seconds = sizes.best(partial(next_matmul, x, cycle(layers)))
                offsets = ", zero offsets" if has_offsets else ""
                kind = f"{precision.name} x {bits} bits, group {group}{offsets}"
                label = f"{name}, {kind}, {count} rows"
                yield KernelTiming(label, seconds, matrix_bytes(layers[0]), count * out * inner)


def random_kv(tokens: int, spans: int, head_dim: int) -> PagedKV:
    """A row of `tokens` tokens for each span. Pages start at 1, because page 0 is never read."""
    page_size, each = 16, -(-tokens // 16)
    pages = random_rows(1, (1 + spans * each) * 2 * page_size * head_dim).astype(np.float16)
    table = 1 + np.arange(spans * each, dtype=np.int32).reshape(spans, each)
    return PagedKV(pages.reshape(-1, 1, 2, page_size, 1, head_dim), table, page_size)


def span_rows(starts: list[int], count: int) -> SpanRows:
    """Spans of `count` tokens each, on rows of their own."""
    spans = len(starts)
    positions = np.concatenate([np.arange(s, s + count) for s in starts]).astype(np.int32)
    return SpanRows(
        rows=np.arange(spans, dtype=np.int32),
        starts=np.array(starts, dtype=np.int32),
        offsets=np.arange(0, (spans + 1) * count, count, dtype=np.int32),
        positions=positions,
        token_rows=np.repeat(np.arange(spans, dtype=np.int32), count),
    )


class Spans(NamedTuple):
    """`spans` spans of `tokens` tokens each, every one after `past` tokens of its request."""

    spans: int
    past: int
    tokens: int


def attention_timings(sizes: Sizes) -> Iterator[KernelTiming]:
    """Decodes and prompt chunks, with and without a window."""
    chunk = sizes.tokens
    cases = (
        Spans(1, chunk, 1),
        Spans(1, 8 * chunk, 1),
        Spans(16, chunk, 1),
        Spans(16, 4 * chunk, 1),
        Spans(1, 0, chunk),
        Spans(1, 4 * chunk, chunk),
    )
    for case in cases:
        for window in (None, sizes.window):
            yield attention_timing(case, sizes, window)


def attention_timing(case: Spans, sizes: Sizes, window: int | None) -> KernelTiming:
    spans, past, count = case
    shape, width = sizes.attention(window), sizes.heads * sizes.head_dim
    kv, span = random_kv(past + count, spans, shape.head_dim), span_rows([past] * spans, count)
    q = random_rows(spans * count, width).reshape(-1, shape.heads, shape.head_dim)
    seconds = sizes.best(partial(OPS.attention, q, shape, kv, 0, span))
    keys = sum(min(p + 1, window or p + 1) for p in range(past, past + count)) * spans
    # A key and a value of two bytes per number. Each is read once per span, for all of its tokens.
    read = min(past + count, (window or past) + count) * spans * 2 * shape.head_dim * 2
    return KernelTiming(f"{spans} x {count} after {past}, window {window}", seconds, read, 2 * keys * width)


def small_timings(sizes: Sizes) -> Iterator[KernelTiming]:
    """Norms, gates and rotation, fused with the quantization of their results as in the decoder."""
    matrix = random_matrix(sizes.qkv, sizes.dim, Precision.INT16)
    down = random_matrix(sizes.dim, sizes.hidden, Precision.INT16)
    w = random_rows(1, sizes.dim)[0]
    for count in (1, 16, sizes.tokens):
        x, wide = random_rows(count, sizes.dim), random_rows(count, 2 * sizes.hidden)
        kernels: tuple[tuple[str, Callable[[], object], int], ...] = (
            ("norm_prepare", partial(OPS.norm_prepare, x, w, 1e-6, matrix), x.nbytes),
            ("add_norm", partial(OPS.add_norm, x, x, w, 1e-6), 2 * x.nbytes),
            ("gated_prepare", partial(OPS.gated_prepare, wide, Gate.GELU_TANH, down), wide.nbytes),
        )
        for name, run, read in kernels:
            yield KernelTiming(f"{name}, {count} rows", sizes.best(run), read, 0)
        yield rope_timing(count, sizes)


def rope_timing(count: int, sizes: Sizes) -> KernelTiming:
    shape, norm = sizes.attention(None), random_rows(1, sizes.head_dim)[0]
    qkv, angles = random_rows(count, sizes.qkv), random_rows(count, sizes.head_dim).reshape(count, 2, -1)
    kv, span = random_kv(count, 1, sizes.head_dim), span_rows([0], count)
    seconds = sizes.best(lambda: OPS.rope_store(qkv, shape, norm, norm, 1e-6, angles, kv, 0, span))
    return KernelTiming(f"rope_store, {count} rows", seconds, qkv.nbytes, 0)


def choose_timings(sizes: Sizes) -> Iterator[KernelTiming]:
    """Sampling one token per row."""
    logits = random_rows(16, sizes.vocabulary) * 3
    for name, temperature, top_k, top_p in (
        ("greedy", 0.0, 0, 1.0),
        ("temperature 1", 1.0, 0, 1.0),
        ("top-k 40", 0.8, 40, 1.0),
        ("top-p 0.9", 0.8, 0, 0.9),
    ):
        for count in (1, 16):
            sampling = SamplingRows(
                temperature=np.full(count, temperature, np.float32),
                top_k=np.full(count, top_k, np.int32),
                top_p=np.full(count, top_p, np.float32),
                min_p=np.zeros(count, np.float32),
                seed=np.arange(count, dtype=np.uint64),
                position=np.zeros(count, np.int32),
            )
            seconds = sizes.best(partial(OPS.sample, logits[:count], sampling))
            yield KernelTiming(f"{name}, {count} rows", seconds, logits[:count].nbytes, 0)


PARTS: Mapping[str, Callable[[Sizes], Iterator[KernelTiming]]] = {
    "head": head_timings,
    "layers": layer_timings,
    "attention": attention_timings,
    "small": small_timings,
    "choose": choose_timings,
}

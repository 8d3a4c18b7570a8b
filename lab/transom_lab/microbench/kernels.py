"""`transom bench micro`: speed of the native kernels, each alone, at the sizes of a model.

The best of several runs. Matrices of all layers are cycled through, so that weights are larger than the
caches where a step would find them so.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import NamedTuple

import numpy as np

from transom.bench.sheet import Row, Sheet, Wanted, publish
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
GROUPINGS = (
    (Precision.INT8, 32, False, 8),
    (Precision.INT8, 32, False, 5),
    (Precision.INT16, 32, False, 8),
    (Precision.INT16, 16, True, 8),
)
"""Of activations; weights in a group; whether groups have minima; bits of a weight's code."""
TURNS = 4
"""Of instruction sets, so that a noisy moment meets all."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of a model, and how long each kernel is run. Those of Gemma 3 270M unless said otherwise."""

    dim: int = 640
    hidden: int = 2048
    heads: int = 4
    head_dim: int = 256
    vocabulary: int = 262_144
    layers: int = 18
    window: int = 512
    tokens: int = 512
    """The most of a step."""
    seconds: float = 0.3
    isas: tuple[str, ...] = (info().isa,)
    """Instruction sets; those after the first are compared with it."""

    @property
    def qkv(self) -> int:
        return (self.heads + 2) * self.head_dim

    @property
    def projections(self) -> dict[str, tuple[int, int]]:
        """Outputs and inputs of each."""
        return {
            "qkv": (self.qkv, self.dim),
            "o": (self.dim, self.heads * self.head_dim),
            "gate_up": (2 * self.hidden, self.dim),
            "down": (self.dim, self.hidden),
        }

    def attention(self, window: int | None) -> AttentionShape:
        return AttentionShape(self.heads, 1, self.head_dim, window, 0.0625)

    def best(self, run: Callable[[], object]) -> tuple[float, ...]:
        """Of each instruction set the seconds of the shortest of the runs that fit in the time."""
        found = [float("inf")] * len(self.isas)
        for _ in range(TURNS):
            for at, isa in enumerate(self.isas):
                set_isa(isa)
                found[at] = min(found[at], shortest(run, self.seconds / TURNS))
        set_isa(self.isas[0])
        return tuple(found)


def shortest(run: Callable[[], object], seconds: float) -> float:
    """Of the runs that fit in the time, at least three."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


DEFAULT = Sizes()


@dataclass(frozen=True, slots=True)
class Line:
    """One kernel. `macs`, multiplications with an addition, are 0 where they are not what takes time."""

    name: str
    seconds: tuple[float, ...]
    bytes: float
    macs: float

    def row(self) -> Row:
        first, *others = self.seconds
        macs = self.macs / first / 1e9 if self.macs else None
        return Row(
            self.name, (first * 1e6, self.bytes / first / 1e9, macs, *(100 * first / s for s in others))
        )


def bench_micro(
    parts: Sequence[str], wanted: Wanted, threads: int | None = None, sizes: Sizes = DEFAULT
) -> None:
    """Raises ConfigError for an unknown part or instruction set."""
    for isa in sizes.isas:
        if isa not in info().isas:
            raise ConfigError(f"no kernels {isa!r} run on this CPU; there are {', '.join(info().isas)}")
    for part in parts:
        if part not in PARTS:
            raise ConfigError(f"{part!r} is no part of micro; there are {', '.join(PARTS)}")
    if threads is not None:
        set_threads(threads)
    publish("micro", (_sheet(part, sizes) for part in parts or PARTS), wanted)


def _sheet(part: str, sizes: Sizes) -> Sheet:
    rows = tuple(line.row() for line in PARTS[part](sizes))
    drawn = "us" if any(row.figures[2] is None for row in rows) else "GMAC/s"
    isa, *others = sizes.isas
    title = f"{part}: {isa}, {info().threads} threads"
    if others:
        title += f"; speed of others in % of {isa}'s"
    return Sheet(part, title, ("us", "GB/s", "GMAC/s", *others), rows, (drawn,), drawn)


# ---------------------------------------------------------------- what kernels are given


def random_matrix(
    out: int, inner: int, precision: Precision, group: int = 32, minima: bool = False, bits: int = 8
) -> PackedMatrix:
    rng, half = np.random.default_rng(0), 1 << (bits - 1)
    codes = rng.integers(128 - half, 128 + half, (out // 16, inner // 4, 16, 4), dtype=np.uint8)
    scales = rng.random((out // 16, inner // group, 16), dtype=np.float32)
    return PackedMatrix(codes, scales, scales.copy() if minima else None, group, out, inner, precision)


def size(matrix: PackedMatrix) -> int:
    offsets = 0 if matrix.zero_offsets is None else matrix.zero_offsets.nbytes
    return matrix.codes.nbytes + matrix.scales.nbytes + offsets


def rows(count: int, width: int) -> F32:
    return np.random.default_rng(1).standard_normal((count, width), dtype=np.float32)


# ---------------------------------------------------------------- parts


def head_lines(sizes: Sizes) -> Iterator[Line]:
    for precision in Precision:
        matrix = random_matrix(sizes.vocabulary, sizes.dim, precision)
        for count in (1, 4, 8, 16):
            x = OPS.prepare(rows(count, sizes.dim), matrix)
            seconds = sizes.best(partial(OPS.matmul, x, matrix))
            macs = count * sizes.vocabulary * sizes.dim
            yield Line(f"lm head, {precision.name}, {count} rows", seconds, size(matrix), macs)


def next_matmul(x: Prepared, matrices: Iterator[PackedMatrix]) -> None:
    OPS.matmul(x, next(matrices))


def layer_lines(sizes: Sizes) -> Iterator[Line]:
    for precision, group, minima, bits in GROUPINGS:
        for name, (out, inner) in sizes.projections.items():
            layers = [random_matrix(out, inner, precision, group, minima, bits) for _ in range(sizes.layers)]
            for count in (1, 16, sizes.tokens // 2, sizes.tokens):
                x = OPS.prepare(rows(count, inner), layers[0])
                seconds = sizes.best(partial(next_matmul, x, cycle(layers)))
                kind = f"{precision.name} x {bits} bits, group {group}{', minima' if minima else ''}"
                label = f"{name}, {kind}, {count} rows"
                yield Line(label, seconds, size(layers[0]), count * out * inner)


def paged(tokens: int, spans: int, head_dim: int) -> PagedKV:
    page_size, each = 16, -(-tokens // 16)
    pages = rows(1, (1 + spans * each) * 2 * page_size * head_dim).astype(np.float16)
    table = 1 + np.arange(spans * each, dtype=np.int32).reshape(spans, each)
    return PagedKV(pages.reshape(-1, 1, 2, page_size, 1, head_dim), table, page_size)


def span_rows(starts: list[int], count: int) -> SpanRows:
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
    """So many spans of `tokens` each, after `past` others each."""

    spans: int
    past: int
    tokens: int


def attention_lines(sizes: Sizes) -> Iterator[Line]:
    many = sizes.tokens
    cases = (
        (1, many, 1),
        (1, 8 * many, 1),
        (16, many, 1),
        (16, 4 * many, 1),
        (1, 0, many),
        (1, 4 * many, many),
    )
    for case in map(Spans._make, cases):
        for window in (None, sizes.window):
            yield attention_line(case, sizes, window)


def attention_line(case: Spans, sizes: Sizes, window: int | None) -> Line:
    spans, past, count = case
    shape, width = sizes.attention(window), sizes.heads * sizes.head_dim
    kv, where = paged(past + count, spans, shape.head_dim), span_rows([past] * spans, count)
    q = rows(spans * count, width).reshape(-1, shape.heads, shape.head_dim)
    seconds = sizes.best(partial(OPS.attention, q, shape, kv, 0, where))
    seen = sum(min(p + 1, window or p + 1) for p in range(past, past + count)) * spans
    read = min(past + count, (window or past) + count) * spans * 2 * shape.head_dim * 2
    return Line(f"{spans} x {count} after {past}, window {window}", seconds, read, 2 * seen * width)


def small_lines(sizes: Sizes) -> Iterator[Line]:
    matrix = random_matrix(sizes.qkv, sizes.dim, Precision.INT16)
    down = random_matrix(sizes.dim, sizes.hidden, Precision.INT16)
    w = rows(1, sizes.dim)[0]
    for count in (1, 16, sizes.tokens):
        x, wide = rows(count, sizes.dim), rows(count, 2 * sizes.hidden)
        kernels: tuple[tuple[str, Callable[[], object], int], ...] = (
            ("norm_prepare", partial(OPS.norm_prepare, x, w, 1e-6, matrix), x.nbytes),
            ("add_norm", partial(OPS.add_norm, x, x, w, 1e-6), 2 * x.nbytes),
            ("gated_prepare", partial(OPS.gated_prepare, wide, Gate.GELU_TANH, down), wide.nbytes),
        )
        for name, run, read in kernels:
            yield Line(f"{name}, {count} rows", sizes.best(run), read, 0)
        yield rope_line(count, sizes)


def rope_line(count: int, sizes: Sizes) -> Line:
    shape, norm = sizes.attention(None), rows(1, sizes.head_dim)[0]
    qkv, angles = rows(count, sizes.qkv), rows(count, sizes.head_dim).reshape(count, 2, -1)
    kv, where = paged(count, 1, sizes.head_dim), span_rows([0], count)
    seconds = sizes.best(lambda: OPS.rope_store(qkv, shape, norm, norm, 1e-6, angles, kv, 0, where))
    return Line(f"rope_store, {count} rows", seconds, qkv.nbytes, 0)


def choose_lines(sizes: Sizes) -> Iterator[Line]:
    logits = rows(16, sizes.vocabulary) * 3
    for name, temperature, top_k, top_p in (
        ("greedy", 0.0, 0, 1.0),
        ("temperature 1", 1.0, 0, 1.0),
        ("top-k 40", 0.8, 40, 1.0),
        ("top-p 0.9", 0.8, 0, 0.9),
    ):
        for count in (1, 16):
            how = SamplingRows(
                temperature=np.full(count, temperature, np.float32),
                top_k=np.full(count, top_k, np.int32),
                top_p=np.full(count, top_p, np.float32),
                min_p=np.zeros(count, np.float32),
                seed=np.arange(count, dtype=np.uint64),
                position=np.zeros(count, np.int32),
            )
            seconds = sizes.best(partial(OPS.sample, logits[:count], how))
            yield Line(f"{name}, {count} rows", seconds, logits[:count].nbytes, 0)


PARTS: Mapping[str, Callable[[Sizes], Iterator[Line]]] = {
    "head": head_lines,
    "layers": layer_lines,
    "attention": attention_lines,
    "small": small_lines,
    "choose": choose_lines,
}

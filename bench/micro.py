"""Speed of the native kernels at the sizes of the default model: `python bench/micro.py [--threads N]`.

Prints a table. Best of several runs, weights larger than the caches where a step would find them so: the
layers' matrices are cycled through. With `--isa NAME ...` several instruction sets take turns: rates are the
first one's, then comes how fast each of the others is, the first being 1.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import cycle

import numpy as np

from transom.ops.native import NativeOps, info, set_isa, set_threads
from transom.ops.protocol import (
    F32,
    AttentionShape,
    ChoiceRows,
    Gate,
    PackedMatrix,
    PagedKV,
    Precision,
    Prepared,
    SpanRows,
)

DIM, HIDDEN, QKV, HEADS, HEAD_DIM, VOCABULARY, LAYERS = 640, 2048, 1536, 4, 256, 262_144, 18
SHAPE = {"qkv": (QKV, DIM), "o": (DIM, HEADS * HEAD_DIM), "gate_up": (2 * HIDDEN, DIM), "down": (DIM, HIDDEN)}
OPS = NativeOps()


@dataclass(frozen=True, slots=True)
class Line:
    """A row of the table; what does not apply is 0."""

    name: str
    run: Callable[[], object]
    bytes: float
    macs: float

    def shown(self, seconds: list[float]) -> str:
        first, *others = seconds
        rates = f"{self.bytes / first / 1e9:8.1f} {self.macs / first / 1e9:8.1f}"
        ratios = "".join(f" {first / other:8.2f}" for other in others)
        return f"{self.name:<52} {first * 1e6:10.1f} {rates}{ratios}"


def best(run: Callable[[], object], seconds: float) -> float:
    """The shortest of the runs that fit in the time, at least three."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def best_of_each(
    run: Callable[[], object], isas: list[str], turns: int = 4, seconds: float = 0.3
) -> list[float]:
    """For each instruction set, which take turns so that a noisy moment meets all."""
    found = [float("inf")] * len(isas)
    for _ in range(turns):
        for at, isa in enumerate(isas):
            set_isa(isa)
            found[at] = min(found[at], best(run, seconds / turns))
    return found


def random_matrix(
    out: int, inner: int, precision: Precision, group: int = 32, minima: bool = False, code_bits: int = 8
) -> PackedMatrix:
    rng = np.random.default_rng(0)
    half = 1 << (code_bits - 1)
    codes = rng.integers(128 - half, 128 + half, (out // 16, inner // 4, 16, 4), dtype=np.uint8)
    scales = rng.random((out // 16, inner // group, 16), dtype=np.float32)
    return PackedMatrix(codes, scales, scales.copy() if minima else None, group, out, inner, precision)


def size(matrix: PackedMatrix) -> int:
    return matrix.codes.nbytes + matrix.scales.nbytes + (0 if matrix.minima is None else matrix.minima.nbytes)


def rows(count: int, width: int) -> F32:
    return np.random.default_rng(1).standard_normal((count, width), dtype=np.float32)


def head_lines() -> Iterator[Line]:
    for precision in Precision:
        matrix = random_matrix(VOCABULARY, DIM, precision)
        for count in (1, 4, 8, 16):
            x = OPS.prepare(rows(count, DIM), matrix)
            run = partial(OPS.matmul, x, matrix)
            macs = count * VOCABULARY * DIM
            yield Line(f"lm head, {precision.name}, {count} rows", run, size(matrix), macs)


def next_matmul(x: Prepared, matrices: Iterator[PackedMatrix]) -> None:
    OPS.matmul(x, next(matrices))


def layer_lines() -> Iterator[Line]:
    for precision, group, minima, bits in (
        (Precision.INT8, 32, False, 8),
        (Precision.INT8, 32, False, 5),
        (Precision.INT16, 32, False, 8),
        (Precision.INT16, 16, True, 8),
    ):
        for name, (out, inner) in SHAPE.items():
            layers = [random_matrix(out, inner, precision, group, minima, bits) for _ in range(LAYERS)]
            for count in (1, 16, 256, 512):
                x = OPS.prepare(rows(count, inner), layers[0])
                run = partial(next_matmul, x, cycle(layers))
                kind = f"{precision.name} x {bits} bits, group {group}{', minima' if minima else ''}"
                label = f"{name}, {kind}, {count} rows"
                yield Line(label, run, size(layers[0]), count * out * inner)


def paged(tokens: int, spans: int) -> PagedKV:
    page_size, each = 16, -(-tokens // 16)
    pages = rows(1, (1 + spans * each) * 2 * page_size * HEAD_DIM).astype(np.float16)
    table = 1 + np.arange(spans * each, dtype=np.int32).reshape(spans, each)
    return PagedKV(pages.reshape(-1, 1, 2, page_size, 1, HEAD_DIM), table, page_size)


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


def attention_lines() -> Iterator[Line]:
    cases = [(1, 512, 1), (1, 4096, 1), (16, 512, 1), (16, 2048, 1), (1, 0, 512), (1, 2048, 512)]
    for spans, past, count in cases:
        for window in (None, 512):
            shape = AttentionShape(HEADS, 1, HEAD_DIM, window, 0.0625)
            kv, where = paged(past + count, spans), span_rows([past] * spans, count)
            q = rows(spans * count, HEADS * HEAD_DIM).reshape(-1, HEADS, HEAD_DIM)
            run = partial(OPS.attention, q, shape, kv, 0, where)
            seen = sum(min(p + 1, window or p + 1) for p in range(past, past + count)) * spans
            read = min(past + count, (window or past) + count) * spans * 2 * HEAD_DIM * 2
            label = f"attention, {spans} x {count} after {past}, window {window}"
            yield Line(label, run, read, 2 * seen * HEADS * HEAD_DIM)


def small_lines() -> Iterator[Line]:
    matrix = random_matrix(QKV, DIM, Precision.INT16)
    for count in (1, 16, 512):
        x, w, wide = rows(count, DIM), rows(1, DIM)[0], rows(count, 2 * HIDDEN)
        down = random_matrix(DIM, HIDDEN, Precision.INT16)
        norm, gate = partial(OPS.norm_prepare, x, w, 1e-6, matrix), Gate.GELU_TANH
        yield Line(f"norm_prepare, {count} rows", norm, x.nbytes, 0)
        yield Line(f"add_norm, {count} rows", partial(OPS.add_norm, x.copy(), x, w, 1e-6), 2 * x.nbytes, 0)
        gated = partial(OPS.gated_prepare, wide, gate, down)
        yield Line(f"gated_prepare, {count} rows", gated, wide.nbytes, 0)
        yield rope_line(count)


def rope_line(count: int) -> Line:
    shape = AttentionShape(HEADS, 1, HEAD_DIM, None, 0.0625)
    qkv, angles, norm = rows(count, QKV), rows(count, HEAD_DIM).reshape(count, 2, -1), rows(1, HEAD_DIM)[0]
    kv, where = paged(count, 1), span_rows([0], count)
    run = partial(OPS.rope_store, qkv, shape, norm, norm, 1e-6, angles, kv, 0, where)
    return Line(f"rope_store, {count} rows", run, qkv.nbytes, 0)


def choose_lines() -> Iterator[Line]:
    logits = rows(16, VOCABULARY) * 3
    for name, temperature, top_k, top_p in (
        ("greedy", 0.0, 0, 1.0),
        ("temperature 1", 1.0, 0, 1.0),
        ("top-k 40", 0.8, 40, 1.0),
        ("top-p 0.9", 0.8, 0, 0.9),
    ):
        for count in (1, 16):
            how = ChoiceRows(
                temperature=np.full(count, temperature, np.float32),
                top_k=np.full(count, top_k, np.int32),
                top_p=np.full(count, top_p, np.float32),
                min_p=np.zeros(count, np.float32),
                seed=np.arange(count, dtype=np.uint64),
                position=np.zeros(count, np.int32),
            )
            run = partial(OPS.choose, logits[:count], how)
            yield Line(f"choose {name}, {count} rows", run, logits[:count].nbytes, 0)


PARTS = {
    "head": head_lines,
    "layers": layer_lines,
    "attention": attention_lines,
    "small": small_lines,
    "choose": choose_lines,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=info().threads)
    parser.add_argument(
        "--isa", nargs="+", choices=info().isas, default=[info().isa], help="default: the one in use"
    )
    parser.add_argument("--part", nargs="+", choices=[*PARTS], default=list(PARTS))
    arguments = parser.parse_args()
    set_threads(arguments.threads)
    print(info())
    others = "".join(f" {isa:>8}" for isa in arguments.isa[1:])
    print(f"{arguments.isa[0]:<52} {'us':>10} {'GB/s':>8} {'GMAC/s':>8}{others}")
    for part in arguments.part:
        for line in PARTS[part]():
            print(line.shown(best_of_each(line.run, arguments.isa)), flush=True)


if __name__ == "__main__":
    main()

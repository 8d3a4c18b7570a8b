"""Native attention: the reference's bits, whatever the spans, pages, threads and instruction set."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from transom.ops.native import NativeOps
from transom.ops.protocol import AttentionShape, PagedKV, SpanRows
from transom.ops.reference import ReferenceOps

F32 = NDArray[np.float32]
REFERENCE = ReferenceOps()
LAYER = 1


@dataclass(frozen=True, slots=True)
class Case:
    """The arguments of one call of attention."""

    q: F32
    kv: PagedKV
    spans: SpanRows


def random(seed: int, *shape: int) -> F32:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def span_rows(spans: Sequence[tuple[int, int]]) -> SpanRows:
    """Span arrays for spans of (start, count); span i is in row i."""
    counts, order = [count for _, count in spans], np.arange(len(spans), dtype=np.int32)
    return SpanRows(
        rows=order,
        starts=np.array([start for start, _ in spans], dtype=np.int32),
        offsets=np.cumsum([0, *counts]).astype(np.int32),
        positions=np.concatenate([np.arange(s, s + c) for s, c in spans]).astype(np.int32),
        token_rows=np.repeat(order, counts),
    )


def make(
    shape: AttentionShape,
    spans: Sequence[tuple[int, int]],
    *,
    page_size: int = 16,
    kv_type: type = np.float16,
    fill: float = np.nan,
) -> Case:
    """Writes only slots that a query of a span may read; the rest, including the null page, is `fill`."""
    per_row = max(-(-(start + count) // page_size) for start, count in spans) + 1
    count = len(spans) * per_row
    pages: NDArray[Any] = np.full(
        (count + 1, 2, 2, page_size, shape.kv_heads, shape.head_dim), fill, dtype=kv_type
    )
    table = 1 + np.random.default_rng(0).permutation(count).astype(np.int32).reshape(len(spans), per_row)
    for row, (start, tokens) in enumerate(spans):
        first = max(0, start - shape.window + 1) if shape.window else 0
        written = np.arange(first, start + tokens)
        values = random(row, 2, len(written), shape.kv_heads, shape.head_dim)
        for which in (0, 1):
            pages[table[row, written // page_size], LAYER, which, written % page_size] = values[which]
        table[row, : first // page_size] = 0
    tokens = sum(tokens for _, tokens in spans)
    q = random(99, tokens, shape.heads, shape.head_dim)
    return Case(q, PagedKV(pages, table, page_size), span_rows(spans))


def run(ops: NativeOps | ReferenceOps, shape: AttentionShape, case: Case) -> NDArray[np.uint32]:
    return ops.attention(case.q, shape, case.kv, LAYER, case.spans).view(np.uint32)


SPANS = [(0, 70), (130, 1), (63, 2), (300, 1), (64, 1)]
HEADS = [(4, 1, 32), (4, 2, 16), (3, 3, 48), (8, 1, 80), (5, 1, 16)]


@pytest.mark.parametrize("kv_type", [np.float16, np.float32])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), HEADS)
def test_attention_has_the_bits_of_the_reference(
    native: NativeOps, heads: int, kv_heads: int, head_dim: int, kv_type: type
) -> None:
    for page_size, window, softcap in (
        (1, None, None),
        (5, 7, 5.0),
        (16, 64, None),
        (16, 1, None),
        (7, 100, 5.0),
    ):
        shape = AttentionShape(heads, kv_heads, head_dim, window, 0.3, softcap)
        case = make(shape, SPANS, page_size=page_size, kv_type=kv_type)
        np.testing.assert_array_equal(run(native, shape, case), run(REFERENCE, shape, case))


@pytest.mark.parametrize("window", [None, 7, 100])
def test_clipped_attention_has_the_bits_of_the_reference(native: NativeOps, window: int | None) -> None:
    shape = AttentionShape(4, 2, 32, window, 0.3)
    case = make(shape, SPANS)
    clips = np.array([0, 125, 63, 200, 40], dtype=np.int32)
    case = replace(case, spans=replace(case.spans, clips=clips))
    for row, clip in enumerate(clips):
        case.kv.rows[row, : clip // 16] = 0
    np.testing.assert_array_equal(run(native, shape, case), run(REFERENCE, shape, case))


@pytest.mark.parametrize("window", [None, 512])
def test_the_default_models_heads_have_the_bits_of_the_reference(
    native: NativeOps, window: int | None
) -> None:
    shape = AttentionShape(4, 1, 256, window, 0.0625)
    case = make(shape, [(700, 1), (600, 20)])
    np.testing.assert_array_equal(run(native, shape, case), run(REFERENCE, shape, case))


SHAPE = AttentionShape(heads=4, kv_heads=2, head_dim=32, window=70, scale=0.2)


@pytest.mark.parametrize("window", [None, 1, 70])
def test_a_span_has_the_bits_of_its_tokens_one_by_one(native: NativeOps, window: int | None) -> None:
    shape = replace(SHAPE, window=window)
    case = make(shape, [(0, 200)])
    whole = run(native, shape, case)
    for cuts in ([0, 64, 200], [0, 1, 100, 101, 200], list(range(201))):
        parts = []
        for start, end in pairwise(cuts):
            part = Case(case.q[start:end].copy(), case.kv, span_rows([(start, end - start)]))
            parts.append(run(native, shape, part))
        np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_a_row_alone_has_the_bits_that_it_has_in_a_batch(native: NativeOps) -> None:
    case = make(SHAPE, SPANS)
    batch = run(native, SHAPE, case)
    for row, (start, count) in enumerate(SPANS):
        first = int(case.spans.offsets[row])
        alone = replace(span_rows([(start, count)]), rows=np.array([row], dtype=np.int32))
        part = Case(case.q[first : first + count].copy(), case.kv, alone)
        np.testing.assert_array_equal(run(native, SHAPE, part), batch[first : first + count])


def test_slots_never_written_change_no_bit(native: NativeOps) -> None:
    shape = replace(SHAPE, heads=8)
    results = [run(native, shape, make(shape, SPANS, fill=fill)) for fill in (0.0, np.nan, np.inf)]
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


@pytest.mark.parametrize("window", [1, 5, 63, 64, 65, 128])
def test_a_window_reads_exactly_its_keys(native: NativeOps, window: int) -> None:
    """One-hot values show which keys were read. All scores are 0, so all keys have the same weight."""
    tokens, dim = 150, 160
    shape = AttentionShape(1, 1, dim, window, 1.0)
    pages = np.zeros((2, 2, 2, tokens, 1, dim), dtype=np.float32)
    pages[1, LAYER, 1, :, 0, :tokens] = np.eye(tokens)
    kv = PagedKV(pages, np.ones((1, 1), dtype=np.int32), tokens)
    for cuts in ([0, tokens], [0, 70, tokens], [0, *range(120, tokens + 1)]):
        for start, end in pairwise(cuts):
            q = np.ones((end - start, 1, dim), dtype=np.float32)
            read = native.attention(q, shape, kv, LAYER, span_rows([(start, end - start)])) != 0
            positions = np.arange(start, end)[:, np.newaxis]
            keys = np.arange(dim)[np.newaxis]
            np.testing.assert_array_equal(read, (keys <= positions) & (keys > positions - window))


def test_a_row_with_nan_changes_no_other_row(native: NativeOps) -> None:
    case = make(SHAPE, SPANS)
    before = run(native, SHAPE, case)
    case.q[3] = np.nan
    after = run(native, SHAPE, case)
    assert np.isnan(after[3].view(np.float32)).all()
    np.testing.assert_array_equal(np.delete(after, 3, axis=0), np.delete(before, 3, axis=0))

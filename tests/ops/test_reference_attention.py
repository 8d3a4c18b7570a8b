"""Attention of the numpy backend: close to float64, and the same bits for every split of the work."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from transom.ops.elementary import exp
from transom.ops.protocol import AttentionShape, PagedKV, SpanRows
from transom.ops.reference import ReferenceOps
from transom.ops.store import KVStore, KVType, PageShape

F32 = NDArray[np.float32]
OPS = ReferenceOps()
SHAPE = AttentionShape(heads=4, kv_heads=2, head_dim=32, window=None, scale=0.2)
WINDOWED = replace(SHAPE, window=23)


def random(seed: int, *shape: int) -> F32:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def spans_of(*spans: tuple[int, int, int]) -> SpanRows:
    """Span arrays for spans of (row, start, end)."""
    positions = [np.arange(start, end, dtype=np.int32) for _, start, end in spans]
    lengths = [len(part) for part in positions]
    rows = np.array([row for row, _, _ in spans], dtype=np.int32)
    return SpanRows(
        rows=rows,
        starts=np.array([start for _, start, _ in spans], dtype=np.int32),
        offsets=np.cumsum([0, *lengths], dtype=np.int32),
        positions=np.concatenate(positions),
        token_rows=np.repeat(rows, lengths),
    )


def stored(
    keys: F32, values: F32, *, page_size: int = 16, seed: int = 0, fill: float = 0.0, row: int = 0
) -> PagedKV:
    """Keys and values `[tokens, 2, 32]` in layer 1 of shuffled pages of `row`; `fill` everywhere else."""
    count = -(-len(keys) // page_size)
    store = KVStore((PageShape(3, page_size, 2, 32, KVType.FLOAT16),), (2 * count + 3,))
    store.fill(fill)
    table = np.zeros((row + 1, count + 2), dtype=np.int32)
    table[row, :count] = 1 + np.random.default_rng(seed).permutation(2 * count + 3)[:count]
    view = store.view(0)
    for position in range(len(keys)):
        page, slot = table[row, position // page_size], position % page_size
        view[page, 1, 0, slot], view[page, 1, 1, slot] = keys[position], values[position]
    return store.paged(0, table)


def attend(q: F32, kv: PagedKV, start: int, shape: AttentionShape, row: int = 0) -> F32:
    return OPS.attention(q, shape, kv, 1, spans_of((row, start, start + len(q))))


def plain_attention(q: F32, keys: F32, values: F32, start: int, shape: AttentionShape) -> NDArray[np.float64]:
    """The textbook formula in float64, one query and head at a time, keys as float16 holds them."""
    k, v = (x.astype(np.float16).astype(np.float64) for x in (keys, values))
    out = np.zeros(q.shape)
    for t, head in np.ndindex(len(q), shape.heads):
        position = start + t
        first = 0 if shape.window is None else max(0, position - shape.window + 1)
        group = head * shape.kv_heads // shape.heads
        scores = k[first : position + 1, group] @ q[t, head].astype(np.float64) * shape.scale
        if shape.softcap is not None:
            scores = shape.softcap * np.tanh(scores / shape.softcap)
        p = np.exp(scores - scores.max())
        out[t, head] = p @ v[first : position + 1, group] / p.sum()
    return out.reshape(len(q), -1)


@pytest.mark.parametrize("window", [None, 1, 2, 23, 64, 65, 130, 1000])
@pytest.mark.parametrize(("start", "tokens"), [(0, 1), (0, 150), (63, 3), (190, 10), (199, 1)])
def test_attention_is_close_to_float64(window: int | None, start: int, tokens: int) -> None:
    shape = replace(SHAPE, window=window)
    keys, values, q = random(1, 200, 2, 32), random(2, 200, 2, 32), random(3, tokens, 4, 32) * 3
    got = attend(q, stored(keys, values), start, shape)
    np.testing.assert_allclose(got, plain_attention(q, keys, values, start, shape), atol=2e-6)


def test_softcapped_attention_is_close_to_float64() -> None:
    shape = replace(SHAPE, softcap=5.0)
    keys, values, q = random(4, 100, 2, 32), random(5, 100, 2, 32), random(6, 30, 4, 32) * 8
    got = attend(q, stored(keys, values), 70, shape)
    np.testing.assert_allclose(got, plain_attention(q, keys, values, 70, shape), atol=1e-5)


def test_scores_far_apart_do_not_overflow() -> None:
    keys, values, q = random(7, 150, 2, 32) * 50, random(8, 150, 2, 32), random(9, 5, 4, 32) * 50
    got = attend(q, stored(keys, values), 145, SHAPE)
    np.testing.assert_allclose(got, plain_attention(q, keys, values, 145, SHAPE), atol=2e-3)


@pytest.mark.parametrize("shape", [SHAPE, WINDOWED])
def test_chunks_do_not_change_a_bit(shape: AttentionShape) -> None:
    keys, values, q = random(10, 170, 2, 32), random(11, 170, 2, 32), random(12, 170, 4, 32)
    kv = stored(keys, values)
    whole = attend(q, kv, 0, shape)
    for cuts in ([1, 2, 64, 65], [63, 128], [100], list(range(160, 170))):
        edges = [0, *cuts, 170]
        parts = [attend(q[a:b], kv, a, shape) for a, b in pairwise(edges)]
        np.testing.assert_array_equal(np.concatenate(parts), whole)


@pytest.mark.parametrize("shape", [SHAPE, WINDOWED])
def test_page_size_does_not_change_a_bit(shape: AttentionShape) -> None:
    keys, values, q = random(13, 150, 2, 32), random(14, 150, 2, 32), random(15, 40, 4, 32)
    expected = attend(q, stored(keys, values), 110, shape)
    for page_size in (1, 3, 4, 64, 100):
        got = attend(q, stored(keys, values, page_size=page_size, seed=page_size), 110, shape)
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("shape", [SHAPE, WINDOWED])
def test_neighbours_in_the_batch_do_not_change_a_bit(shape: AttentionShape) -> None:
    keys, values, q = random(16, 100, 2, 32), random(17, 100, 2, 32), random(18, 9, 4, 32)
    kv = stored(keys, values)
    kv = replace(kv, rows=np.concatenate([kv.rows, kv.rows[:, ::-1], kv.rows]))
    kv.rows[1, kv.rows[1] == 0] = 1
    together = OPS.attention(q, shape, kv, 1, spans_of((2, 90, 95), (1, 7, 8), (0, 64, 67)))
    np.testing.assert_array_equal(together[:5], attend(q[:5], kv, 90, shape))
    np.testing.assert_array_equal(together[6:], attend(q[6:], kv, 64, shape))


@pytest.mark.parametrize("page_size", [1, 3, 16])
def test_unused_slots_may_hold_nan(page_size: int) -> None:
    """Slots after the end, pages outside of the window, other layers and the null page are not read."""
    keys, values, q = random(19, 150, 2, 32), random(20, 150, 2, 32), random(21, 6, 4, 32)
    clean = stored(keys, values, page_size=page_size)
    poisoned = stored(keys, values, page_size=page_size, fill=np.nan)
    for shape in (SHAPE, WINDOWED):
        np.testing.assert_array_equal(attend(q, poisoned, 144, shape), attend(q, clean, 144, shape))
    needed = 144 - 23 + 1
    poisoned.rows[0, : needed // page_size] = 0
    np.testing.assert_array_equal(attend(q, poisoned, 144, WINDOWED), attend(q, clean, 144, WINDOWED))


@pytest.mark.parametrize("shape", [SHAPE, WINDOWED])
@pytest.mark.parametrize("clip", [1, 63, 64, 100, 120, 140])
def test_no_key_before_the_clip_is_read(shape: AttentionShape, clip: int) -> None:
    """The row then begins at the clip: positions before it need no page."""
    keys, values, q = random(28, 150, 2, 32), random(29, 150, 2, 32), random(30, 10, 4, 32)
    kv = stored(keys, values, page_size=4, fill=np.nan)
    spans = replace(spans_of((0, 140, 150)), clips=np.array([clip], dtype=np.int32))
    kv.rows[0, : max(clip, 0 if shape.window is None else 140 - 22) // 4] = 0
    got = OPS.attention(q, shape, kv, 1, spans)
    for t in range(10):
        first = max(clip, 0 if shape.window is None else 140 + t - 22)
        k, v = keys[first : 141 + t], values[first : 141 + t]
        alone = plain_attention(q[t : t + 1], k, v, len(k) - 1, SHAPE)
        np.testing.assert_allclose(got[t : t + 1], alone, atol=2e-6)


def test_a_clip_before_all_windows_changes_no_bit() -> None:
    keys, values, q = random(31, 150, 2, 32), random(32, 150, 2, 32), random(33, 10, 4, 32)
    kv, spans = stored(keys, values), spans_of((0, 140, 150))
    clipped = replace(spans, clips=np.array([140 - 22], dtype=np.int32))
    np.testing.assert_array_equal(
        OPS.attention(q, WINDOWED, kv, 1, clipped), OPS.attention(q, WINDOWED, kv, 1, spans)
    )


@pytest.mark.parametrize("window", [1, 2, 7, 16, 64, 65])
@pytest.mark.parametrize("tokens", [1, 5, 40])
def test_a_query_sees_exactly_its_window(window: int, tokens: int) -> None:
    """A value of 1 at one position shows in exactly the queries q with q - window < position <= q."""
    start, shape = 90, replace(SHAPE, window=window)
    keys, q = random(22, 130, 2, 32), random(23, tokens, 4, 32)
    queries = np.arange(start, start + tokens)
    edges = {start - window, start - window + 1, start, start + tokens - 1, start + tokens - window}
    for probe in sorted(p for p in edges if 0 <= p < start + tokens):
        values = np.zeros((130, 2, 32), dtype=np.float32)
        values[probe] = 1
        seen = attend(q, stored(keys, values), start, shape).reshape(tokens, -1) > 0
        expected = (queries - window < probe) & (probe <= queries)
        assert (seen.all(axis=1) == expected).all() and (seen.any(axis=1) == expected).all()


def test_full_attention_sees_everything_up_to_itself() -> None:
    keys, q = random(24, 130, 2, 32) * np.float32(0.1), random(25, 5, 4, 32)
    for probe in (0, 63, 64, 99, 100, 104):
        values = np.zeros((130, 2, 32), dtype=np.float32)
        values[probe] = 1
        seen = attend(q, stored(keys, values), 100, SHAPE) > 0
        assert (seen.all(axis=1) == (probe <= np.arange(100, 105))).all()


def test_a_constant_value_comes_back_unchanged_up_to_rounding() -> None:
    keys, q = random(26, 100, 2, 32), random(27, 3, 4, 32)
    got = attend(q, stored(keys, np.full((100, 2, 32), 0.75, dtype=np.float32)), 97, SHAPE)
    np.testing.assert_allclose(got, 0.75, rtol=1e-6)


def slow_fma(a: np.float32, b: np.float32, c: np.float32) -> np.float32:
    """In extended precision: independent of the code under test."""
    return np.float32(np.longdouble(a) * np.longdouble(b) + np.longdouble(c))


def slow_folded(lanes: list[np.float32]) -> np.float32:
    for half in (8, 4, 2, 1):
        lanes = [np.float32(lanes[j] + lanes[j + half]) for j in range(half)]
    return lanes[0]


def slow_exp(x: np.float32) -> np.float32:
    return np.float32(exp(np.array([x], dtype=np.float32))[0])


def slow_tile(q: F32, k: F32, v: F32, seen: range, scale: float) -> tuple[np.float32, np.float32, F32]:
    """Largest score, sum and values of the keys `seen` of one tile, for one query and head."""
    scores = []
    for key in seen:
        lanes = [np.float32(0)] * 16
        for d in range(len(q)):
            lanes[d % 16] = slow_fma(q[d], k[key, d], lanes[d % 16])
        scores.append(np.float32(slow_folded(lanes) * np.float32(scale)))
    largest = max(scores)
    lanes, a = [np.float32(0)] * 16, np.zeros(len(q), dtype=np.float32)
    for key, score in zip(seen, scores, strict=True):
        p = slow_exp(score - largest)
        lanes[key % 16] = np.float32(lanes[key % 16] + p)
        a = np.array([slow_fma(p, v[key, d], a[d]) for d in range(len(q))])
    return largest, slow_folded(lanes), a


def slow_attention(q: F32, k: F32, v: F32, position: int, window: int | None) -> F32:
    """The specification of `Ops.attention` for one query and head, one scalar at a time."""
    first = 0 if window is None else position - window + 1
    tiles = [
        slow_tile(q, k, v, range(max(first, start), min(start + 64, position + 1)), SHAPE.scale)
        for start in range(first // 64 * 64, position + 1, 64)
    ]
    largest, total, acc = tiles[0]
    for m, sum_of_tile, a in tiles[1:]:
        both = max(largest, m)
        s, t = slow_exp(largest - both), slow_exp(m - both)
        total = slow_fma(sum_of_tile, t, np.float32(total * s))
        acc = np.array([slow_fma(new, t, np.float32(old * s)) for new, old in zip(a, acc, strict=True)])
        largest = both
    return acc * (np.float32(1) / total)


@pytest.mark.parametrize(("position", "window"), [(19, None), (19, 5), (150, None), (150, 30), (128, 70)])
def test_attention_follows_the_specification_step_by_step(position: int, window: int | None) -> None:
    shape = replace(SHAPE, window=window)
    for seed in range(6):
        keys, values, q = (
            random(40 + seed, 151, 2, 32),
            random(50 + seed, 151, 2, 32),
            random(60 + seed, 1, 4, 32),
        )
        got = attend(q, stored(keys, values), position, shape).reshape(4, 32)
        k, v = (x.astype(np.float16).astype(np.float32) for x in (keys, values))
        head = seed % 4
        expected = slow_attention(q[0, head], k[:, head // 2], v[:, head // 2], position, window)
        np.testing.assert_array_equal(got[head], expected)


def test_a_query_with_nan_changes_no_other_query() -> None:
    keys, values, q = random(31, 100, 2, 32), random(32, 100, 2, 32), random(33, 3, 4, 32)
    clean = attend(q, stored(keys, values), 97, SHAPE)
    q[1, 2, 5] = np.nan
    got = attend(q, stored(keys, values), 97, SHAPE)
    assert np.isnan(got[1, 64:96]).all()
    np.testing.assert_array_equal(got[[0, 2]], clean[[0, 2]])

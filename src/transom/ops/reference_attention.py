"""Attention of the numpy backend: a softmax per tile of 64 keys, and tiles merged in ascending order."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from transom.ops.elementary import ONE, exp, folded_dot, folded_sum, tanh
from transom.ops.fma import fma
from transom.ops.protocol import F32, AttentionShape, PagedKV

TILE = 64

_QUERIES_AT_ONCE = 32
_PAIRS_AT_ONCE = 32
"""Pairs of a query and a tile computed together: bounds the size of temporaries, changes no bit."""

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class SpanKeys:
    """The keys that queries read: of row `row`, from `clip` on. The first query is at position `start`."""

    row: int
    start: int
    clip: int


@dataclass(frozen=True, slots=True)
class _Part:
    """Partial softmax over some keys. largest, total `[..., heads]`, values `[..., heads, head_dim]`."""

    largest: F32
    total: F32
    values: F32


def attend_span(q: F32, span: SpanKeys, shape: AttentionShape, kv: PagedKV, layer: int) -> F32:
    """Attention `[tokens, heads, head_dim]` for q of that shape, at positions [start, start + tokens)."""
    blocks = []
    for first in range(0, len(q), _QUERIES_AT_ONCE):
        block = q[first : first + _QUERIES_AT_ONCE]
        blocks.append(_attend_block(block, replace(span, start=span.start + first), shape, kv, layer))
    return np.concatenate(blocks)


@np.errstate(over="ignore", under="ignore", invalid="ignore", divide="ignore")
def _attend_block(q: F32, span: SpanKeys, shape: AttentionShape, kv: PagedKV, layer: int) -> F32:
    positions = np.arange(span.start, span.start + len(q))
    last = (span.start + len(q) - 1) // TILE
    lowest = span.clip if shape.window is None else max(span.clip, span.start - shape.window + 1)
    first = lowest // TILE
    merged, started = None, np.zeros(len(q), dtype=np.bool_)
    step = max(1, _PAIRS_AT_ONCE // len(q))
    for tile in range(first, last + 1, step):
        tiles = np.arange(tile, min(tile + step, last + 1))
        keys = tiles[:, np.newaxis] * TILE + np.arange(TILE)
        visible = _visible(positions, keys, shape.window) & (keys >= span.clip)[:, np.newaxis, :]
        k, v = _gather(kv, layer, span.row, keys, span.start + len(q))
        parts = _tile_parts(q, k, v, visible, shape)
        for index in range(len(tiles)):
            live = np.asarray(visible[index].any(axis=1))
            part = _Part(parts.largest[index], parts.total[index], parts.values[index])
            merged = part if merged is None else _merge(merged, part, live, started)
            started = started | live
    assert merged is not None and started.all(), "every query reads at least its own key"
    return merged.values * (ONE / merged.total)[..., np.newaxis]


def _visible(positions: NDArray[np.int64], keys: NDArray[np.int64], window: int | None) -> Mask:
    """`[tiles, queries, 64]`: whether a key is not after the query, and within its window."""
    back = positions[np.newaxis, :, np.newaxis] - keys[:, np.newaxis, :]
    return (back >= 0) if window is None else (back >= 0) & (back < window)


def _gather(kv: PagedKV, layer: int, row: int, keys: NDArray[np.int64], end: int) -> tuple[F32, F32]:
    """Keys and values `[tiles, 64, kv_heads, head_dim]`.

    Keys from `end` on are masked and may have no page: the last key stands in for them.
    """
    held = np.minimum(keys, end - 1)
    pages, slots = kv.rows[row, held // kv.page_size], held % kv.page_size
    k, v = kv.pages[pages, layer, 0, slots], kv.pages[pages, layer, 1, slots]
    return k.astype(np.float32), v.astype(np.float32)


def _tile_parts(q: F32, k: F32, v: F32, visible: Mask, shape: AttentionShape) -> _Part:
    """A partial softmax per tile, `[tiles, queries, heads, ...]`. Undefined where all keys are masked."""
    share = shape.heads // shape.kv_heads
    k, v = np.repeat(k, share, axis=2), np.repeat(v, share, axis=2)
    mask = visible[:, :, np.newaxis, :]
    scores = folded_dot(q[np.newaxis, :, :, np.newaxis, :], k.transpose(0, 2, 1, 3)[:, np.newaxis])
    scores = _capped(scores * np.float32(shape.scale), shape.softcap)
    largest = np.where(mask, scores, np.float32(-np.inf)).max(axis=3)
    p = np.where(mask, exp(scores - largest[..., np.newaxis]), np.float32(0))
    total = folded_sum(p).astype(np.float32, copy=False)
    return _Part(largest, total, _weigh(p, v, visible))


def _capped(scores: F32, softcap: float | None) -> F32:
    if softcap is None:
        return scores
    cap = np.float32(softcap)
    return cap * tanh(scores / cap)


def _weigh(p: F32, v: F32, visible: Mask) -> F32:
    """Sum of p * v by fma, keys ascending.

    Masked keys are skipped, not multiplied by 0: 0 * NaN is NaN, and -0 + 0 is +0.
    """
    values = np.zeros((*p.shape[:3], v.shape[3]), dtype=np.float32)
    for key in range(TILE):
        live = visible[:, :, key]
        if live.any():
            added = fma(p[..., key, np.newaxis], v[:, np.newaxis, key], values)
            values = np.where(live[..., np.newaxis, np.newaxis], added, values)
    return values


def _merge(old: _Part, new: _Part, live: Mask, started: Mask) -> _Part:
    """Merges `new` into `old` for the queries that are `live`, i.e. see a key of the tile.

    A query that has not `started` takes its first tile as it is.
    """
    largest = np.maximum(old.largest, new.largest)
    s, t = exp(old.largest - largest), exp(new.largest - largest)
    total = fma(new.total, t, old.total * s)
    values = fma(new.values, t[..., np.newaxis], old.values * s[..., np.newaxis])
    joined, fresh = (live & started)[:, np.newaxis], (live & ~started)[:, np.newaxis]
    return _Part(
        np.where(joined, largest, np.where(fresh, new.largest, old.largest)),
        np.where(joined, total, np.where(fresh, new.total, old.total)),
        np.where(joined[..., np.newaxis], values, np.where(fresh[..., np.newaxis], new.values, old.values)),
    )

"""Native row kernels: norms, gating, rotation and storing, page copies; the reference's bits."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from transom.ops.native import NativeOps
from transom.ops.pack import pack_float
from transom.ops.protocol import AttentionShape, Gate, PagedKV, SpanRows
from transom.ops.reference import ReferenceOps

F32 = NDArray[np.float32]
REFERENCE = ReferenceOps()
KV_TYPES = (np.float16, np.float32)


def random(seed: int, *shape: int) -> F32:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def bits(x: NDArray[np.floating]) -> NDArray[np.generic]:
    """The bits as integers. All NaN become equal, because their payload may differ between backends."""
    plain = np.where(np.isnan(x), x.dtype.type(np.nan), x)
    return np.ascontiguousarray(plain).view(np.uint16 if x.dtype == np.float16 else np.uint32)


@pytest.mark.parametrize("dim", [16, 80, 640])
def test_norms_have_the_bits_of_the_reference(native: NativeOps, dim: int) -> None:
    weight = random(0, dim)
    for count in (1, 2, 3, 17, 70):
        x, y = random(count, count, dim), random(count + 1, count, dim)
        x[0] *= np.float32(1e-25)
        x[-1, 3] = np.nan if count == 17 else 0
        np.testing.assert_array_equal(
            bits(native.norm(x, weight, 1e-6)), bits(REFERENCE.norm(x, weight, 1e-6))
        )
        added, expected = y.copy(), y.copy()
        native.add_norm(added, x, weight, 1e-6)
        REFERENCE.add_norm(expected, x, weight, 1e-6)
        np.testing.assert_array_equal(bits(added), bits(expected))


@pytest.mark.parametrize("act", Gate)
def test_gating_has_the_bits_of_the_reference_over_the_whole_range(native: NativeOps, act: Gate) -> None:
    edges = np.array(
        [0, -0.0, 1e-30, -1e-30, 1e-42, 5, -5, 12, -12, 200, -200, 1e20, -1e20, np.inf, -np.inf, np.nan]
    )
    gate = np.concatenate([edges, np.linspace(-9, 9, 3001)]).astype(np.float32)
    gate_up = np.concatenate([gate, random(1, len(gate))])[np.newaxis].repeat(3, axis=0)
    matrix = pack_float(random(0, 1, len(gate)))
    got, expected = (ops.gated_prepare(gate_up, act, matrix) for ops in (native, REFERENCE))
    assert isinstance(got, np.ndarray) and isinstance(expected, np.ndarray)
    np.testing.assert_array_equal(bits(got), bits(expected))


def paged(kv_type: type, kv_heads: int, head_dim: int, page_size: int = 3, pages: int = 12) -> PagedKV:
    """Two rows of 6 pages, with axis 0 strided like the pages of a store."""
    wide: NDArray[Any] = np.zeros((pages + 1, 2, 2, 2, page_size, kv_heads, head_dim), dtype=kv_type)[:, 1]
    table = 1 + np.random.default_rng(0).permutation(pages).astype(np.int32).reshape(2, -1)
    return PagedKV(wide, table, page_size)


def some_spans() -> SpanRows:
    positions = np.array([4, 5, 6, 7, 8, 9, 17], dtype=np.int32)
    return SpanRows(
        rows=np.array([1, 0], dtype=np.int32),
        starts=np.array([4, 17], dtype=np.int32),
        offsets=np.array([0, 6, 7], dtype=np.int32),
        positions=positions,
        token_rows=np.array([1] * 6 + [0], dtype=np.int32),
    )


@pytest.mark.parametrize("kv_type", KV_TYPES)
@pytest.mark.parametrize("head_dim", [16, 48, 256])
@pytest.mark.parametrize("normed", [True, False])
def test_rotation_and_storing_have_the_bits_of_the_reference(
    native: NativeOps, kv_type: type, head_dim: int, normed: bool
) -> None:
    shape = AttentionShape(heads=4, kv_heads=2, head_dim=head_dim, window=None, scale=1.0)
    qkv, cos_sin = random(0, 7, 8 * head_dim), random(1, 7, 2, head_dim // 2)
    qkv[2, -head_dim:] = np.linspace(-70000, 70000, head_dim)  # values beyond float16
    qkv[3, -head_dim:] = np.linspace(-1e-7, 1e-7, head_dim)  # and below its normal numbers
    qkv[4, -3:] = np.nan, np.inf, -0.0
    q_norm, k_norm = (random(2, head_dim), random(3, head_dim)) if normed else (None, None)
    ours, theirs = paged(kv_type, 2, head_dim), paged(kv_type, 2, head_dim)
    q = native.rope_store(qkv, shape, q_norm, k_norm, 1e-6, cos_sin, ours, 1, some_spans())
    expected = REFERENCE.rope_store(qkv, shape, q_norm, k_norm, 1e-6, cos_sin, theirs, 1, some_spans())
    np.testing.assert_array_equal(bits(q), bits(expected))
    np.testing.assert_array_equal(bits(ours.pages), bits(theirs.pages))
    assert np.count_nonzero(ours.pages[:, 0]) == 0, "another layer was written"


@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_tokens_not_stored_write_no_slot_and_need_no_page(native: NativeOps, kv_type: type) -> None:
    shape = AttentionShape(heads=4, kv_heads=2, head_dim=48, window=None, scale=1.0)
    qkv, cos_sin, weight = random(0, 7, 8 * 48), random(1, 7, 2, 24), random(2, 48)
    spans = replace(some_spans(), stored=np.array([0, 0, 1, 0, 1, 1, 0], dtype=np.bool_))
    results = []
    for ops in (native, REFERENCE):
        kv = paged(kv_type, 2, 48)
        kv.rows[1, 1] = kv.rows[0, 5] = 0
        q = ops.rope_store(qkv, shape, weight, weight, 1e-6, cos_sin, kv, 1, spans)
        results.append((bits(q), bits(kv.pages)))
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    written = kv.pages[:, 1].any(axis=(1, 3, 4))
    assert np.argwhere(written).tolist() == sorted([int(kv.rows[1, p // 3]), p % 3] for p in (6, 8, 9))


def test_every_float16_is_rounded_to_as_numpy_rounds(native: NativeOps) -> None:
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    halves = np.sort(halves[np.isfinite(halves)].astype(np.float32))
    middles = (halves[1:] + halves[:-1]) / 2
    values = np.concatenate(
        [halves, middles, np.nextafter(middles, np.float32(9e9)), np.nextafter(middles, np.float32(-9e9))]
    )
    head_dim = 4096
    tokens = -(-len(values) // head_dim)
    qkv = np.zeros((tokens, 3 * head_dim), dtype=np.float32)
    qkv[:, 2 * head_dim :] = np.resize(values, (tokens, head_dim))
    kv = PagedKV(np.zeros((2, 1, 2, tokens, 1, head_dim), np.float16), np.ones((1, 1), np.int32), tokens)
    order = np.arange(tokens, dtype=np.int32)
    spans = SpanRows(order[:1], order[:1], np.array([0, tokens], np.int32), order, np.zeros(tokens, np.int32))
    shape = AttentionShape(1, 1, head_dim, None, 1.0)
    native.rope_store(
        qkv, shape, None, None, 1e-6, np.zeros((tokens, 2, head_dim // 2), np.float32), kv, 0, spans
    )
    expected = np.clip(np.resize(values, (tokens, head_dim)), -65504, 65504).astype(np.float16)
    np.testing.assert_array_equal(bits(kv.pages[1, 0, 1, :, 0]), bits(expected))


@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_copying_a_page_copies_the_first_tokens_and_nothing_else(native: NativeOps, kv_type: type) -> None:
    ours, theirs = (paged(kv_type, 2, 16) for _ in range(2))
    for kv in (ours, theirs):
        kv.pages[...] = random(0, *kv.pages.shape)
    for tokens in (0, 2, 3):
        native.copy_pages(ours, 5, 7 + tokens, tokens)
        REFERENCE.copy_pages(theirs, 5, 7 + tokens, tokens)
    np.testing.assert_array_equal(bits(ours.pages), bits(theirs.pages))

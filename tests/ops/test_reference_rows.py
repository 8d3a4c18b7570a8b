"""Norms, gating, rope and storing of the numpy backend."""

import numpy as np
import pytest
from numpy.typing import NDArray

from transom.ops.pack import pack, pack_float
from transom.ops.protocol import Activations, AttentionShape, Gate, PackedMatrix, PagedKV, Precision, SpanRows
from transom.ops.reference import ReferenceOps
from transom.ops.store import KVStore, KVType, PageShape

F32 = NDArray[np.float32]
OPS = ReferenceOps()
FLOATS = pack_float(np.zeros((16, 96), dtype=np.float32))
"""A float matrix: `prepare` returns the rows unchanged."""


def random(seed: int, *shape: int) -> F32:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def packed_matrix(width: int) -> PackedMatrix:
    codes = np.ones((16, width), dtype=np.int8)
    return pack(codes, np.ones((16, width // 32), dtype=np.float32), None, 32, Precision.INT8)


def float_rows(x: Activations | F32) -> F32:
    assert isinstance(x, np.ndarray)
    return x


def same_activations(a: Activations | F32, b: Activations | F32) -> bool:
    assert isinstance(a, Activations) and isinstance(b, Activations)
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in ("codes", "scales", "sums"))


def test_norm_is_close_to_float64() -> None:
    x, weight = random(1, 7, 640) * np.float32(30), random(2, 640)
    wide = x.astype(np.float64)
    exact = wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + 1e-6) * weight
    np.testing.assert_allclose(OPS.norm(x, weight, 1e-6), exact, rtol=1e-6)


def test_norm_of_a_row_does_not_depend_on_the_others() -> None:
    x, weight = random(3, 40, 96), random(4, 96)
    together = OPS.norm(x, weight, 1e-6)
    for row in range(40):
        np.testing.assert_array_equal(OPS.norm(x[row : row + 1], weight, 1e-6)[0], together[row])


def test_norm_of_zeros_is_zero() -> None:
    assert not OPS.norm(np.zeros((1, 32), dtype=np.float32), random(5, 32), 1e-6).any()


def test_norm_prepare_is_norm_then_prepare() -> None:
    x, weight, matrix = random(6, 3, 96), random(7, 96), packed_matrix(96)
    normed = OPS.norm(x, weight, 1e-6)
    assert same_activations(OPS.norm_prepare(x, weight, 1e-6, matrix), OPS.prepare(normed, matrix))
    np.testing.assert_array_equal(float_rows(OPS.norm_prepare(x, weight, 1e-6, FLOATS)), normed)


def test_add_norm_adds_in_place() -> None:
    x, y, weight = random(8, 3, 96), random(9, 3, 96), random(10, 96)
    expected = x + OPS.norm(y, weight, 1e-5)
    OPS.add_norm(x, y, weight, 1e-5)
    np.testing.assert_array_equal(x, expected)


def test_gated_activation_is_close_to_float64() -> None:
    gate_up = random(11, 6, 192) * np.float32(4)
    gate, up = np.split(gate_up.astype(np.float64), 2, axis=1)
    exact = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3))) * up
    np.testing.assert_allclose(
        float_rows(OPS.gated_prepare(gate_up, Gate.GELU_TANH, FLOATS)), exact, rtol=2e-5, atol=1e-6
    )


def test_silu_is_close_to_float64() -> None:
    gate_up = random(11, 6, 192) * np.float32(4)
    gate, up = np.split(gate_up.astype(np.float64), 2, axis=1)
    got = float_rows(OPS.gated_prepare(gate_up, Gate.SILU, FLOATS))
    np.testing.assert_allclose(got, gate / (1 + np.exp(-gate)) * up, rtol=2e-5, atol=1e-6)


def test_gated_activation_of_large_gates_is_identity_or_zero() -> None:
    gate_up = np.ones((1, 192), dtype=np.float32)
    gate_up[0, :96] = np.repeat([50, -50, 1e30, -1e30], 24)
    got = float_rows(OPS.gated_prepare(gate_up, Gate.GELU_TANH, FLOATS))[0]
    np.testing.assert_array_equal(got[0:24], np.float32(50))
    np.testing.assert_array_equal(got[48:72], np.float32(1e30))
    assert np.abs(got[24:48]).max() < 1e-30 and np.abs(got[72:]).max() < 1e-7


def test_gated_activation_is_quantized_for_a_packed_matrix() -> None:
    gate_up, matrix = random(12, 2, 192), packed_matrix(96)
    rows = float_rows(OPS.gated_prepare(gate_up, Gate.GELU_TANH, FLOATS))
    assert same_activations(OPS.gated_prepare(gate_up, Gate.GELU_TANH, matrix), OPS.prepare(rows, matrix))


# ---------------------------------------------------------------- rope and storing

SHAPE = AttentionShape(heads=4, kv_heads=2, head_dim=32, window=None, scale=1.0)


def angles(positions: NDArray[np.int32]) -> F32:
    turn = positions[:, np.newaxis] * 10000.0 ** (-np.arange(16) / 16)
    return np.stack([np.cos(turn), np.sin(turn)], axis=1).astype(np.float32)


def two_spans() -> SpanRows:
    """Row 1 at positions 5..8, row 0 at 2..3."""
    return SpanRows(
        rows=np.array([1, 0], dtype=np.int32),
        starts=np.array([5, 2], dtype=np.int32),
        offsets=np.array([0, 4, 6], dtype=np.int32),
        positions=np.array([5, 6, 7, 8, 2, 3], dtype=np.int32),
        token_rows=np.array([1, 1, 1, 1, 0, 0], dtype=np.int32),
    )


def store_of(kind: KVType) -> PagedKV:
    store = KVStore((PageShape(layers=3, page_size=3, kv_heads=2, head_dim=32, type=kind),), (7,))
    store.fill(np.nan)
    return store.paged(0, np.array([[7, 2, 0], [3, 5, 1]], dtype=np.int32))


def read(kv: PagedKV, layer: int, index: int, row: int, position: int) -> F32:
    page = kv.rows[row, position // kv.page_size]
    return np.asarray(kv.pages[page, layer, index, position % kv.page_size], dtype=np.float32)


@pytest.mark.parametrize("kind", list(KVType))
def test_rope_store_norms_rotates_and_stores_each_token_in_its_slot(kind: KVType) -> None:
    qkv, q_norm, k_norm = random(13, 6, 8 * 32), random(14, 32), random(15, 32)
    kv, spans = store_of(kind), two_spans()
    q = OPS.rope_store(qkv, SHAPE, q_norm, k_norm, 1e-6, angles(spans.positions), kv, 1, spans)
    heads = qkv.astype(np.float64).reshape(6, 8, 32)
    normed = heads / np.sqrt((heads**2).mean(axis=2, keepdims=True) + 1e-6)
    expected_q, expected_k = normed[:, :4] * q_norm, normed[:, 4:6] * k_norm
    turns = angles(spans.positions).astype(np.float64)
    tolerance = 1e-6 if kind == KVType.FLOAT32 else 2e-3
    for t, (row, position) in enumerate(zip(spans.token_rows, spans.positions, strict=True)):
        turn = turns[t, 0] + 1j * turns[t, 1]
        for head in range(4):
            pairs = (expected_q[t, head, :16] + 1j * expected_q[t, head, 16:]) * turn
            np.testing.assert_allclose(q[t, head, :16], pairs.real, atol=2e-6)
            np.testing.assert_allclose(q[t, head, 16:], pairs.imag, atol=2e-6)
        for head in range(2):
            pairs = (expected_k[t, head, :16] + 1j * expected_k[t, head, 16:]) * turn
            stored = read(kv, 1, 0, row, position)[head]
            np.testing.assert_allclose(stored[:16], pairs.real, rtol=tolerance, atol=tolerance)
            np.testing.assert_allclose(stored[16:], pairs.imag, rtol=tolerance, atol=tolerance)
            values = qkv.reshape(6, 8, 32)[t, 6 + head].astype(kv.pages.dtype)
            np.testing.assert_array_equal(read(kv, 1, 1, row, position)[head], values)


def test_rope_store_writes_its_slots_and_nothing_else() -> None:
    kv, spans = store_of(KVType.FLOAT16), two_spans()
    OPS.rope_store(random(16, 6, 256), SHAPE, None, None, 1e-6, angles(spans.positions), kv, 1, spans)
    written = ~np.isnan(kv.pages)
    assert written.sum() == 6 * 2 * 2 * 32 and not written[:, [0, 2]].any() and not written[0].any()


def test_rope_store_does_not_depend_on_the_batch() -> None:
    qkv, norm, spans = random(17, 6, 256), random(18, 32), two_spans()
    together, alone = store_of(KVType.FLOAT16), store_of(KVType.FLOAT16)
    turns = angles(spans.positions)
    q = OPS.rope_store(qkv, SHAPE, norm, norm, 1e-6, turns, together, 0, spans)
    for t in range(6):
        one = slice(t, t + 1)
        single = SpanRows(
            rows=spans.token_rows[one],
            starts=spans.positions[one],
            offsets=np.array([0, 1], dtype=np.int32),
            positions=spans.positions[one],
            token_rows=spans.token_rows[one],
        )
        got = OPS.rope_store(qkv[one], SHAPE, norm, norm, 1e-6, turns[one], alone, 0, single)
        np.testing.assert_array_equal(got[0], q[t])
    np.testing.assert_array_equal(alone.pages, together.pages)


def test_values_beyond_float16_are_clamped_and_nan_stays_nan() -> None:
    kv, spans = store_of(KVType.FLOAT16), two_spans()
    qkv = np.zeros((6, 256), dtype=np.float32)
    values = [1e9, -1e9, 65519.0, 65521.0, np.nan, np.inf, 2049.0, 2051.0, 2.0**-25, 3 * 2.0**-25]
    qkv[0, 192:202] = values
    OPS.rope_store(qkv, SHAPE, None, None, 1e-6, angles(spans.positions), kv, 1, spans)
    expected = [65504, -65504, 65504, 65504, np.nan, 65504, 2048, 2052, 0, 2.0**-23]
    np.testing.assert_array_equal(read(kv, 1, 1, 1, 5)[0, :10], np.array(expected, dtype=np.float32))


def test_copying_a_page_copies_the_first_tokens_of_every_layer() -> None:
    kv = store_of(KVType.FLOAT16)
    kv.pages[5] = random(19, *kv.pages[5].shape)
    OPS.copy_pages(kv, 5, 2, 2)
    np.testing.assert_array_equal(kv.pages[2, :, :, :2], kv.pages[5, :, :, :2])
    assert np.isnan(kv.pages[2, :, :, 2]).all()

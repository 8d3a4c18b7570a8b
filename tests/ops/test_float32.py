"""The float32 backend agrees with the numpy oracle, within float32."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from transom.ops.float32 import Float32Ops
from transom.ops.pack import pack, pack_float
from transom.ops.protocol import AttentionShape, Gate, Matrix, Ops, PagedKV, Precision, SamplingRows, SpanRows
from transom.ops.reference import ReferenceOps
from transom.ops.store import KVStore, KVType, PageShape

F32 = NDArray[np.float32]
SHAPE = AttentionShape(heads=4, kv_heads=2, head_dim=32, window=None, scale=0.2)


def random(seed: int, *shape: int) -> F32:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def packed(width: int) -> Matrix:
    codes = np.random.default_rng(1).integers(-127, 128, (40, width)).astype(np.int8)
    scales = random(2, 40, width // 32)
    return pack(codes, scales, random(3, 40, width // 32), 32, Precision.INT16)


@pytest.mark.parametrize("matrix", [packed(96), pack_float(random(4, 40, 96))])
def test_matmul_gating_norm_and_embedding_agree_with_the_oracle(matrix: Matrix) -> None:
    x, gate_up, weight = random(5, 3, 96), random(6, 3, 192), random(7, 96)
    tokens = np.array([39, 3], dtype=np.int32)

    def run(ops: Ops) -> list[F32]:
        added = x.copy()
        ops.add_norm(added, gate_up[:, :96], weight, 1e-6)
        return [
            ops.matmul(ops.prepare(x, matrix), matrix),
            ops.matmul(ops.norm_prepare(x, weight, 1e-6, matrix), matrix),
            ops.matmul(ops.gated_prepare(gate_up, Gate.GELU_TANH, matrix), matrix),
            ops.embed(matrix, tokens, 2.5),
            ops.norm(x, weight, 1e-6),
            added,
        ]

    for got, expected in zip(run(Float32Ops()), run(ReferenceOps()), strict=True):
        assert got.dtype == np.float32 and got.shape == expected.shape
        np.testing.assert_allclose(got, expected, atol=5e-5 * np.abs(expected).max())


@pytest.mark.parametrize("window", [None, 1, 30])
@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize(("clip", "stored_from"), [(0, 0), (61, 77)])
def test_rope_storing_and_attention_agree_with_the_oracle(
    window: int | None, softcap: float | None, clip: int, stored_from: int
) -> None:
    positions = np.arange(70, 90, dtype=np.int32)
    spans = SpanRows(
        rows=np.array([1], dtype=np.int32),
        starts=np.array([70], dtype=np.int32),
        offsets=np.array([0, 20], dtype=np.int32),
        positions=positions,
        token_rows=np.full(20, 1, dtype=np.int32),
        clips=np.array([clip], dtype=np.int32),
        stored=positions >= stored_from,
    )
    turn = positions[:, np.newaxis] * 100.0 ** (-np.arange(16) / 16)
    cos_sin = np.stack([np.cos(turn), np.sin(turn)], axis=1).astype(np.float32)
    shape = replace(SHAPE, window=window, softcap=softcap)

    def run(ops: Ops) -> tuple[F32, PagedKV]:
        store = KVStore((PageShape(2, 8, 2, 32, KVType.FLOAT16),), (12,))
        store.view(0)[...] = random(8, *store.view(0).shape)
        rows = np.stack([np.zeros(12), np.arange(12, 0, -1)]).astype(np.int32)
        kv = store.paged(0, rows)
        q = ops.rope_store(
            random(9, 20, 256), shape, random(10, 32), random(11, 32), 1e-6, cos_sin, kv, 1, spans
        )
        return ops.attention(q, shape, kv, 1, spans), kv

    (got, got_kv), (expected, expected_kv) = run(Float32Ops()), run(ReferenceOps())
    np.testing.assert_allclose(got, expected, atol=1e-3)
    np.testing.assert_allclose(
        got_kv.pages.astype(np.float32), expected_kv.pages.astype(np.float32), atol=1e-2
    )


def test_sampled_tokens_agree_with_the_oracle() -> None:
    logits = random(12, 200, 60) * np.float32(2)
    for temperature, top_k, top_p, min_p in [
        (0, 0, 1, 0),
        (1, 0, 1, 0),
        (0.7, 10, 0.9, 0.05),
        (1, 0, 0.5, 0),
    ]:
        how = SamplingRows(
            temperature=np.full(200, temperature, dtype=np.float32),
            top_k=np.full(200, top_k, dtype=np.int32),
            top_p=np.full(200, top_p, dtype=np.float32),
            min_p=np.full(200, min_p, dtype=np.float32),
            seed=np.full(200, 4, dtype=np.uint64),
            position=np.arange(200, dtype=np.int32),
        )
        tokens, logprobs = Float32Ops().sample(logits, how)
        expected, expected_logprobs = ReferenceOps().sample(logits, how)
        assert (tokens == expected).mean() > 0.99
        np.testing.assert_allclose(
            logprobs[tokens == expected], expected_logprobs[tokens == expected], atol=1e-5
        )

"""Llama, compared with a float64 forward pass over the file's tensors, and with its own cold run."""

from pathlib import Path

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray
from tests.engine.schedules import cold_logits
from tests.models.test_load_errors import Change, rewritten, without
from tests.tiny_llama import EPS, HEAD_DIM, HEADS, KV_HEADS, LAYERS, PIECES, ROPE_BASE, write_tiny_llama

from transom.errors import ModelFileError
from transom.llm import LLM
from transom.models.load import load_model
from transom.ops.float32 import Float32Ops
from transom.ops.store import KVType
from transom.weights.gguf import read_gguf

F64 = NDArray[np.float64]
KINDS = gguf.GGMLQuantizationType


def weights_of(path: Path) -> dict[str, F64]:
    return {
        tensor.name.removesuffix(".weight"): gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(
            np.float64
        )
        for tensor in gguf.GGUFReader(path).tensors
    }


def normed(x: F64, weight: F64) -> F64:
    scaled: F64 = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + EPS) * weight
    return scaled


def turned(x: F64, factors: F64) -> F64:
    """Rows of the file are pairs of neighbours: complex numbers, each rotated by its angle."""
    pairs = x.reshape(*x.shape[:-1], -1, 2)
    frequencies = ROPE_BASE ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM) / factors
    angles = np.arange(len(x))[:, None, None] * frequencies
    rotated = (pairs[..., 0] + 1j * pairs[..., 1]) * np.exp(1j * angles)
    return np.stack([rotated.real, rotated.imag], axis=-1).reshape(x.shape)


def attended(q: F64, k: F64, v: F64) -> F64:
    out = np.empty_like(q)
    for head in range(HEADS):
        shared = head // (HEADS // KV_HEADS)
        scores = q[:, head] @ k[:, shared].T / np.sqrt(HEAD_DIM)
        scores[np.triu_indices(len(q), 1)] = -np.inf
        p = np.exp(scores - scores.max(axis=1, keepdims=True))
        out[:, head] = (p / p.sum(axis=1, keepdims=True)) @ v[:, shared]
    return out.reshape(len(q), -1)


def naive_logits(path: Path, tokens: list[int]) -> F64:
    """`[tokens, vocabulary]`."""
    w = weights_of(path)
    factors = w.get("rope_freqs", np.ones(HEAD_DIM // 2))
    x = w["token_embd"][tokens]
    for number in range(LAYERS):
        layer = {key.removeprefix(f"blk.{number}."): value for key, value in w.items()}
        h = normed(x, layer["attn_norm"])
        q, k, v = (
            (h @ layer[name].T).reshape(len(x), -1, HEAD_DIM) for name in ("attn_q", "attn_k", "attn_v")
        )
        x = x + attended(turned(q, factors), turned(k, factors), v) @ layer["attn_output"].T
        h = normed(x, layer["ffn_norm"])
        gate = h @ layer["ffn_gate"].T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ layer["ffn_up"].T)) @ layer["ffn_down"].T
    logits: F64 = normed(x, w["output_norm"]) @ w["token_embd"].T
    return logits


@pytest.mark.parametrize("rope_freqs", [False, True], ids=["plain rope", "a factor per pair"])
@pytest.mark.parametrize("kind", [KINDS.Q8_0, KINDS.Q4_1], ids=["Q8_0", "Q4_1"])
def test_logits_are_those_of_a_forward_pass_from_the_definition(
    kind: KINDS, rope_freqs: bool, tmp_path: Path
) -> None:
    path = write_tiny_llama(tmp_path / "tiny.gguf", kind=kind, rope_freqs=rope_freqs)
    tokens = np.random.default_rng(3).integers(1, len(PIECES), 80).tolist()
    ours = cold_logits(Float32Ops(), load_model(read_gguf(path)), tokens, 1, KVType.FLOAT32)
    expected = naive_logits(path, tokens)
    assert np.abs(ours - expected).max() / np.abs(expected).max() < 1e-5


def test_a_repeated_prompt_is_not_computed_again_and_generates_the_same_tokens(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "tiny.gguf")
    llm = LLM(str(path))
    prompt = "the cache must be as good where every layer has full attention: " * 4
    first, second = (llm.generate([prompt], max_tokens=12, ignore_eos=True)[0] for _ in range(2))
    other = LLM(str(path), disable_radix_cache=True).generate([prompt], max_tokens=12, ignore_eos=True)[0]
    assert first.token_ids == second.token_ids == other.token_ids
    assert first.usage.cached_tokens == other.usage.cached_tokens == 0
    assert second.usage.cached_tokens > second.usage.prompt_tokens - 16


CASES: dict[str, tuple[Change, str]] = {
    "experts": (
        lambda values, _: values.update({"llama.expert_count": 8}),
        r"key 'llama\.expert_count': is 8; only 0 is supported",
    ),
    "no layers": (
        lambda values, _: values.update({"llama.block_count": 0}),
        r"key 'llama\.block_count': is 0; it must be 1 to",
    ),
    "partial rotation": (
        lambda values, _: values.update({"llama.rope.dimension_count": 16}),
        r"dimension_count': is 16; only 32 is supported, the width of a head",
    ),
    "heads do not divide": (
        lambda values, _: values.update({"llama.attention.head_count_kv": 3}),
        r"head_count_kv': is 3; it must divide 4",
    ),
    "missing tensor": (without("blk.1.ffn_gate.weight"), "blk.1.ffn_gate.weight"),
    "a factor of 0": (
        lambda _, tensors: tensors.update({"rope_freqs.weight": np.zeros(HEAD_DIM // 2, dtype=np.float32)}),
        "all factors must be above 0",
    ),
}


@pytest.mark.parametrize(("change", "says"), CASES.values(), ids=CASES)
def test_an_unusable_file_is_refused_in_one_line(change: Change, says: str, tmp_path: Path) -> None:
    source = write_tiny_llama(tmp_path / "tiny.gguf")
    target = rewritten(source, tmp_path / "changed.gguf", change)
    with pytest.raises(ModelFileError, match=says) as caught:
        load_model(read_gguf(target))
    assert "\n" not in str(caught.value)

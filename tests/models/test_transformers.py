"""The float32 reference against `transformers`, which shares no code with it. Slow lane."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.engine.schedules import cold_logits
from tests.tiny import write_tiny_gguf

from transom.models.load import load_model
from transom.models.spec import Model
from transom.ops.float32 import Float32Ops
from transom.ops.pack import dequantize
from transom.ops.protocol import F32, Matrix, PackedMatrix
from transom.ops.store import KVType
from transom.weights.builtin import resolve_model
from transom.weights.gguf import read_gguf

pytestmark = pytest.mark.slow

torch: Any = pytest.importorskip("torch", reason="make parity installs it")
transformers: Any = pytest.importorskip("transformers", reason="make parity installs it")


def test_a_tiny_hybrid_agrees_with_transformers(tmp_path: Path) -> None:
    model = load_model(read_gguf(write_tiny_gguf(tmp_path / "tiny.gguf")))
    tokens = np.random.default_rng(3).integers(4, model.spec.vocabulary, 200).tolist()
    assert relative_difference(model, tokens) <= 1e-4


@pytest.mark.model
def test_the_default_model_agrees_with_transformers() -> None:
    model = load_model(read_gguf(resolve_model(None)))
    tokens = [2, *np.random.default_rng(3).integers(1000, 200_000, 700).tolist()]
    assert relative_difference(model, tokens) <= 1e-3


def relative_difference(model: Model, tokens: list[int]) -> float:
    """max |ours - theirs| / max |theirs| over all logits of the last 64 tokens."""
    ours = cold_logits(Float32Ops(), model, tokens, len(tokens) - 63, KVType.FLOAT32)
    with torch.no_grad():
        logits = theirs(model)(torch.tensor([tokens]), logits_to_keep=64).logits[0].numpy()
    difference = float(np.abs(ours - logits).max() / np.abs(logits).max())
    print(f"max |d| / max |logit| = {difference:.2e}")
    return difference


def theirs(model: Model) -> Any:
    """The same weights in transformers' Gemma 3, float32."""
    spec = model.spec
    shape = spec.layers[0].attention
    config = transformers.Gemma3TextConfig(
        vocab_size=spec.vocabulary,
        hidden_size=spec.dim,
        intermediate_size=model.weights.layers[0].gate_up.out_features // 2,
        num_hidden_layers=len(spec.layers),
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        query_pre_attn_scalar=shape.head_dim,
        sliding_window=shape.window,
        rms_norm_eps=spec.eps,
        max_position_embeddings=spec.context,
        tie_word_embeddings=True,
        attn_implementation="eager",
    )
    built = transformers.Gemma3ForCausalLM(config).float().eval()
    missing, unexpected = built.load_state_dict(state(model), strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    return built


def state(model: Model) -> dict[str, Any]:
    """transformers stores the norms of Gemma minus one."""
    weights, shape = model.weights, model.spec.layers[0].attention
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    named: dict[str, F32] = {
        "model.embed_tokens.weight": plain(weights.embedding),
        "model.norm.weight": weights.final_norm - 1,
    }
    for number, layer in enumerate(weights.layers):
        assert layer.query_norm is not None and layer.key_norm is not None
        qkv, gate_up = plain(layer.qkv), plain(layer.gate_up)
        hidden = len(gate_up) // 2
        named |= {
            f"model.layers.{number}.{name}.weight": values
            for name, values in {
                "input_layernorm": layer.attention_norm - 1,
                "self_attn.q_norm": layer.query_norm - 1,
                "self_attn.k_norm": layer.key_norm - 1,
                "self_attn.q_proj": qkv[:q],
                "self_attn.k_proj": qkv[q : q + kv],
                "self_attn.v_proj": qkv[q + kv :],
                "self_attn.o_proj": plain(layer.output),
                "post_attention_layernorm": layer.attention_post_norm - 1,
                "pre_feedforward_layernorm": layer.mlp_norm - 1,
                "mlp.gate_proj": gate_up[:hidden],
                "mlp.up_proj": gate_up[hidden:],
                "mlp.down_proj": plain(layer.down),
                "post_feedforward_layernorm": layer.mlp_post_norm - 1,
            }.items()
        }
    return {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in named.items()}


def plain(matrix: Matrix) -> F32:
    assert isinstance(matrix, PackedMatrix)
    return dequantize(matrix)


# ---------------------------------------------------------------- Llama


@pytest.mark.model
def test_smollm2_agrees_with_transformers_reading_the_same_file() -> None:
    smollm2 = resolve_model("smollm2-135m-instruct")
    tokens = np.random.default_rng(3).integers(17, 49_000, 300).tolist()
    ours = cold_logits(Float32Ops(), load_model(read_gguf(smollm2)), tokens, 237, KVType.FLOAT32)
    built = transformers.AutoModelForCausalLM.from_pretrained(
        smollm2.parent, gguf_file=smollm2.name, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.no_grad():
        logits = built(torch.tensor([tokens]), logits_to_keep=64).logits[0].numpy()
    difference = float(np.abs(ours - logits).max() / np.abs(logits).max())
    print(f"max |d| / max |logit| = {difference:.2e}")
    assert difference <= 1e-4

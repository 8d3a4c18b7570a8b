"""Gemma 3 (text): five sliding-window layers, then one full layer; norms before and after each block.

Sources: the Gemma 3 technical report (2025); the metadata keys and tensor names that llama.cpp's converter
writes. Facts that are not in the file, and are constants here: the pattern of layers and the rope base of
window layers (both from the report), and the defaults for missing keys (llama.cpp's).
"""

from math import sqrt

import numpy as np

from transom.kv.component_specs import Full, Window
from transom.models.keys import CONTEXT_MAX, Keys
from transom.models.spec import LayerSpec, LayerWeights, ModelSpec, Rope
from transom.models.tensors import Tensors
from transom.ops.protocol import AttentionShape, Gate, Precision
from transom.weights.gguf import GgufFile
from transom.weights.packing import pack

ARCHITECTURE = "gemma3"
HEAD_DIM = 256
"""For files that do not state it, as in llama.cpp."""
PATTERN = 6
"""Every sixth layer has full attention."""
LOCAL_ROPE_BASE = 10_000.0
"""Rope base of window layers, for files that do not state it. The base of full layers is in the file."""
FULL, WINDOW = 0, 1
"""Component indices."""


def read_spec(file: GgufFile) -> ModelSpec:
    """Raises ModelFileError."""
    keys = Keys(file, ARCHITECTURE)
    dim = keys.count("embedding_length")
    # Fewer layers than the pattern has would leave the full component empty.
    layers = keys.blocks(least=PATTERN)
    heads, kv_heads, head_dim = keys.heads(HEAD_DIM)
    window = keys.count("attention.sliding_window", most=CONTEXT_MAX)
    full = AttentionShape(heads, kv_heads, head_dim, None, _score_scale(layers, dim, heads, head_dim))
    sliding = AttentionShape(heads, kv_heads, head_dim, window, full.scale)
    keys.require_usual(layers=layers, head_dim=head_dim, scale=full.scale)
    _require_pattern(keys, layers)
    # The factor of linear scaling applies to full layers only, as in llama.cpp.
    far = Rope(keys.positive("rope.freq_base", 1_000_000.0), head_dim, keys.rope_factor())
    near = Rope(keys.positive("rope.freq_base_swa", LOCAL_ROPE_BASE), head_dim)
    return ModelSpec(
        name=file.metadata.text("general.name", file.path.stem),
        architecture=ARCHITECTURE,
        vocabulary=Tensors(file).rows("token_embd"),
        dim=dim,
        context=keys.count("context_length", least=2, most=CONTEXT_MAX),
        eps=keys.positive("attention.layer_norm_rms_epsilon", 1e-6),
        embed_scale=sqrt(dim),  # Gemma multiplies embeddings by sqrt(dim); the file does not say so
        gate=Gate.GELU_TANH,
        components=(Full(), Window(window)),
        layers=_layers(layers, full, sliding, far, near),
    )


def _layers(
    count: int, full: AttentionShape, sliding: AttentionShape, far: Rope, near: Rope
) -> tuple[LayerSpec, ...]:
    # `index` counts the layers of each component: number // PATTERN full layers come before layer `number`.
    return tuple(
        LayerSpec(FULL, number // PATTERN, full, far)
        if number % PATTERN == PATTERN - 1
        else LayerSpec(WINDOW, number - number // PATTERN, sliding, near)
        for number in range(count)
    )


def _score_scale(layers: int, dim: int, heads: int, head_dim: int) -> float:
    # Only the 27B, recognized by its 62 layers, divides by sqrt(dim / heads) instead of sqrt(head_dim). The
    # file does not say so; llama.cpp makes the same test.
    return 1.0 / sqrt(dim // heads if layers == 62 else head_dim)


def _require_pattern(keys: Keys, layers: int) -> None:
    """The pattern is a period or one flag per layer, depending on the converter."""
    name = "attention.sliding_window_pattern"
    value = keys.file.metadata.optional(keys.full(name))
    if not isinstance(value, np.ndarray):
        keys.require(name, PATTERN)
    elif value.tolist() != [number % PATTERN != PATTERN - 1 for number in range(layers)]:
        raise keys.error(name, f"is not supported; every {PATTERN}th layer must be full, and no other")


def read_layer(block: Tensors, shape: AttentionShape, dim: int) -> LayerWeights:
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    hidden = block.rows("ffn_gate")
    projections = [("attn_q", q), ("attn_k", kv), ("attn_v", kv)]
    return LayerWeights(
        attention_norm=block.norm("attn_norm", dim),
        query_norm=block.norm("attn_q_norm", shape.head_dim),
        key_norm=block.norm("attn_k_norm", shape.head_dim),
        qkv=pack([block.matrix(name, out, dim) for name, out in projections], Precision.INT8),
        output=block.packed("attn_output", dim, q),
        attention_post_norm=block.norm("post_attention_norm", dim),
        mlp_norm=block.norm("ffn_norm", dim),
        gate_up=pack([block.matrix(name, hidden, dim) for name in ("ffn_gate", "ffn_up")], Precision.INT8),
        down=block.packed("ffn_down", dim, hidden),
        mlp_post_norm=block.norm("post_ffw_norm", dim),
    )

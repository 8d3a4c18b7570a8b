"""Gemma 3 (text): five sliding-window layers, then one full layer; norms before and after each block.

Sources: the Gemma 3 technical report (2025); the metadata keys and tensor names that llama.cpp's converter
writes. Facts that are not in the file, and are constants here: the pattern of layers and the rope base of
window layers (both from the report), and the defaults for missing keys (llama.cpp's).
"""

from math import sqrt

from transom.errors import ModelFileError
from transom.kv.component_specs import Full, Window
from transom.models.spec import LayerSpec, LayerWeights, Model, ModelSpec, Rope
from transom.models.tensors import Tensors, assemble, require_heads
from transom.ops.protocol import AttentionShape, Gate, Precision
from transom.weights.gguf import GgufFile
from transom.weights.packing import pack

ARCHITECTURE = "gemma3"
PATTERN = 6
"""Every sixth layer has full attention."""
LOCAL_ROPE_BASE = 10_000.0
"""Rope base of window layers. The base of full layers is in the file."""
FULL, WINDOW = 0, 1
"""Component indices."""


def load(file: GgufFile) -> Model:
    """ModelFileError names a key or tensor that is missing or has the wrong shape."""
    spec = read_spec(file)
    return assemble(file, spec, lambda block, layer: _layer(block, layer.attention, spec.dim))


def read_spec(file: GgufFile) -> ModelSpec:
    """Raises ModelFileError."""
    meta = file.metadata
    dim = meta.integer("gemma3.embedding_length")
    layers = meta.integer("gemma3.block_count")
    heads = meta.integer("gemma3.attention.head_count")
    kv_heads = meta.integer("gemma3.attention.head_count_kv", heads)
    head_dim = meta.integer("gemma3.attention.key_length", 256)
    window = meta.integer("gemma3.attention.sliding_window")
    rope_base = meta.number("gemma3.rope.freq_base", 1_000_000.0)
    factor = meta.number("gemma3.rope.scaling.factor", 1.0)
    _require_sane(file, layers, heads, kv_heads, head_dim, window)
    full = AttentionShape(heads, kv_heads, head_dim, None, _score_scale(layers, dim, heads, head_dim))
    sliding = AttentionShape(heads, kv_heads, head_dim, window, full.scale)
    return ModelSpec(
        name=meta.text("general.name", file.path.stem),
        architecture=ARCHITECTURE,
        vocabulary=Tensors(file).rows("token_embd"),
        dim=dim,
        context=meta.integer("gemma3.context_length"),
        eps=meta.number("gemma3.attention.layer_norm_rms_epsilon", 1e-6),
        embed_scale=sqrt(dim),  # Gemma multiplies embeddings by sqrt(dim); the file does not say so
        gate=Gate.GELU_TANH,
        components=(Full(), Window(window)),
        layers=_layers(
            layers, full, sliding, Rope(rope_base, head_dim, factor), Rope(LOCAL_ROPE_BASE, head_dim)
        ),
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


def _require_sane(file: GgufFile, layers: int, heads: int, kv_heads: int, head_dim: int, window: int) -> None:
    if layers < PATTERN:
        raise ModelFileError(f"{file.path}: gemma3.block_count is {layers}; it must be at least {PATTERN}")
    require_heads(file, heads, kv_heads, head_dim, "gemma3.attention.key_length")
    if window < 1:
        raise ModelFileError(
            f"{file.path}: gemma3.attention.sliding_window is {window}; it must be at least 1"
        )


def _layer(block: Tensors, shape: AttentionShape, dim: int) -> LayerWeights:
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

"""Llama: full attention in every layer, SiLU gates, norms before each block only.

Llama 2 and 3, SmolLM2, TinyLlama and every file that names this architecture. Source: the metadata
keys, tensor names and order of rows that llama.cpp's converter writes. The defaults for missing keys are
llama.cpp's.
"""

from dataclasses import replace
from math import sqrt

import numpy as np

from transom.errors import ModelFileError
from transom.kv.component_specs import Full
from transom.models.spec import LayerSpec, LayerWeights, Model, ModelSpec, Rope
from transom.models.tensors import Tensors, assemble, require_heads
from transom.ops.protocol import AttentionShape, Gate, Precision
from transom.weights.gguf import GgufFile, GgufTensor
from transom.weights.packing import pack

ARCHITECTURE = "llama"
OUTLIERS = Precision.INT16
"""For inputs in which a few activations are far larger than the rest of their group. With 8 bits for all
matrices, the perplexity of SmolLM2 135M grows by 0.27% over float32; with 16 bits in all matrices except
`gate_up`, by less than 0.03% (lab/LOG.md)."""


def load(file: GgufFile) -> Model:
    """ModelFileError names a key or tensor that is missing, not supported or has the wrong shape."""
    spec = read_spec(file)
    return assemble(file, spec, lambda block, layer: _layer(block, layer.attention, spec.dim))


def read_spec(file: GgufFile) -> ModelSpec:
    """Raises ModelFileError."""
    meta = file.metadata
    dim = meta.integer("llama.embedding_length")
    layers = meta.integer("llama.block_count")
    heads = meta.integer("llama.attention.head_count")
    kv_heads = meta.integer("llama.attention.head_count_kv", heads)
    head_dim = meta.integer("llama.attention.key_length", dim // max(heads, 1))
    # Refused and not ignored: the model would run, and answer nonsense.
    _require_supported(file, layers, head_dim)
    require_heads(file, heads, kv_heads, head_dim, "the width of a head")
    attention = AttentionShape(heads, kv_heads, head_dim, None, 1.0 / sqrt(head_dim))
    rope = _rope(file, head_dim)
    return ModelSpec(
        name=meta.text("general.name", file.path.stem),
        architecture=ARCHITECTURE,
        vocabulary=Tensors(file).rows("token_embd"),
        dim=dim,
        context=meta.integer("llama.context_length"),
        eps=meta.number("llama.attention.layer_norm_rms_epsilon", 1e-5),
        embed_scale=1.0,
        gate=Gate.SILU,
        components=(Full(),),
        layers=tuple(LayerSpec(0, number, attention, rope) for number in range(layers)),
    )


def _require_supported(file: GgufFile, layers: int, head_dim: int) -> None:
    meta = file.metadata
    if layers < 1:
        raise ModelFileError(f"{file.path}: llama.block_count is {layers}; it must be at least 1")
    if meta.integer("llama.expert_count", 0):
        raise ModelFileError(f"{file.path}: llama.expert_count: a mixture of experts is not supported")
    rotated = meta.integer("llama.rope.dimension_count", head_dim)
    if rotated != head_dim:
        raise ModelFileError(
            f"{file.path}: llama.rope.dimension_count is {rotated}, but heads are {head_dim} wide: "
            "partial rotation is not supported"
        )
    scaling = meta.text("llama.rope.scaling.type", "none")
    if scaling not in ("none", "linear"):
        raise ModelFileError(f"{file.path}: llama.rope.scaling.type {scaling!r} is not supported")


def _rope(file: GgufFile, head_dim: int) -> Rope:
    """Llama 3.1 and later divide the frequency of each pair by a factor of its own: the tensor rope_freqs."""
    meta = file.metadata
    base = meta.number("llama.rope.freq_base", 10_000.0)
    factor = meta.number("llama.rope.scaling.factor", 1.0)
    tensors = Tensors(file)
    if "rope_freqs" not in tensors:  # Llama 2, SmolLM2 and most others
        return Rope(base, head_dim, factor)
    factors = tensors.norm("rope_freqs", head_dim // 2)
    if not (np.isfinite(factors) & (factors > 0)).all():
        raise ModelFileError(f"{file.path}: rope_freqs.weight: all factors must be above 0")
    return Rope(base, head_dim, factor, tuple(factors.tolist()))


def _layer(block: Tensors, shape: AttentionShape, dim: int) -> LayerWeights:
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    hidden = block.rows("ffn_gate")
    query = _halves(block.matrix("attn_q", q, dim), shape.head_dim)
    key = _halves(block.matrix("attn_k", kv, dim), shape.head_dim)
    return LayerWeights(
        attention_norm=block.norm("attn_norm", dim),
        query_norm=None,
        key_norm=None,
        qkv=pack([query, key, block.matrix("attn_v", kv, dim)], OUTLIERS),
        output=block.packed("attn_output", dim, q, OUTLIERS),
        attention_post_norm=None,
        mlp_norm=block.norm("ffn_norm", dim),
        gate_up=pack([block.matrix(name, hidden, dim) for name in ("ffn_gate", "ffn_up")], Precision.INT8),
        down=block.packed("ffn_down", dim, hidden, OUTLIERS),
        mlp_post_norm=None,
    )


def _halves(tensor: GgufTensor, head_dim: int) -> GgufTensor:
    """Reorders the rows of each head: the file has pair after pair, `rope_store` expects first halves first.

    Every row is a whole number of quantization blocks, so rows move as bytes.
    """
    out = tensor.shape[0]
    # llama.cpp's converter interleaves the two halves of each head, because its kernel rotates neighbours.
    rows = tensor.data.reshape(out // head_dim, head_dim // 2, 2, -1)
    return replace(tensor, data=np.ascontiguousarray(rows.transpose(0, 2, 1, 3)).reshape(-1))

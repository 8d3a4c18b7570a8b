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
from transom.models.keys import CONTEXT_MAX, Keys
from transom.models.spec import LayerSpec, LayerWeights, ModelSpec, Rope
from transom.models.tensors import Tensors
from transom.ops.protocol import AttentionShape, Gate, Precision
from transom.weights.gguf import GgufFile, GgufTensor
from transom.weights.packing import pack

ARCHITECTURE = "llama"
OUTLIERS = Precision.INT16
"""For inputs in which a few activations are far larger than the rest of their group. With 8 bits for all
matrices, the perplexity of SmolLM2 135M grows by 0.27% over float32; with 16 bits in all matrices except
`gate_up`, by less than 0.03% (lab/LOG.md)."""


def read_spec(file: GgufFile) -> ModelSpec:
    """Raises ModelFileError."""
    keys = Keys(file, ARCHITECTURE)
    dim = keys.count("embedding_length")
    layers = keys.blocks()
    heads, kv_heads, head_dim = keys.heads()
    attention = AttentionShape(heads, kv_heads, head_dim, None, 1.0 / sqrt(head_dim))
    keys.require_usual(layers=layers, head_dim=head_dim, scale=attention.scale)
    rope = _rope(keys, head_dim)
    return ModelSpec(
        name=file.metadata.text("general.name", file.path.stem),
        architecture=ARCHITECTURE,
        vocabulary=Tensors(file).rows("token_embd"),
        dim=dim,
        context=keys.count("context_length", least=2, most=CONTEXT_MAX),
        eps=keys.positive("attention.layer_norm_rms_epsilon", 1e-5),
        embed_scale=1.0,
        gate=Gate.SILU,
        components=(Full(),),
        layers=tuple(LayerSpec(0, number, attention, rope) for number in range(layers)),
    )


def _rope(keys: Keys, head_dim: int) -> Rope:
    """Llama 3.1 and later divide the frequency of each pair by a factor of its own: the tensor rope_freqs."""
    base, factor = keys.positive("rope.freq_base", 10_000.0), keys.rope_factor()
    tensors = Tensors(keys.file)
    if "rope_freqs" not in tensors:  # Llama 2, SmolLM2 and most others
        return Rope(base, head_dim, factor)
    factors = tensors.norm("rope_freqs", head_dim // 2)
    if not (np.isfinite(factors) & (factors > 0)).all():
        raise ModelFileError(f"{keys.file.path}: rope_freqs.weight: all factors must be above 0")
    return Rope(base, head_dim, factor, tuple(factors.tolist()))


def read_layer(block: Tensors, shape: AttentionShape, dim: int) -> LayerWeights:
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

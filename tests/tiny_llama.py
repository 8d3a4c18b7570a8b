"""Writes a tiny random Llama as a GGUF file: full attention only, with a byte-level vocabulary."""

from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

from transom.text.spelling import CHARACTER_OF

DIM, HEADS, KV_HEADS, HEAD_DIM, HIDDEN, LAYERS, CONTEXT = 64, 4, 2, 32, 96, 2, 1024
EPS, ROPE_BASE = 1e-5, 10_000.0
PIECES = ["<|end|>", *CHARACTER_OF.values(), "th", "he", "Ġt", "Ġth"]
MERGES = ["t h", "h e", "Ġ t", "Ġt h"]

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)

Tensors = dict[str, NDArray[np.float32]]


def write_tiny_llama(
    path: Path,
    *,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.Q8_0,
    rope_freqs: bool = False,
    chat_template: str = CHAT_TEMPLATE,
) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(DIM)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_layer_norm_rms_eps(EPS)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(PIECES)
    normal = [gguf.TokenType.NORMAL] * (len(PIECES) - 1)
    writer.add_token_types([gguf.TokenType.CONTROL, *normal])
    writer.add_token_merges(MERGES)
    writer.add_eos_token_id(0)
    writer.add_chat_template(chat_template)
    for name, values in tensors(rope_freqs=rope_freqs).items():
        if values.ndim == 1:
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tensors(*, rope_freqs: bool) -> Tensors:
    """Random weights, scaled so that attention affects the logits. `rope_freqs` adds Llama 3's factors."""
    random = np.random.default_rng(5)

    def matrix(out: int, width: int) -> NDArray[np.float32]:
        return (random.standard_normal((out, width)) * 1.5 / np.sqrt(width)).astype(np.float32)

    def norm(size: int) -> NDArray[np.float32]:
        return (1 + 0.2 * random.standard_normal(size)).astype(np.float32)

    weights: Tensors = {"token_embd.weight": matrix(len(PIECES), DIM), "output_norm.weight": norm(DIM)}
    if rope_freqs:
        weights["rope_freqs.weight"] = np.linspace(1, 8, HEAD_DIM // 2, dtype=np.float32)
    for number in range(LAYERS):
        for name, values in {
            "attn_norm": norm(DIM),
            "attn_q": matrix(HEADS * HEAD_DIM, DIM),
            "attn_k": matrix(KV_HEADS * HEAD_DIM, DIM),
            "attn_v": matrix(KV_HEADS * HEAD_DIM, DIM),
            "attn_output": matrix(DIM, HEADS * HEAD_DIM),
            "ffn_norm": norm(DIM),
            "ffn_gate": matrix(HIDDEN, DIM),
            "ffn_up": matrix(HIDDEN, DIM),
            "ffn_down": matrix(DIM, HIDDEN),
        }.items():
            weights[f"blk.{number}.{name}.weight"] = values
    return weights

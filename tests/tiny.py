"""Writes a tiny random hybrid model as a GGUF file. All layers of the engine can load and run it."""

from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

BYTES = 256
CONTROL = ("<pad>", "<eos>", "<bos>", "<unk>")
WORDS = ("▁the", "▁a", "th", "he", "▁t", "an", "in", "er", "▁", "t", "h", "e", "a", "n", "i", "r", "s", "o")
EOS, BOS = 1, 2


@dataclass(frozen=True, slots=True)
class TinyShape:
    """Six layers: five of sliding-window attention and one of full attention, the pattern of Gemma 3."""

    dim: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    hidden: int = 96
    window: int = 24
    layers: int = 6
    context: int = 2048


TINY = TinyShape()


def write_tiny_gguf(path: Path, seed: int = 0, shape: TinyShape = TINY) -> Path:
    """Writes the file and returns its path.

    Weights are scaled so that a wrong key or value changes the sampled tokens, not only the last bits.
    """
    random = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "gemma3")
    _write_metadata(writer, shape)
    _write_tokenizer(writer)
    for name, values in _tensors(random, shape).items():
        if values.ndim == 1:
            writer.add_tensor(name, values)
        else:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def vocabulary() -> list[str]:
    return [*CONTROL, *(f"<0x{byte:02X}>" for byte in range(BYTES)), *WORDS]


def _write_metadata(writer: gguf.GGUFWriter, shape: TinyShape) -> None:
    writer.add_name("tiny hybrid")
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.dim)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.hidden)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1_000_000.0)
    writer.add_sliding_window(shape.window)


def _write_tokenizer(writer: gguf.GGUFWriter) -> None:
    kind = gguf.TokenType
    writer.add_tokenizer_model("llama")
    writer.add_token_list(vocabulary())
    writer.add_token_scores([0.0] * (len(CONTROL) + BYTES) + [-float(rank) for rank in range(len(WORDS))])
    kinds = [kind.CONTROL] * len(CONTROL) + [kind.BYTE] * BYTES + [kind.NORMAL] * len(WORDS)
    writer.add_token_types(kinds)
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)
    writer.add_unk_token_id(3)
    writer.add_pad_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(False)


def _tensors(random: np.random.Generator, shape: TinyShape) -> dict[str, NDArray[np.float32]]:
    def matrix(out: int, width: int) -> NDArray[np.float32]:
        return (random.standard_normal((out, width)) * 1.5 / np.sqrt(width)).astype(np.float32)

    def norm(size: int) -> NDArray[np.float32]:
        return (1 + 0.2 * random.standard_normal(size)).astype(np.float32)

    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    tensors = {
        "token_embd.weight": matrix(len(vocabulary()), shape.dim),
        "output_norm.weight": norm(shape.dim),
    }
    for number in range(shape.layers):
        tensors |= {
            f"blk.{number}.{name}.weight": values
            for name, values in {
                "attn_norm": norm(shape.dim),
                "attn_q": matrix(q, shape.dim),
                "attn_k": matrix(kv, shape.dim),
                "attn_v": matrix(kv, shape.dim),
                "attn_q_norm": norm(shape.head_dim) * np.float32(2),
                "attn_k_norm": norm(shape.head_dim) * np.float32(2),
                "attn_output": matrix(shape.dim, q),
                "post_attention_norm": norm(shape.dim),
                "ffn_norm": norm(shape.dim),
                "ffn_gate": matrix(shape.hidden, shape.dim),
                "ffn_up": matrix(shape.hidden, shape.dim),
                "ffn_down": matrix(shape.dim, shape.hidden),
                "post_ffw_norm": norm(shape.dim),
            }.items()
        }
    return tensors

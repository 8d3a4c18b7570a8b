"""Keys of a model's architecture, each with its rule, and the proof that a file was read whole.

A key or tensor that a family does not read means something to the program that wrote it: a bias, another
kind of attention, a second shard. A model that passes over it runs, and answers nonsense. So a family reads
or requires every key of its architecture and every tensor, and a file with more is refused by name.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from transom.errors import ModelFileError
from transom.models.tensors import Tensors
from transom.weights.gguf import GgufFile
from transom.weights.metadata import Value, shown

COUNT_MAX = 1 << 20
"""Widths and heads of every known model stay far below. Larger values are claims of a damaged file."""
CONTEXT_MAX = 1 << 24
"""Above the contexts that published models name (10 million)."""


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys `{architecture}.{name}` of a file. ModelFileError names key, value and rule."""

    file: GgufFile
    architecture: str

    def full(self, name: str) -> str:
        return f"{self.architecture}.{name}"

    def error(self, name: str, problem: str) -> ModelFileError:
        return self.file.metadata.error(self.full(name), problem)

    def count(self, name: str, default: int | None = None, *, least: int = 1, most: int = COUNT_MAX) -> int:
        value = self.file.metadata.integer(self.full(name), default)
        if not least <= value <= most:
            raise self.error(name, f"is {value}; it must be {least} to {most}")
        return value

    def blocks(self, *, least: int = 1) -> int:
        """The number of layers, which is that of the blocks that have tensors."""
        value = self.count("block_count", least=least)
        # Checked before any loop over layers, because the key merely claims a number.
        found = len({name.split(".")[1] for name in self.file.tensors if name.startswith("blk.")})
        if value != found:
            raise self.error("block_count", f"is {value}; the file has tensors of {found} blocks")
        return value

    def heads(self, head_dim: int | None = None) -> tuple[int, int, int]:
        """Query heads, key heads and the width of a head: `head_dim`, or an equal share of the embedding."""
        heads = self.count("attention.head_count")
        kv_heads = self.count("attention.head_count_kv", heads)
        if heads % kv_heads:
            raise self.error(
                "attention.head_count_kv", f"is {kv_heads}; it must divide {heads}, the head_count"
            )
        share = max(1, self.count("embedding_length") // heads)
        width = self.count("attention.key_length", head_dim or share)
        if width % 32:
            raise self.error("attention.key_length", f"is {width}; it must be a multiple of 32")
        return heads, kv_heads, width

    def positive(self, name: str, default: float) -> float:
        """A number above 0 that is finite as float32, the type in which it is computed with."""
        value = self.file.metadata.number(self.full(name), default)
        if not 0 < np.float32(value) < inf:
            raise self.error(name, f"is {value}; it must be finite and above 0")
        return value

    def require(self, name: str, served: Value, reason: str = "") -> None:
        """Refuses the key if it is present with a value other than `served`."""
        value = self.file.metadata.optional(self.full(name))
        if value is not None and not _equal(value, served):
            raise self.error(name, f"is {_brief(value)}; only {_brief(served)} is supported{reason}")

    def rope_factor(self) -> float:
        """By how much positions are divided: the factor of linear scaling, 1 without scaling."""
        kind = self.full("rope.scaling.type")
        scaling = self.file.metadata.text(kind, "linear")
        if scaling not in ("none", "linear"):
            raise self.error(
                "rope.scaling.type", f"{shown(scaling)} is not supported; supported are 'none' and 'linear'"
            )
        # Files of older converters have the second key. llama.cpp reads it only if the first is missing.
        factor = self.positive("rope.scaling.factor", self.positive("rope.scale_linear", 1.0))
        return factor if scaling == "linear" else 1.0

    def require_usual(self, *, layers: int, head_dim: int, scale: float) -> None:
        """Keys that state what every family here does anyway, or switch on what no family here has."""
        for number in range(layers):
            rows = Tensors(self.file).rows(f"blk.{number}.ffn_gate")
            self.require("feed_forward_length", rows, f", the rows of 'blk.{number}.ffn_gate.weight'")
        self.require("vocab_size", Tensors(self.file).rows("token_embd"), ", the rows of 'token_embd.weight'")
        for name in ("attention.key_length", "attention.value_length", "rope.dimension_count"):
            self.require(name, head_dim, ", the width of a head")
            self.require(f"{name}_swa", head_dim, ", the width of a head")
        self.require("attention.scale", scale)
        for name, value in _USUAL.items():
            self.require(name, value)


_USUAL: dict[str, Value] = {
    "attention.causal": True,
    "attention.max_alibi_bias": 0.0,
    "attention.clamp_kqv": 0.0,
    "attn_logit_softcapping": 0.0,
    "final_logit_softcapping": 0.0,
    "rope.scaling.attn_factor": 1.0,
    "expert_count": 0,
    "expert_used_count": 0,
    "expert_shared_count": 0,
    "nextn_predict_layers": 0,
    # The order of rows that the family `llama` expects.
    "tensor_data_layout": "Meta AI original pth",
}
"""Per key, the only value under which the decoder computes what the file means."""

_HARMLESS = ("rope.scaling.original_context_length", "rope.scaling.finetuned")
"""Read only by kinds of rope scaling that `rope_factor` refuses."""


def require_keys_read(file: GgufFile, architecture: str) -> None:
    """ModelFileError names a key of the architecture that was not read, or a key of a file that is a part."""
    metadata = file.metadata
    _require_whole(file)
    harmless = {f"{architecture}.{name}" for name in _HARMLESS}
    # Other prefixes describe the file (general.*), belong to the tokenizer, which checks them itself, or are
    # notes of the tool that wrote the file.
    unread = [key for key in metadata.unread() if key.startswith(f"{architecture}.") and key not in harmless]
    if unread:
        raise metadata.error(
            unread[0], f"is {_brief(metadata[unread[0]])}, and is not supported{_others(unread)}"
        )


def require_tensors_read(file: GgufFile) -> None:
    """ModelFileError names a tensor that was not read. To be called when all weights have been packed."""
    unread = file.unread()
    if unread:
        raise file.tensors[unread[0]].error(f"has no place in this architecture{_others(unread)}")


def _require_whole(file: GgufFile) -> None:
    metadata = file.metadata
    shards = metadata.integer("split.count", 1)
    if shards not in (0, 1):
        raise metadata.error(
            "split.count", f"the file is one of {shards} shards; join them with llama-gguf-split --merge"
        )
    kind = metadata.text("general.type", "model")
    if kind != "model":
        raise metadata.error("general.type", f"{shown(kind)} is not supported; supported is 'model'")


def _others(unread: Sequence[str]) -> str:
    return f" (and {len(unread) - 1} more)" if len(unread) > 1 else ""


def _equal(value: Value, served: Value) -> bool:
    if isinstance(served, bool | str):
        return type(value) is type(served) and value == served
    if isinstance(value, bool) or not isinstance(value, int | float) or not isinstance(served, int | float):
        return False
    # Files hold float32, and scales are computed in float64.
    return value == served or abs(value - served) <= 1e-6 * abs(served)


def _brief(value: Value) -> str:
    if isinstance(value, str):
        return shown(value)
    if isinstance(value, bool | int | float):
        return str(value)
    return f"an array of {len(value)}"

"""The pieces of a tokenizer, as a model file lists them, and how they spell text."""

from dataclasses import dataclass
from enum import IntEnum, StrEnum

import numpy as np
from numpy.typing import NDArray


class PieceKind(IntEnum):
    """The numbers are SentencePiece's."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True, eq=False)
class SentencePiece:
    """Normal pieces spell a space as "▁"; pieces for single bytes read "<0x41>".

    scores  float32 [pieces]: of two possible merges, the one whose result scores higher comes first
    """

    scores: NDArray[np.float32]


class Cut(StrEnum):
    """How text is cut before bytes are merged, by the names that model files use."""

    GPT2 = "gpt-2"
    SMOLLM = "smollm"
    LLAMA3 = "llama-bpe"
    QWEN2 = "qwen2"


@dataclass(frozen=True, slots=True, eq=False)
class ByteLevel:
    """GPT-2's way: normal pieces spell each byte of text as one of 256 printable characters.

    merges  pairs of pieces, in the order in which they apply
    """

    cut: Cut
    merges: list[tuple[str, str]]


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """Piece i is token id i; pieces are distinct.

    pieces  normal ones as `spelling` has it; control and user-defined ones as they are
    kinds   int32 [pieces], values of PieceKind
    bos, eos, unknown  ids, or None where the model has none; `adds_bos`: a prompt begins with bos
    stop_ids  generation ends with any of these
    chat_template  the file's own, in Jinja, or None
    """

    pieces: list[str]
    kinds: NDArray[np.int32]
    bos: int | None
    eos: int | None
    unknown: int | None
    adds_bos: bool
    stop_ids: frozenset[int]
    chat_template: str | None
    spelling: SentencePiece | ByteLevel

    def ids_of(self, kind: PieceKind) -> list[int]:
        found: list[int] = np.flatnonzero(self.kinds == kind).tolist()
        return found

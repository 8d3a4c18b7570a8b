"""The vocabulary of a tokenizer, as a model file lists it."""

from dataclasses import dataclass
from enum import IntEnum, StrEnum

import numpy as np
from numpy.typing import NDArray


class PieceKind(IntEnum):
    """Kinds of pieces, with the numbers of SentencePiece."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True, eq=False)
class SentencePiece:
    """SentencePiece spelling: normal pieces write a space as "▁", pieces for single bytes read "<0x41>".

    scores  float32 [pieces]; of two possible merges, the one with the higher score of the result comes first
    """

    scores: NDArray[np.float32]


class Cut(StrEnum):
    """How text is split into words before merging, by the names in model files."""

    GPT2 = "gpt-2"
    SMOLLM = "smollm"
    LLAMA3 = "llama-bpe"
    QWEN2 = "qwen2"


@dataclass(frozen=True, slots=True, eq=False)
class ByteLevel:
    """GPT-2 spelling: normal pieces write each byte of the text as one of 256 printable characters.

    merges  pairs of pieces, in the order in which they apply
    """

    cut: Cut
    merges: list[tuple[str, str]]


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """All pieces, and the roles of special ones. Piece i is token id i; pieces are distinct.

    pieces         normal pieces are spelled as `spelling` says; control and user-defined ones are plain text
    kinds          int32 [pieces], values of PieceKind
    bos, eos, unknown  ids; None if the model lacks the token
    adds_bos       whether a prompt must begin with `bos`
    stop_ids       tokens that end generation
    chat_template  Jinja source; None if the file has no template
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
        ids: list[int] = np.flatnonzero(self.kinds == kind).tolist()
        return ids

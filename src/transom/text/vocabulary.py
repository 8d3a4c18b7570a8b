"""The pieces of a tokenizer, as a model file lists them."""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

SPACE = "▁"
"""SentencePiece's stand-in for a space."""


class PieceKind(IntEnum):
    """The numbers are SentencePiece's."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """Piece i is token id i; pieces are distinct.

    pieces  normal ones spell a space as "▁"; user-defined ones hold it as it is; bytes read "<0x41>"
    scores  float32 [pieces]: of two possible merges, the one whose result scores higher comes first
    kinds   int32 [pieces], values of PieceKind
    bos, eos, unknown  ids, or None where the model has none; `adds_bos`: a prompt begins with bos
    stop_ids  generation ends with any of these
    chat_template  the file's own, in Jinja, or None
    """

    pieces: list[str]
    scores: NDArray[np.float32]
    kinds: NDArray[np.int32]
    bos: int | None
    eos: int | None
    unknown: int | None
    adds_bos: bool
    stop_ids: frozenset[int]
    chat_template: str | None

    def ids_of(self, kind: PieceKind) -> list[int]:
        found: list[int] = np.flatnonzero(self.kinds == kind).tolist()
        return found

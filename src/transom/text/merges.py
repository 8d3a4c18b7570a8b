"""Derives the merge list of a byte pair encoder from the pieces and scores of a SentencePiece vocabulary.

SentencePiece repeatedly joins the two neighbours that form the piece with the highest score. The equivalent
merge list has every split of a piece into two pieces, the best score first. The native extension omits splits
that no text can reach (native/merges.cpp explains why): that halves the list and changes no encoding.
"""

import importlib
import os
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from transom.text.vocabulary import PieceKind, Vocabulary

I32 = NDArray[np.int32]


def merges(vocabulary: Vocabulary, scores: NDArray[np.float32]) -> list[tuple[str, str]]:
    """Pairs of normal pieces, in the order in which the merges apply."""
    native = _native()
    # Only normal pieces merge: control and byte pieces are not text, user-defined pieces are split off first.
    normal = (vocabulary.kinds == PieceKind.NORMAL).tolist()
    pieces = [piece if is_normal else "" for piece, is_normal in zip(vocabulary.pieces, normal, strict=True)]
    splits: I32 = _splits(pieces) if native is None else native.bpe_merges(pieces, scores)
    piece, left, right = splits.T
    order = np.lexsort((right, left, -scores[piece]))
    return list(zip(_named(pieces, left[order]), _named(pieces, right[order]), strict=True))


def _named(pieces: list[str], ids: I32) -> list[str]:
    return [pieces[i] for i in ids.tolist()]


def _native() -> ModuleType | None:
    if os.environ.get("TRANSOM_NATIVE") == "0":
        return None
    try:
        return importlib.import_module("transom._native")
    except ModuleNotFoundError:
        return None


def _splits(pieces: list[str]) -> I32:
    """All ways to split a piece into two pieces, as int32 `[splits, 3]`: piece, left, right."""
    id_of = {piece: i for i, piece in enumerate(pieces) if piece}.get
    splits = []
    for i, piece in enumerate(pieces):
        for at in range(1, len(piece)):
            left = id_of(piece[:at])
            if left is not None:
                right = id_of(piece[at:])
                if right is not None:
                    splits.append((i, left, right))
    return np.array(splits, dtype=np.int32).reshape(-1, 3)

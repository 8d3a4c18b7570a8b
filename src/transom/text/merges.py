"""The merge list of a byte pair encoder, from a SentencePiece vocabulary of pieces and scores.

SentencePiece joins, among all neighbours that make a piece, those whose piece scores highest. As merge
rules: the splits of every piece into two pieces, best score first. The extension leaves out splits that no
text leads to (native/merges.cpp says why), which halves the list and changes no encoding.
"""

import importlib
import os
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from transom.text.vocabulary import PieceKind, Vocabulary

I32 = NDArray[np.int32]


def merges(vocabulary: Vocabulary, scores: NDArray[np.float32]) -> list[tuple[str, str]]:
    """Pairs of normal pieces, in the order in which they apply."""
    native = _native()
    # Only normal pieces merge: control and byte pieces are no text, user-defined ones are cut out before.
    normal = (vocabulary.kinds == PieceKind.NORMAL).tolist()
    pieces = [piece if take else "" for piece, take in zip(vocabulary.pieces, normal, strict=True)]
    found: I32 = _splits(pieces) if native is None else native.bpe_merges(pieces, scores)
    piece, left, right = found.T
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
    """int32 `[splits, 3]`: piece, left, right, for every way to make a piece of two."""
    find = {piece: i for i, piece in enumerate(pieces) if piece}.get
    found = []
    for i, piece in enumerate(pieces):
        for at in range(1, len(piece)):
            left = find(piece[:at])
            if left is not None:
                right = find(piece[at:])
                if right is not None:
                    found.append((i, left, right))
    return np.array(found, dtype=np.int32).reshape(-1, 3)

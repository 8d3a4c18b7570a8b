"""Cuts a long text where no token can span the cut, so that it can be tokenized piece by piece."""

import re
from collections.abc import Iterable, Iterator

from transom.text.vocabulary import ByteLevel, PieceKind, Vocabulary

PIECE_CHARACTERS = 1 << 16
"""About 50 ms of tokenizing: so often a client that has left is noticed."""
SEPARATOR = "\n\0"
"""Between pieces of a vocabulary when they are searched as one text: it makes no pair with a space."""


class Cutter:
    """Knows the places in texts at which no token spans two characters. Immutable.

    Tokens begin with a space rather than contain one after another character. Before a space that follows any
    other character, a cut is therefore safe, unless some piece has this very pair inside.
    """

    __slots__ = ("_unsafe",)

    def __init__(self, vocabulary: Vocabulary, space: str) -> None:
        """`space`: how normal pieces spell a space."""
        kinds = vocabulary.kinds.tolist()
        pieces = list(zip(vocabulary.pieces, kinds, strict=True))
        user_defined = (piece for piece, kind in pieces if kind == PieceKind.USER_DEFINED)
        unsafe = _before(" ", user_defined)
        # With byte-level pieces, text is first split into words, and each word begins with its space.
        if not isinstance(vocabulary.spelling, ByteLevel):
            normal = (piece for piece, kind in pieces if kind == PieceKind.NORMAL)
            unsafe |= _before(space, normal)
        self._unsafe = unsafe | {" ", space}

    def cut(self, text: str, size: int = PIECE_CHARACTERS) -> Iterator[str]:
        """The text in pieces of about `size` characters; one piece if no place is safe."""
        start = 0
        while (end := self._next(text, start + size)) < len(text):
            yield text[start:end]
            start = end
        yield text[start:]

    def _next(self, text: str, at: int) -> int:
        """The first safe place from `at` on, or the end of the text."""
        while (at := text.find(" ", at)) > 0:
            before = text[at - 1]
            if before not in self._unsafe and not before.isspace():
                return at
            at += 1
        return len(text)


def _before(space: str, pieces: Iterable[str]) -> set[str]:
    """The characters that precede `space` inside of a piece."""
    return set(re.findall(f"(.){re.escape(space)}", SEPARATOR.join(pieces))) - {"\0"}

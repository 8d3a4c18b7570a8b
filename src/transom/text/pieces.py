"""Cuts a long text where no token can span the cut, so that it can be tokenized piece by piece."""

import re
from collections.abc import Iterator
from functools import cached_property

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

    def __init__(self, vocabulary: Vocabulary, space: str) -> None:
        """`space`: how normal pieces spell a space."""
        self._vocabulary = vocabulary
        self._space = space

    @cached_property
    def _unsafe(self) -> set[str]:
        """Characters after which a space is no safe place. Found at the first long text: it takes a while."""
        unsafe = {" ", self._space} | self._before(" ", PieceKind.USER_DEFINED)
        # With byte-level pieces, text is first split into words, and each word begins with its space.
        if not isinstance(self._vocabulary.spelling, ByteLevel):
            unsafe |= self._before(self._space, PieceKind.NORMAL)
        return unsafe

    def _before(self, space: str, kind: PieceKind) -> set[str]:
        """The characters that precede `space` inside of a piece."""
        pieces = SEPARATOR.join(self._vocabulary.pieces[i] for i in self._vocabulary.ids_of(kind))
        return set(re.findall(f"(.){re.escape(space)}", pieces)) - {"\0"}

    def cut(self, text: str, size: int = PIECE_CHARACTERS) -> Iterator[str]:
        """The text in pieces of about `size` characters; one piece if no place is safe."""
        start = 0
        # The end is compared first: a short text needs no search.
        while start + size < len(text) and (end := self._next(text, start + size)) < len(text):
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

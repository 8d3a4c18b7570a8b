"""Converts token ids to text, all at once or one by one, with the same result.

Each token stands for bytes, and the bytes are decoded as UTF-8. A character may be spread over several
tokens: an incremental decoder holds its first bytes back. Invalid bytes, as random tokens produce, become
U+FFFD.
"""

import codecs
from collections.abc import Callable, Iterable

PieceBytes = Callable[[int], bytes]
"""The bytes that a token adds to the text."""

_new_decoder = codecs.getincrementaldecoder("utf-8")


def decode(ids: Iterable[int], piece_bytes: PieceBytes) -> str:
    return b"".join(map(piece_bytes, ids)).decode("utf-8", "replace")


class Detokenizer:
    """Decodes one stream of tokens. Mutable: it holds the bytes of an incomplete character.

    The texts of all `feed` calls and of `finish`, joined, equal `decode` of all ids. The time per token does
    not depend on the number of earlier tokens.
    """

    __slots__ = ("_decoder", "_piece_bytes")

    def __init__(self, piece_bytes: PieceBytes) -> None:
        self._piece_bytes = piece_bytes
        # Python's incremental decoder holds back the bytes of an incomplete character, at most three.
        self._decoder = _new_decoder("replace")

    def feed(self, token: int) -> str:
        """The characters that this token completes: often its own text, sometimes an empty string or more."""
        return self._decoder.decode(self._piece_bytes(token))

    def finish(self) -> str:
        """U+FFFD if the stream ends inside a character, otherwise an empty string."""
        return self._decoder.decode(b"", True)

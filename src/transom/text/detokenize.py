"""Token ids to text, all at once or one by one, with the same result.

Pieces become bytes, and the bytes are decoded as UTF-8 with U+FFFD for what is invalid: characters that the
tokenizer spelled in bytes may be spread over several tokens, and those of a random sequence may be none.
"""

import codecs
from collections.abc import Callable, Iterable

PieceBytes = Callable[[int], bytes]
"""What a token adds to the text."""

_new_decoder = codecs.getincrementaldecoder("utf-8")


def decode(ids: Iterable[int], piece_bytes: PieceBytes) -> str:
    return b"".join(map(piece_bytes, ids)).decode("utf-8", "replace")


class Detokenizer:
    """Mutable: the bytes of one stream that are not yet a character.

    The texts of `feed`, in order, and that of `finish` are `decode` of all ids. Time per token does not
    depend on how many came before.
    """

    __slots__ = ("_decoder", "_piece_bytes")

    def __init__(self, piece_bytes: PieceBytes) -> None:
        self._piece_bytes = piece_bytes
        self._decoder = _new_decoder("replace")

    def feed(self, token: int) -> str:
        """What can be said now: whole characters only, often none, more than the token's own at times."""
        return self._decoder.decode(self._piece_bytes(token))

    def finish(self) -> str:
        """What the end of the stream makes of bytes held back: U+FFFD or nothing."""
        return self._decoder.decode(b"", True)

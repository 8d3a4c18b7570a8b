"""Lines as pieces of text with a look each. Every character is one column wide."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from transom_lab.story.scene import Look


@dataclass(frozen=True, slots=True)
class Piece:
    text: str
    look: Look


Line = tuple[Piece, ...]
EMPTY: Final[Line] = ()


def length(line: Iterable[Piece]) -> int:
    """The width in columns."""
    return sum(len(piece.text) for piece in line)


def padded(line: Line, columns: int) -> Line:
    """`line`, filled with spaces up to a width."""
    missing = columns - length(line)
    assert missing >= 0, (line, columns)
    return (*line, Piece(" " * missing, Look.PLAIN)) if missing else line


def words(line: Iterable[Piece]) -> str:
    """The text of a line."""
    return "".join(piece.text for piece in line).rstrip()

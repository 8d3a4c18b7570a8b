"""Reads keys from the terminal, and maps them to moves."""

import os
import select
import sys
import termios
import tty
from enum import Enum
from types import TracebackType
from typing import Any

READ_BYTES = 16
"""Enough for the escape sequence of any key."""


class Move(Enum):
    NEXT = "next"
    BACK = "back"
    FIRST = "first"
    LAST = "last"
    QUIT = "quit"


KEYS = {
    **dict.fromkeys(
        (b"\r", b"\n", b" ", b"n", b"l", b"j", b"\x1b[C", b"\x1bOC", b"\x1b[B", b"\x1b[6~"), Move.NEXT
    ),
    **dict.fromkeys(
        (b"b", b"p", b"h", b"k", b"\x7f", b"\x1b[D", b"\x1bOD", b"\x1b[A", b"\x1b[5~"), Move.BACK
    ),
    **dict.fromkeys((b"g", b"\x1b[H", b"\x1b[1~"), Move.FIRST),
    **dict.fromkeys((b"G", b"\x1b[F", b"\x1b[4~"), Move.LAST),
    **dict.fromkeys((b"q", b"Q", b"\x1b", b"\x03", b"\x04"), Move.QUIT),
}


def moved(index: int, count: int, move: Move) -> int | None:
    """The index of the frame after a move, if the story does not end with it."""
    assert 0 <= index < count, (index, count)
    match move:
        case Move.NEXT:
            return index + 1 if index + 1 < count else None
        case Move.BACK:
            return max(0, index - 1)
        case Move.FIRST:
            return 0
        case Move.LAST:
            return count - 1
        case Move.QUIT:
            return None


class Keyboard:
    """Owns the terminal's mode while it is open: keys arrive one by one, without echo. Mutable."""

    def __init__(self) -> None:
        self._file = sys.stdin.fileno()
        self._before: list[Any] = []

    def __enter__(self) -> "Keyboard":
        self._before = termios.tcgetattr(self._file)
        tty.setcbreak(self._file)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        termios.tcsetattr(self._file, termios.TCSADRAIN, self._before)

    def key(self, seconds: float) -> bytes:
        """The next key, or b"" after `seconds` without one."""
        ready, _, _ = select.select([self._file], [], [], seconds)
        if not ready:
            return b""
        return os.read(self._file, READ_BYTES) or b"q"  # end of file: the terminal is gone, so quit

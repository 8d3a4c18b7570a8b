"""Standard streams that may be closed or lose their reader. The server must survive both."""

import os
import sys
from typing import TextIO

STANDARD = 3
"""Descriptors below this are standard input, output and error."""


def complete() -> None:
    """Open standard streams that were closed at start.

    Otherwise the next socket would get the descriptor of a standard stream, and printed text would go there.
    """
    # os.open returns the lowest free descriptor, so this fills the gaps below 3.
    while (descriptor := os.open(os.devnull, os.O_RDWR)) < STANDARD:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)


def print_line(stream: TextIO, text: str) -> None:
    """Print a line at once. If the reader is gone or the disk is full, later text is dropped too."""
    try:
        print(text, file=stream, flush=True)
    except OSError:
        silence(stream)


def silence(stream: TextIO) -> None:
    """Drop the text in the stream's buffer and all later text.

    Otherwise Python would try to flush the buffer at exit, fail, and end with status 120.
    """
    with open(os.devnull, "wb") as null:
        os.dup2(null.fileno(), stream.fileno())

"""Standard streams that may be missing, or lose their reader: neither is a reason to end."""

import os
import sys
from typing import TextIO

STANDARD = 3
"""Descriptors below are standard input, output and error."""


def complete() -> None:
    """Open what was closed before we began: the next socket would get its number, and whatever is printed."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) < STANDARD:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)


def say(stream: TextIO, text: str) -> None:
    """Print a line. If its reader has gone, or its disk is full, nothing is said there from now on."""
    try:
        print(text, file=stream, flush=True)
    except OSError:
        silence(stream)


def silence(stream: TextIO) -> None:
    """Whatever is still in its buffer, or written later, goes nowhere: else Python ends with status 120."""
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), stream.fileno())

"""Commands that other installed distributions add, found by entry point group."""

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

from transom.cli.parser import Parser

Add = Callable[[Any], Parser]
"""Adds one command to argparse's subparsers and returns its parser."""


def installed(group: str) -> list[Add]:
    """The entry points of `group`, in the order of their names."""
    return [entry.load() for entry in sorted(entry_points(group=group), key=lambda entry: entry.name)]

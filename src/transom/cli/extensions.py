"""Commands of other installed distributions, such as `transom-lab`, found by entry point group."""

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

from transom.cli.parser import Parser

Add = Callable[[Any], Parser]
"""Adds one command to argparse's subparsers, and returns its parser."""


def installed(group: str) -> list[Add]:
    """The functions that the entry points of `group` name, in the order of the entry points' names."""
    return [entry.load() for entry in sorted(entry_points(group=group), key=lambda entry: entry.name)]

"""Shared by all commands: an argument parser with one-line errors, and checks that name the flag."""

import argparse
import difflib
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from transom.config import parse_bytes
from transom.errors import ConfigError

USAGE_ERROR = 2


class Parser(argparse.ArgumentParser):
    """An argument parser with one-line errors; for an unknown flag it suggests the nearest one."""

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE_ERROR, f"transom: {message}\n")

    def refuse_unknown(self, unknown: Sequence[str]) -> None:
        """Exits with a usage error if there are unknown arguments."""
        if not unknown:
            return
        word = unknown[0].split("=")[0]
        known = [option for action in self._actions for option in action.option_strings]
        near = difflib.get_close_matches(word, known, n=1) if word.startswith("-") else []
        hint = f"; did you mean {near[0]}?" if near else f"; see {self.prog} --help"
        self.error(f"unknown argument {word}{hint}")


class CommandParser(Parser):
    """The parser of a command. The result's `given` has the names of arguments that the command line had.

    With it, values from elsewhere can rank between the command line and the defaults.
    """

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        # Help is printed here, so this pass must see the defaults.
        options, unknown = super().parse_known_args(args, namespace)
        defaults = [(action, action.default) for action in self._actions]
        for action, _ in defaults:
            action.default = None
        given, _ = super().parse_known_args(args)
        for action, default in defaults:
            action.default = default
        options.given = frozenset(name for name, value in vars(given).items() if value is not None)
        return options, unknown


def add_command(commands: Any, name: str, run: Callable[[argparse.Namespace], None], **texts: str) -> Parser:
    """Adds a command; `texts` are argparse's help, usage, description and epilog."""
    parser: Parser = commands.add_parser(
        name, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **texts
    )
    parser.set_defaults(run=run, parser=parser)
    return parser


def size(text: str) -> int:
    """A type for argparse: a number of bytes, such as 512M."""
    try:
        return parse_bytes(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def require(flag: str, value: float, low: float, high: float) -> None:
    """ConfigError, naming the flag, unless `low <= value <= high`."""
    if not low <= value <= high:
        raise ConfigError(f"{flag} is {value:g}; it must be between {low:g} and {high:g}")

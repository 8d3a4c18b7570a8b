"""Flags of the server's limits, derived from the table in `transom/limits.py`."""

import argparse

from transom.cli.parser import size
from transom.limits import LIMITS, RULES, Limits


def add_limit_flags(parser: argparse.ArgumentParser) -> None:
    """Adds a flag for each limit that has one. `limits` reads them."""
    group = parser.add_argument_group("limits; docs/limits.md lists all")
    for name, rule in RULES.items():
        default = getattr(LIMITS, name)
        if rule.flag:
            shown = (
                "default %(default)s"
                if rule.is_size
                else f"{rule.low:g} to {rule.high:g}; default %(default)g"
            )
            group.add_argument(
                rule.flag,
                dest=name,
                type=size if rule.is_size else type(default),
                default=default,
                metavar="SIZE" if rule.is_size else "S" if isinstance(default, float) else "N",
                help=f"most {rule.bounds}; {shown}",
            )


def limits(options: argparse.Namespace) -> Limits:
    """The limits from flags. ConfigError if a value is out of range."""
    return Limits(**{name: getattr(options, name) for name, rule in RULES.items() if rule.flag})

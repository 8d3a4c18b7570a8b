"""`transom bench`: one subcommand for each thing to measure. Other distributions add more."""

import argparse
from typing import Any

from transom.cli import bench_serve
from transom.cli.extensions import installed
from transom.cli.parser import Parser, add_command

HELP = """\
Measure this machine, or a server.

Each subcommand prints a table. --json FILE writes all figures and --svg FOLDER the pictures. Times on a busy
machine say little: compare figures of one run.
"""


def add(commands: Any) -> Parser:
    parser = add_command(
        commands,
        "bench",
        _refuse_no_subcommand,
        help="measure this machine, or a server",
        usage="transom bench WHAT [flags]",
        description=HELP,
    )
    kinds = parser.add_subparsers(dest="what", metavar="WHAT", parser_class=Parser)
    bench_serve.add(kinds)
    for add_kind in installed("transom.bench"):
        add_kind(kinds)
    parser.set_defaults(kinds=", ".join(kinds.choices))
    return parser


def _refuse_no_subcommand(options: argparse.Namespace) -> None:
    options.parser.error(f"bench what? Choose one of {options.kinds}; see transom bench --help")

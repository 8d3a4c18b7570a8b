"""`transom bench`: one subcommand per benchmark. Other distributions add more through entry points."""

import argparse
from typing import Any

from transom.cli import bench_serve
from transom.cli.extensions import installed
from transom.cli.parser import Parser, add_command

HELP = """\
Measure this machine, or a server.

Each subcommand prints a table. --json FILE writes all figures, --svg FOLDER draws charts. Times depend on the
machine and its load: compare only figures of one run.
"""


def add(commands: Any) -> Parser:
    parser = add_command(
        commands,
        "bench",
        _refuse_no_subcommand,
        help="measure this machine, or a server",
        usage="transom bench BENCHMARK [flags]",
        description=HELP,
    )
    benchmarks = parser.add_subparsers(dest="benchmark", metavar="BENCHMARK", parser_class=Parser)
    bench_serve.add(benchmarks)
    for add_benchmark in installed("transom.bench"):
        add_benchmark(benchmarks)
    parser.set_defaults(benchmarks=", ".join(benchmarks.choices))
    return parser


def _refuse_no_subcommand(options: argparse.Namespace) -> None:
    options.parser.error(f"name a benchmark: {options.benchmarks}; see transom bench --help")

"""`transom fuzz-kv`."""

import argparse
from typing import Any

from transom.cli.parser import Parser, add_command

HELP = """\
Try to break the memory core: random operations on many small caches, under an oracle that knows what
every page must hold. What is not given is drawn. A failure is shrunk to a short script and printed.

  transom fuzz-kv --seed 7 --ops 1000000
  transom fuzz-kv --page-size 4 --window 7 --mix FW
  transom fuzz-kv --replay script.txt
"""


def add(commands: Any) -> Parser:
    parser = add_command(
        commands,
        "fuzz-kv",
        _run,
        help="try to break the memory core",
        usage="transom fuzz-kv [flags]",
        description=HELP,
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="the same seed, the same operations; default %(default)s",
    )
    parser.add_argument(
        "--ops", type=int, default=50_000, metavar="M", help="operations in all; default %(default)s"
    )
    parser.add_argument("--page-size", type=int, metavar="N", help="tokens per page; default: drawn")
    parser.add_argument("--window", type=int, metavar="N", help="tokens of the windows; default: drawn")
    parser.add_argument(
        "--mix",
        metavar="MIX",
        help="components by letter: F full, W window, V a wider one, L one beyond the context, C chunked, "
        "S a recurrent state; default: drawn",
    )
    parser.add_argument("--replay", metavar="FILE", help="run a printed script instead")
    return parser


def _run(options: argparse.Namespace) -> None:
    from transom_lab.fuzz.campaign import Drawn
    from transom_lab.fuzz.command import fuzz, replay_file

    if options.replay is not None:
        replay_file(options.replay)
    else:
        fuzz(Drawn(options.seed, options.page_size, options.window, options.mix), options.ops)

"""`transom fuzz-kv`: its flags."""

import argparse
from typing import Any

from transom.cli.parser import Parser, add_command

HELP = """\
Run random operations on many small KV caches, and compare every page with an oracle that knows its contents.
Options that are not given are drawn at random. A failure is shrunk to a short script and printed.

  transom fuzz-kv --seed 7 --ops 1000000
  transom fuzz-kv --page-size 4 --window 7 --mix FW
  transom fuzz-kv --replay script.txt
"""


def add(commands: Any) -> Parser:
    parser = add_command(
        commands,
        "fuzz-kv",
        _run,
        help="fuzz the KV cache",
        usage="transom fuzz-kv [flags]",
        description=HELP,
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="seed of the operations; default %(default)s",
    )
    parser.add_argument(
        "--ops", type=int, default=50_000, metavar="M", help="total number of operations; default %(default)s"
    )
    parser.add_argument("--page-size", type=int, metavar="N", help="tokens per page; default: random")
    parser.add_argument("--window", type=int, metavar="N", help="tokens of the windows; default: random")
    parser.add_argument(
        "--mix",
        metavar="MIX",
        help="one letter per component: F full, W window, V wider window, L window longer than the context, "
        "C chunked, S recurrent state; default: random",
    )
    parser.add_argument("--replay", metavar="FILE", help="run a script that a failure printed")
    return parser


def _run(options: argparse.Namespace) -> None:
    from transom_lab.fuzz.campaign import Drawn
    from transom_lab.fuzz.command import fuzz, replay_file

    if options.replay is not None:
        replay_file(options.replay)
    else:
        fuzz(Drawn(options.seed, options.page_size, options.window, options.mix), options.ops)

"""`transom bench serve`."""

import argparse
import os
from pathlib import Path
from typing import Any

from transom.cli.parser import Parser, add_command, require

HELP = """\
Play workloads against a server that speaks OpenAI's API, and print what its users would feel.

  transom bench serve
  transom bench serve http://127.0.0.1:8080 --workloads w2c16,w3
  transom bench serve --against http://127.0.0.1:8080 --repeats 5 --json figures.json --svg pictures

Workloads: w1 (one prompt of 512 tokens, alone), w2c8, w2c16 (32 prompts with nothing in common, 8 or 16 at
once), w3 (32 prompts with 1,500 tokens in common, 8 at once), w4, w4s (8 conversations of 4 turns, 4 at once;
w4s under a system prompt of 1,000 tokens). Prompts are made from Python's own documentation: the same Python,
workload and seed, the same prompts. Answers are greedy, and go on to the length where the server can be told.

With --against both get the same prompts in turns, A B A B; ratios are taken pair by pair, and the median of
them is in the table. Each repeat has new prompts, so that none is in a cache already.

The cache is checked: the exit status is 1 if a request failed, if more was found than an empty cache can
have, or, on a Transom server, less than prompts share.
"""


def add(commands: Any) -> Parser:
    parser = add_command(
        commands,
        "serve",
        _run,
        help="a server over HTTP, or two",
        usage="transom bench serve [URL] [--against URL] [flags]",
        description=HELP,
    )
    _add_server_flags(parser)
    what = parser.add_argument_group("what is asked")
    what.add_argument("--workloads", metavar="A,B", help="in this order; default: all, from w1 to w4s")
    what.add_argument("--seed", type=int, default=0, metavar="N", help="of prompts; default %(default)s")
    what.add_argument("--repeats", type=int, default=1, metavar="N", help="default %(default)s")
    what.add_argument(
        "--same-prompts",
        action="store_true",
        help="repeats ask the same again, with a warm cache, and say whether answers are the same",
    )
    add_result_flags(parser)
    return parser


def _add_server_flags(parser: argparse.ArgumentParser) -> None:
    who = parser.add_argument_group("who is asked")
    who.add_argument(
        "url", nargs="?", default="http://127.0.0.1:8000", metavar="URL", help="default %(default)s"
    )
    who.add_argument("--model", metavar="NAME", help="default: the first that the server lists")
    who.add_argument("--api-key", metavar="KEY", help="default: OPENAI_API_KEY; not sent to the other server")
    who.add_argument("--against", metavar="URL", help="a second server")
    who.add_argument("--against-model", metavar="NAME", help="default: the first that one lists")
    who.add_argument("--against-api-key", metavar="KEY", help="default: none")


def add_result_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of all benchmarks."""
    group = parser.add_argument_group("what comes out, beside a table")
    group.add_argument("--json", type=Path, metavar="FILE", help="all figures")
    group.add_argument("--svg", type=Path, metavar="FOLDER", help="pictures")


def _run(options: argparse.Namespace) -> None:
    require("--seed", options.seed, 0, 2**63 - 1)
    require("--repeats", options.repeats, 1, 1000)
    from transom.bench.http import address_of
    from transom.bench.serve import Asked, bench_serve
    from transom.bench.server import Access
    from transom.bench.sheet import Wanted

    key = options.api_key or os.environ.get("OPENAI_API_KEY")
    servers = [Access(address_of(options.url), options.model, key)]
    if options.against is not None:
        other = address_of(options.against)
        servers.append(Access(other, options.against_model, options.against_api_key))
    bench_serve(
        Asked(
            servers=tuple(servers),
            workloads=() if options.workloads is None else tuple(options.workloads.split(",")),
            seed=options.seed,
            repeats=options.repeats,
            same_prompts=options.same_prompts,
            wanted=Wanted(options.json, options.svg),
        )
    )

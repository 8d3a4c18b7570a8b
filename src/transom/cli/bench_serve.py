"""`transom bench serve`."""

import argparse
import os
from pathlib import Path
from typing import Any

from transom.cli.parser import Parser, add_command, require

HELP = """\
Measure the latency and throughput of a server with OpenAI's API.

  transom bench serve
  transom bench serve http://127.0.0.1:8080 --workloads w2c16,w3
  transom bench serve --against http://127.0.0.1:8080 --repeats 5 --json figures.json --svg pictures

Workloads:
  w1           one prompt of 512 tokens, alone
  w2c8, w2c16  32 unrelated prompts, 8 or 16 at a time
  w3           32 prompts that share a prefix of 1,500 tokens, 8 at a time
  w4, w4s      8 conversations of 4 turns, 4 at a time; w4s with a shared system prompt of 1,000 tokens

Prompts are made from Python's own documentation: the same Python, workload and seed give the same prompts.
Sampling is greedy. Answers have a fixed length, unless the server cannot be told to ignore the end token.

With --against, both servers get the same prompts in turns, A B A B; the table shows the median of the ratios
of the pairs. Each repeat has new prompts, so that no cache holds them.

The exit status is 1 if a request failed, if a cache found more tokens than an initially empty cache can, or,
on a Transom server, fewer than the prompts share.
"""


def add(commands: Any) -> Parser:
    parser = add_command(
        commands,
        "serve",
        _run,
        help="measure a server over HTTP, or compare two",
        usage="transom bench serve [URL] [--against URL] [flags]",
        description=HELP,
    )
    _add_server_flags(parser)
    prompts = parser.add_argument_group("workloads")
    prompts.add_argument(
        "--workloads", metavar="A,B", help="workloads to run, in this order; default: all, from w1 to w4s"
    )
    prompts.add_argument(
        "--seed", type=int, default=0, metavar="N", help="seed of the prompts; default %(default)s"
    )
    prompts.add_argument(
        "--repeats", type=int, default=1, metavar="N", help="number of repeats; default %(default)s"
    )
    prompts.add_argument(
        "--same-prompts",
        action="store_true",
        help="repeats use the same prompts, with a warm cache, and compare the answers",
    )
    add_result_flags(parser)
    return parser


def _add_server_flags(parser: argparse.ArgumentParser) -> None:
    servers = parser.add_argument_group("servers")
    servers.add_argument(
        "url",
        nargs="?",
        default="http://127.0.0.1:8000",
        metavar="URL",
        help="the server, with or without /v1; default %(default)s",
    )
    servers.add_argument(
        "--model", metavar="NAME", help="model to request; default: the first that the server lists"
    )
    servers.add_argument(
        "--api-key",
        metavar="KEY",
        help="API key; default: the variable OPENAI_API_KEY; not sent to the second server",
    )
    servers.add_argument("--against", metavar="URL", help="a second server to compare with")
    servers.add_argument(
        "--against-model", metavar="NAME", help="its model; default: the first that it lists"
    )
    servers.add_argument("--against-api-key", metavar="KEY", help="its API key; default: no key")


def add_result_flags(parser: argparse.ArgumentParser) -> None:
    """Flags that all benchmarks have."""
    group = parser.add_argument_group("output, in addition to the table")
    group.add_argument("--json", type=Path, metavar="FILE", help="write all figures as JSON")
    group.add_argument("--svg", type=Path, metavar="FOLDER", help="draw charts as SVG")


def _run(options: argparse.Namespace) -> None:
    require("--seed", options.seed, 0, 2**63 - 1)
    require("--repeats", options.repeats, 1, 1000)
    from transom.bench.http import address_of
    from transom.bench.serve import ServeOptions, bench_serve
    from transom.bench.server import Access
    from transom.bench.sheet import ResultFiles

    key = options.api_key or os.environ.get("OPENAI_API_KEY")
    servers = [Access(address_of(options.url), options.model, key)]
    if options.against is not None:
        other = address_of(options.against)
        servers.append(Access(other, options.against_model, options.against_api_key))
    bench_serve(
        ServeOptions(
            servers=tuple(servers),
            workloads=() if options.workloads is None else tuple(options.workloads.split(",")),
            seed=options.seed,
            repeats=options.repeats,
            same_prompts=options.same_prompts,
            files=ResultFiles(options.json, options.svg),
        )
    )

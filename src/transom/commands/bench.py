"""`transom bench`."""

import argparse
from pathlib import Path
from typing import Any

from transom.commands.model import GEMMA_HELP, MODEL_HELP, find_model
from transom.commands.parser import Parser, add_command, require
from transom.config import EngineConfig

HELP = """\
Measure this machine.

  transom bench cost               what a step takes, for transom simulate: a minute on idle cores

It runs small batches of random prompts through the real engine, fits a cost model by least squares, prints
which kinds of step are furthest from it, and leaves it in the cache folder, where transom simulate finds it.
"""


def add(commands: Any) -> Parser:
    parser = add_command(
        commands,
        "bench",
        _run,
        help="measure this machine",
        usage="transom bench cost [flags]",
        description=HELP,
        epilog=GEMMA_HELP,
    )
    parser.add_argument("what", choices=("cost",), metavar="WHAT", help="cost: what a step takes")
    parser.add_argument("--model", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument("--threads", type=int, metavar="N", help="default: the cores this process may use")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of prompts; default %(default)s")
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="default: in the cache folder; needed with --model"
    )
    return parser


def _run(options: argparse.Namespace) -> None:
    require("--seed", options.seed, 0, 2**63 - 1)
    config = EngineConfig(model=options.model, threads=options.threads)
    find_model(options.model)
    from transom.sim.bench import bench_cost

    bench_cost(config, options.seed, options.output)

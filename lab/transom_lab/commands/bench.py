"""`transom bench micro`, `kv`, `sched` and `cost`: their flags."""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transom.cli import bench_serve
from transom.cli.model import GEMMA_HELP, MODEL_HELP, find_model
from transom.cli.parser import Parser, add_command, require
from transom.config import EngineConfig
from transom.errors import ConfigError

if TYPE_CHECKING:
    from transom.bench.sheet import ResultFiles

COST_HELP = """\
Fit a cost model to the steps of the engine on this machine. Takes a minute; the cores must be idle.

  transom bench cost
  transom bench cost --model model.gguf --output cost.json

The command times small batches of random prompts in the real engine, fits the rates of the cost model by
least squares, prints the steps that fit worst, and writes the rates to the cache folder, where transom
simulate reads them.
"""

MICRO_HELP = """\
Time each native kernel alone, at the sizes of the default model. Each figure is the fastest of several runs.

  transom bench micro
  transom bench micro head layers --threads 1 --svg pictures
  transom bench micro layers --isa avx512,avx2,portable

Parts: head (the output matrix), layers (the matrices of the layers), attention, small (norms, gates,
rotation), choose (sampling). GB/s counts the bytes that must be read, GMAC/s multiply-additions.
"""

KV_HELP = """\
Time the operations of the KV cache without a model: match a prompt, admit, publish, evict.

  transom bench kv
  transom bench kv --json kv.json
  transom bench kv --scale --svg pictures

The cache holds 100,000 tokens: 1,000 sequences that share 30 prefixes. Figures are medians, with pages of 16
tokens and of 1. Each benchmark asserts that it takes the path it is named for; hits, for example, are hits.

With --scale, the same operations beside trees of 1,000 to 1,000,000 nodes, and the bytes of a node. Takes
some minutes and 3 GB of memory.
"""

SCHED_HELP = """\
Time the scheduler without a model: 256 requests run, and each step computes one token of each.

  transom bench sched
  transom bench sched --json sched.json
  transom bench sched --scale

Figures are medians of CPU time. An admission attempt is the time that one waiting request adds to a plan.

With --scale, a plan beside 100 to 100,000 requests that wait for a row, and the bytes of a waiting one.
"""

THREADS_HELP = "threads that compute; default: the cores that this process may use"


def add_kv(kinds: Any) -> Parser:
    return _with_scale(_add(kinds, "kv", _kv, "the KV cache", KV_HELP))


def add_sched(kinds: Any) -> Parser:
    return _with_scale(_add(kinds, "sched", _sched, "the scheduler", SCHED_HELP))


def _with_scale(parser: Parser) -> Parser:
    parser.add_argument("--scale", action="store_true", help="costs as the tree or the queue grows")
    return parser


def _add(kinds: Any, name: str, run: Any, about: str, description: str) -> Parser:
    parser = add_command(
        kinds, name, run, help=about, usage=f"transom bench {name} [flags]", description=description
    )
    bench_serve.add_result_flags(parser)
    return parser


def add_micro(kinds: Any) -> Parser:
    parser = _add(kinds, "micro", _micro, "the native kernels", MICRO_HELP)
    parser.usage = "transom bench micro [PART ...] [flags]"
    parser.add_argument("parts", nargs="*", metavar="PART", help="default: all")
    parser.add_argument(
        "--isa",
        metavar="NAME,...",
        help="instruction sets; the rest are compared with the first; default: the one in use",
    )
    parser.add_argument("--threads", type=int, metavar="N", help=THREADS_HELP)
    return parser


def add_cost(kinds: Any) -> Parser:
    parser = add_command(
        kinds,
        "cost",
        _cost,
        help="fit the cost model of transom simulate",
        usage="transom bench cost [flags]",
        description=COST_HELP,
        epilog=GEMMA_HELP,
    )
    parser.add_argument("--model", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument("--threads", type=int, metavar="N", help=THREADS_HELP)
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of the prompts; default %(default)s"
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="file for the rates; default: one in the cache folder; required with --model",
    )
    return parser


# ---------------------------------------------------------------- running


def _cost(options: argparse.Namespace) -> None:
    require("--seed", options.seed, 0, 2**63 - 1)
    config = EngineConfig(model=options.model, threads=options.threads)
    find_model(options.model)
    from transom_lab.sim.calibration import bench_cost

    bench_cost(config, options.seed, options.output)


def _micro(options: argparse.Namespace) -> None:
    if options.threads is not None:
        require("--threads", options.threads, 1, 1024)
    try:
        from transom_lab.microbench.kernels import DEFAULT, bench_micro
    except ImportError as error:
        raise ConfigError(f"bench micro needs the native extension; it cannot be loaded ({error})") from None
    sizes = replace(DEFAULT, isas=tuple(options.isa.split(","))) if options.isa else DEFAULT
    bench_micro(options.parts, _result_files(options), options.threads, sizes)


def _kv(options: argparse.Namespace) -> None:
    from transom_lab.microbench.memory import bench_kv
    from transom_lab.microbench.scale import bench_tree

    (bench_tree if options.scale else bench_kv)(_result_files(options))


def _sched(options: argparse.Namespace) -> None:
    from transom_lab.microbench.scale import bench_queue
    from transom_lab.microbench.scheduling import bench_sched

    (bench_queue if options.scale else bench_sched)(_result_files(options))


def _result_files(options: argparse.Namespace) -> "ResultFiles":
    from transom.bench.sheet import ResultFiles

    return ResultFiles(options.json, options.svg)

"""`transom simulate`: its flags. The work is in `transom_lab.sim.command` and `transom_lab.faults.command`.

Both are imported when the command runs: `transom --help` must not wait for numpy and rich.
"""

import argparse
from pathlib import Path
from typing import Any

from transom.cli.model import add_memory_flags, add_step_flags, engine_config
from transom.cli.parser import Parser, add_command, require

HELP = """\
Play a workload through the real scheduler and the real KV cache in virtual time. A cost model replaces the
model, so no model file is needed. The same seed gives the same result.

  transom simulate --workload agents --kv-bytes 64M
  transom simulate --workload day --compare value,lru --svg pictures
  transom simulate --trace trace.jsonl --model-shape gpt-oss-20b --cost h200 --kv-bytes 8G
  transom simulate --faults --seeds 1000

Workloads: w1, w2c8, w2c16, w3, w4, w4s (those of transom bench serve), agents, rollouts, documents, bursts,
day. A trace file has one request per line, as JSON; docs/simulator.md lists the fields. Mooncake's traces
work as they are.

The result is a table: latencies at p50, p90 and p99, how many prompt tokens were found in the cache, repaired
or computed, how many were computed again after a retraction, and the peak memory of each component.
"""


def add(commands: Any) -> Parser:
    parser = add_command(
        commands,
        "simulate",
        _run,
        help="play a workload in virtual time",
        usage="transom simulate [flags]",
        description=HELP,
    )
    _add_workload_flags(parser)
    machine = parser.add_argument_group("model and machine")
    machine.add_argument(
        "--model-shape",
        default="gemma3-270m",
        metavar="SHAPE",
        help="gemma3-270m, gemma3-27b, gpt-oss-20b or llama-8b; default %(default)s",
    )
    machine.add_argument(
        "--cost",
        metavar="COST",
        help="cost model of a step: a file written by transom bench cost, or h200 or h100 (assumptions); "
        "default: the one fitted on this machine, otherwise one fitted on two cores of a Xeon",
    )
    machine.add_argument(
        "--turnaround-ms",
        type=float,
        default=0.0,
        metavar="T",
        help="milliseconds between the end of an answer and the client's next request; default %(default)g",
    )
    add_memory_flags(parser)
    add_step_flags(parser)
    _add_result_flags(parser)
    _add_fault_flags(parser)
    # engine_config expects the flags of a command that loads a model.
    parser.set_defaults(model=None, threads=None)
    return parser


def _add_workload_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("requests")
    source = group.add_mutually_exclusive_group()
    source.add_argument(
        "--workload", default="agents", metavar="NAME", help="one of the above; default %(default)s"
    )
    source.add_argument("--trace", type=Path, metavar="FILE", help="play a trace file instead")
    group.add_argument(
        "--requests", type=int, metavar="N", help="draw about N requests; default: the workload's own number"
    )
    group.add_argument(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="seed of the workload; default %(default)s",
    )
    group.add_argument("--save-trace", type=Path, metavar="FILE", help="write the workload as a trace file")


def _add_result_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("results")
    group.add_argument(
        "--compare", metavar="A,B", help="play once with each of these cache policies, side by side"
    )
    group.add_argument(
        "--regret",
        action="store_true",
        help="compare the prompt tokens that each cache policy finds with the best possible policy",
    )
    group.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    group.add_argument(
        "--svg",
        type=Path,
        metavar="DIR",
        help="draw memory and hits over time, and the distribution of times to first token",
    )


def _add_fault_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("faults instead of a workload")
    group.add_argument(
        "--faults",
        action="store_true",
        help="run short lifetimes of a scheduler with random faults: aborts, crashes, pauses, "
        "weight updates, floods of impossible requests, small pools. A judge checks every iteration; a "
        "failure is shrunk and printed",
    )
    group.add_argument(
        "--seeds", type=int, metavar="N", help="lifetimes to run, from --seed on; default 1000"
    )
    group.add_argument(
        "--steps",
        type=int,
        default=60,
        metavar="N",
        help="fault iterations per lifetime; default %(default)s",
    )
    group.add_argument("--turns", type=int, metavar="N", help="run lifetimes until N iterations in all")
    group.add_argument(
        "--only", metavar="EVENTS", help="replay only these events of one lifetime, such as 0-3,7"
    )


def _run(options: argparse.Namespace) -> None:
    require("--seed", options.seed, 0, 2**63 - 1)
    if options.faults:
        from transom_lab.faults.command import faults

        faults(options.seed, options.seeds, options.steps, turns=options.turns, only=options.only)
        return
    require("--turnaround-ms", options.turnaround_ms, 0, 1e6)
    if options.requests is not None:
        require("--requests", options.requests, 1, 10_000_000)
    engine = engine_config(options)
    from transom_lab.sim.command import SimulateOptions, simulate

    simulate(
        SimulateOptions(
            workload=options.workload,
            trace=options.trace,
            requests=options.requests,
            seed=options.seed,
            shape=options.model_shape,
            cost=options.cost,
            turnaround_s=options.turnaround_ms / 1e3,
            compare=tuple(options.compare.split(",")) if options.compare else (),
            regret=options.regret,
            json=options.json,
            svg=options.svg,
            save_trace=options.save_trace,
        ),
        engine,
    )

"""`transom simulate`."""

import argparse
from pathlib import Path
from typing import Any

from transom.cli.model import add_memory_flags, add_step_flags, engine_config
from transom.cli.parser import Parser, add_command, require

HELP = """\
Play a workload through the real scheduler and the real memory core, in virtual time: a cost model stands
in for the model. The same seed, the same result. No model file is needed.

  transom simulate --workload agents --kv-bytes 64M
  transom simulate --workload day --compare value,lru --svg pictures
  transom simulate --trace trace.jsonl --model-shape gpt-oss-20b --cost h200 --kv-bytes 8G
  transom simulate --faults --seeds 1000

Workloads: w1, w2c8, w2c16, w3, w4, w4s (a benchmark's clients), agents, rollouts, documents, bursts, day.
A trace is JSON lines; docs/simulator.md has its fields. Mooncake's traces are read as they are.

The table that comes out has times at p50, p90 and p99, prompt tokens by how requests began (found in memory,
repaired, computed), what was computed again, and the most memory of each kind.
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
    machine = parser.add_argument_group("what it runs on")
    machine.add_argument(
        "--model-shape",
        default="gemma3-270m",
        metavar="SHAPE",
        help="gemma3-270m, gemma3-27b, gpt-oss-20b or llama-8b; default %(default)s",
    )
    machine.add_argument(
        "--cost",
        metavar="COST",
        help="what a step takes: a JSON file of transom bench cost, or h200 or h100 (assumed); default: as "
        "fitted on this machine, else as fitted on two cores of a Xeon",
    )
    machine.add_argument(
        "--turnaround-ms",
        type=float,
        default=0.0,
        metavar="T",
        help="milliseconds from an answer's end until a client's next request can arrive; "
        "default %(default)g",
    )
    add_memory_flags(parser)
    add_step_flags(parser)
    _add_result_flags(parser)
    _add_fault_flags(parser)
    parser.set_defaults(model=None, threads=None)
    return parser


def _add_workload_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is asked")
    which = group.add_mutually_exclusive_group()
    which.add_argument(
        "--workload", default="agents", metavar="NAME", help="one of those above; default %(default)s"
    )
    which.add_argument("--trace", type=Path, metavar="FILE", help="play a trace file instead")
    group.add_argument(
        "--requests", type=int, metavar="N", help="about so many; default: as many as the workload has"
    )
    group.add_argument(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="the same seed, the same workload; default %(default)s",
    )
    group.add_argument("--save-trace", type=Path, metavar="FILE", help="write the workload as a trace")


def _add_result_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what comes out, beside a table")
    group.add_argument(
        "--compare", metavar="A,B", help="play once for each of these cache policies, side by side"
    )
    group.add_argument(
        "--regret",
        action="store_true",
        help="what each cache policy finds of what could be found, by who knows the trace and at most",
    )
    group.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    group.add_argument(
        "--svg",
        type=Path,
        metavar="DIR",
        help="draw memory over time, hits over time, and times to first token",
    )


def _add_fault_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("trouble instead of a workload")
    group.add_argument(
        "--faults",
        action="store_true",
        help="short lives of a scheduler drawn from seeds: aborts, crashes, pauses, new weights, floods of "
        "impossible requests, small pools. Every turn is judged; a failure is shrunk and told",
    )
    group.add_argument("--seeds", type=int, metavar="N", help="lives, from --seed on; default 1000")
    group.add_argument(
        "--steps", type=int, default=60, metavar="N", help="turns with trouble in a life; default %(default)s"
    )
    group.add_argument("--turns", type=int, metavar="N", help="lives until there were so many turns in all")
    group.add_argument("--only", metavar="EVENTS", help="of one life these events, like 0-3,7")


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

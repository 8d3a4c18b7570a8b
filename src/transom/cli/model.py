"""Shared by commands that run a model: flags of engine and sampling, license terms, getting the model."""

import argparse
import sys
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from transom import streams
from transom.cli.parser import require, size
from transom.config import CACHE_POLICIES, SCHEDULE_POLICIES, EngineConfig
from transom.sampling import PARAMETERS, SamplingOptions

if TYPE_CHECKING:
    from pathlib import Path

    from transom.weights.catalogue import BuiltinModel

DEFAULTS = EngineConfig()
MODEL_HELP = "a GGUF file, or a name from `transom models`; default: Gemma 3 270M (base)"

# Repeated here, not imported: `--help` must not wait for the import of the weights package.
GEMMA_HELP = (
    "Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms;\n"
    "this is an unofficial third-party conversion of the base model, so chat is not its strength."
)


def add_engine_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that `engine_config` reads."""
    add_memory_flags(parser)
    steps = add_step_flags(parser)
    steps.add_argument(
        "--threads",
        type=int,
        metavar="N",
        help="computing threads; answers do not depend on them; default: the cores this process may use",
    )


def add_memory_flags(parser: argparse.ArgumentParser) -> None:
    memory = parser.add_argument_group("memory for keys and values")
    memory.add_argument(
        "--kv-bytes",
        type=size,
        metavar="SIZE",
        help="memory for keys and values of running requests and cached prefixes, such as 512M or 1G, in "
        "powers of 1024; default: as for --max-total-tokens 32768, or the model's context if that is less",
    )
    memory.add_argument(
        "--max-total-tokens",
        type=int,
        metavar="N",
        help="KV size as full-attention tokens; 24 windows are added; an alternative to --kv-bytes",
    )
    memory.add_argument(
        "--swa-full-tokens-ratio",
        type=float,
        metavar="R",
        help="fixed size of the window pool: R tokens per token of the full pool, 0 < R <= 1; default: both "
        "pools share one budget, and neither size is fixed",
    )
    memory.add_argument(
        "--cache-policy",
        choices=CACHE_POLICIES,
        default=DEFAULTS.cache_policy,
        help="which cached prefix is evicted first: value, the lowest chance of reuse x tokens saved / "
        "bytes; lru, the least recently used; lfu, the least often used; fifo, the oldest; priority, the one "
        "with the lowest priority; default %(default)s",
    )
    memory.add_argument(
        "--page-size",
        type=int,
        default=DEFAULTS.page_size,
        metavar="N",
        help="tokens per page, 1 to 4096; the cache keeps whole pages: small pages lose less of a text's "
        "end, large pages cost less bookkeeping; default %(default)s",
    )
    memory.add_argument(
        "--disable-radix-cache",
        action="store_true",
        help="no prefix caching: free a request's keys and values when it ends",
    )


def add_step_flags(parser: argparse.ArgumentParser) -> Any:
    """Adds the flags of the scheduler, and returns their group."""
    steps = parser.add_argument_group("steps")
    steps.add_argument(
        "--chunked-prefill-size",
        type=int,
        default=DEFAULTS.chunked_prefill_size,
        metavar="N",
        help="most tokens of a step, prompts and answers together; a smaller number keeps running answers "
        "steadier beside a long prompt, a larger one finishes the prompt sooner; default %(default)s",
    )
    steps.add_argument(
        "--target-itl-ms",
        type=float,
        metavar="MS",
        help="target for the milliseconds between two tokens of an answer (inter-token latency): steps "
        "with running answers compute fewer prompt tokens; default: no target",
    )
    steps.add_argument(
        "--schedule-policy",
        choices=SCHEDULE_POLICIES,
        default=DEFAULTS.schedule_policy,
        help="which waiting request starts first: lpm, the longest cached prefix; fcfs, first come; srpt, "
        "the fewest tokens to compute; priority, the highest class; default %(default)s",
    )
    steps.add_argument(
        "--max-running-requests",
        type=int,
        default=DEFAULTS.max_running_requests,
        metavar="N",
        help="most requests in a step, 1 to 4096; the rest wait; default %(default)s",
    )
    steps.add_argument("--paranoid", action="store_true", help="check every invariant after every step; slow")
    return steps


def add_sampling_flags(parser: Any, defaults: Mapping[str, float | None]) -> None:
    """Adds a flag for each sampling parameter in `defaults`. `sampling_options` reads them."""
    for name, default in defaults.items():
        parameter = PARAMETERS[name]
        parser.add_argument(
            parameter.flag,
            type=parameter.kind,
            default=default,
            metavar=parameter.symbol,
            help=parameter.help + ("" if default is None else "; default %(default)g"),
        )


def sampling_options(options: argparse.Namespace) -> SamplingOptions:
    """Sampling parameters from flags; absent ones are left out. ConfigError if a value is out of range."""
    given: SamplingOptions = {}
    for name, parameter in PARAMETERS.items():
        value = getattr(options, name, None)
        if value is not None:
            # Negative seeds exist for clients of the HTTP API; on the command line a minus is a typing error.
            require(parameter.flag, value, max(0, parameter.low), parameter.high)
            given[name] = value  # type: ignore[literal-required]
    return given


def engine_config(options: argparse.Namespace) -> EngineConfig:
    """The configuration from flags. Each flag has the name of its field; absent flags leave the default."""
    names = {field.name for field in fields(EngineConfig)}
    return EngineConfig(**{name: value for name, value in vars(options).items() if name in names})


def find_model(model: str | None) -> None:
    """Checks that the model file exists. ModelFileError.

    A built-in model that was installed with pip, in parts, is assembled on first use.
    """
    from transom.weights.builtin import builtin_model, is_ready, resolve_model
    from transom.weights.catalogue import Installed

    builtin = builtin_model(model)
    if builtin is None or is_ready(builtin) or not isinstance(builtin.source, Installed):
        resolve_model(model)
    else:
        obtain_shown(builtin)


def obtain_shown(model: "BuiltinModel") -> "Path":
    """Downloads or assembles a built-in model. Prints its license terms; a terminal shows a progress bar.

    ModelFileError if that fails.
    """
    from transom.weights.builtin import cache_folder, obtain

    if model.notice:
        streams.print_line(sys.stderr, model.notice)
    if not sys.stderr.isatty():
        return obtain(model, cache_folder(), lambda done, total: None)
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(model.name, total=None)
        return obtain(
            model, cache_folder(), lambda done, total: bar.update(task, completed=done, total=total)
        )

"""What commands that run a model share: its flags, its terms, and putting a built-in one together."""

import argparse
import sys
from typing import TYPE_CHECKING, Any

from transom import streams
from transom.cli.parser import size
from transom.config import CACHE_POLICIES, SCHEDULE_POLICIES, EngineConfig

if TYPE_CHECKING:
    from pathlib import Path

    from transom.weights.catalogue import BuiltinModel

MODEL_HELP = "a GGUF file, or a name of `transom models`; without one, the default: Gemma 3 270M (base)"

# Kept here as words, not imported: help must not cost the import of the weights package.
GEMMA_HELP = (
    "Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms;\n"
    "this is an unofficial third-party conversion of the base model, so chat is not its strength."
)


def add_engine_flags(parser: argparse.ArgumentParser) -> None:
    """The flags that `engine_config` reads."""
    add_memory_flags(parser)
    steps = add_step_flags(parser)
    steps.add_argument(
        "--threads",
        type=int,
        metavar="N",
        help="threads that compute; the bits do not depend on it; default: the cores this process may use",
    )


def add_memory_flags(parser: argparse.ArgumentParser) -> None:
    memory = parser.add_argument_group("memory for keys and values")
    memory.add_argument(
        "--kv-bytes",
        type=size,
        metavar="SIZE",
        help="for keys and values of what runs and what is cached, such as 512M or 1G, in powers of 1024; "
        "default: what --max-total-tokens 32768 takes, or the model's context if that is less",
    )
    memory.add_argument(
        "--max-total-tokens",
        type=int,
        metavar="N",
        help="the same in tokens: so many in layers of full attention, and 24 windows beside them",
    )
    memory.add_argument(
        "--swa-full-tokens-ratio",
        type=float,
        metavar="R",
        help="give window layers a pool of their own, of R tokens for each of the full pool, 0 < R <= 1; "
        "default: both share the bytes, and each takes what it needs",
    )
    memory.add_argument(
        "--cache-policy",
        choices=CACHE_POLICIES,
        default="value",
        help="which cached prefixes go first when memory is short: those of least value (chance of reuse x "
        "tokens saved / bytes), least recently or least often used, oldest, or of lowest priority; "
        "default %(default)s",
    )
    memory.add_argument(
        "--page-size",
        type=int,
        default=16,
        metavar="N",
        help="tokens per page, 1 to 4096; whole pages are kept: small ones lose less of a text's end, large "
        "ones are less work; default %(default)s",
    )
    memory.add_argument(
        "--disable-radix-cache", action="store_true", help="forget each prompt's keys and values when it ends"
    )


def add_step_flags(parser: argparse.ArgumentParser) -> Any:
    """Returns their group."""
    steps = parser.add_argument_group("how it computes")
    steps.add_argument(
        "--chunked-prefill-size",
        type=int,
        default=512,
        metavar="N",
        help="most tokens of a step, prompts and answers together: with fewer, running answers go on more "
        "smoothly beside a long prompt; with more, the prompt is done sooner; default %(default)s",
    )
    steps.add_argument(
        "--target-itl-ms",
        type=float,
        metavar="MS",
        help="about the most milliseconds between two tokens of an answer: steps that answers wait for "
        "compute less of others' prompts; default: no limit",
    )
    steps.add_argument(
        "--schedule-policy",
        choices=SCHEDULE_POLICIES,
        default="lpm",
        help="who of those that wait begins first: longest cached prefix, first come, fewest tokens to "
        "compute, or highest priority; default %(default)s",
    )
    steps.add_argument(
        "--max-running-requests",
        type=int,
        default=32,
        metavar="N",
        help="requests in a step at most, 1 to 4096; others wait; default %(default)s",
    )
    steps.add_argument("--paranoid", action="store_true", help="check every invariant after every step; slow")
    return steps


def engine_config(options: argparse.Namespace) -> EngineConfig:
    return EngineConfig(
        model=options.model,
        page_size=options.page_size,
        chunked_prefill_size=options.chunked_prefill_size,
        max_total_tokens=options.max_total_tokens,
        kv_bytes=options.kv_bytes,
        swa_full_tokens_ratio=options.swa_full_tokens_ratio,
        max_running_requests=options.max_running_requests,
        disable_radix_cache=options.disable_radix_cache,
        cache_policy=options.cache_policy,
        schedule_policy=options.schedule_policy,
        target_itl_ms=options.target_itl_ms,
        threads=options.threads,
        paranoid=options.paranoid,
    )


def find_model(model: str | None) -> None:
    """See that the model is there, putting a built-in one together if that was never done. ModelFileError."""
    from transom.weights.builtin import builtin_model, is_ready, resolve_model
    from transom.weights.catalogue import Installed

    builtin = builtin_model(model)
    if builtin is None or is_ready(builtin) or not isinstance(builtin.source, Installed):
        resolve_model(model)
    else:
        obtain_shown(builtin)


def obtain_shown(model: "BuiltinModel") -> "Path":
    """Bring a built-in model here: its terms first, a progress bar on a terminal. ModelFileError."""
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

"""The command line: `transom serve`, `generate` and `fuzz-kv`. Errors are one line, never a traceback."""

import argparse
import difflib
import logging
import os
import secrets
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from transom import __version__
from transom.config import CACHE_POLICIES, LOG_LEVELS, EngineConfig, ServerConfig, parse_bytes
from transom.errors import ConfigError, TransomError

if TYPE_CHECKING:
    from transom.llm import Options

USAGE_ERROR = 2
INTERRUPTED = 130

MODEL_HELP = "a GGUF file; without one, the built-in default: Gemma 3 270M (base)"

# Kept here as words, not imported: help must not cost the import of the weights package.
GEMMA_HELP = (
    "Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms;\n"
    "this is an unofficial third-party conversion of the base model, so chat is not its strength."
)

SERVE_HELP = """\
Serve one model over HTTP, in the shape of OpenAI's API.

  transom serve                    the default model on http://127.0.0.1:8000
  transom serve model.gguf --port 9000
  transom serve --kv-bytes 1G --max-running-requests 64

Layers with full attention and layers with a sliding window keep their keys and values in pools of
their own. What a pool cannot hold waits; what no longer fits is retracted and continued later, with the
same output. A prompt that cannot fit at all is refused with the numbers, never cut.
"""

GENERATE_HELP = """\
Continue a text, in this process, streaming to standard output.

  transom generate "The capital of France is" --max-tokens 16
  transom generate "Once upon a time" --temperature 0.8 --seed 7
"""

FUZZ_HELP = """\
Try to break the memory core: random operations on many small caches, under an oracle that knows what
every page must hold. What is not given is drawn. A failure is shrunk to a short script and printed.

  transom fuzz-kv --seed 7 --ops 1000000
  transom fuzz-kv --page-size 4 --window 7 --mix FW
  transom fuzz-kv --replay script.txt
"""


class Parser(argparse.ArgumentParser):
    """argparse whose errors are one line, and name the nearest flag when one is unknown."""

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE_ERROR, f"transom: {message}\n")

    def refuse_unknown(self, unknown: Sequence[str]) -> None:
        """Usage error for the first argument nobody asked for."""
        if not unknown:
            return
        word = unknown[0].split("=")[0]
        known = [option for action in self._actions for option in action.option_strings]
        near = difflib.get_close_matches(word, known, n=1) if word.startswith("-") else []
        hint = f"; did you mean {near[0]}?" if near else f"; see {self.prog} --help"
        self.error(f"unknown argument {word}{hint}")


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0, 1 for what went wrong, 2 for usage."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    parser, commands = _parsers()
    options, unknown = parser.parse_known_args(words)
    if options.command is None:
        parser.refuse_unknown(unknown)
        parser.print_help()
        return USAGE_ERROR
    commands[options.command].refuse_unknown(unknown)
    run: Callable[[argparse.Namespace], None] = options.run
    try:
        run(options)
    except TransomError as error:
        return _fail(str(error))
    except BrokenPipeError:
        # The reader of our output has gone, as `| head` does; nothing is left to tell it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:  # the process edge: the log has the traceback, the user one line
        logging.getLogger("transom").debug("failed", exc_info=True)
        return _fail(f"an error of transom's own: {type(error).__name__}: {error}")
    return 0


def _fail(message: str) -> int:
    print(f"transom: {' '.join(message.split())}", file=sys.stderr)
    return 1


# ---------------------------------------------------------------- what can be said


def _parsers() -> tuple[Parser, dict[str, Parser]]:
    parser = Parser(
        prog="transom",
        description="Serves language models that mix full and sliding-window attention.",
        epilog=GEMMA_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"transom {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    return parser, {
        "serve": _serve_parser(commands),
        "generate": _generate_parser(commands),
        "fuzz-kv": _fuzz_parser(commands),
    }


def _serve_parser(commands: Any) -> Parser:
    parser: Parser = commands.add_parser(
        "serve",
        help="serve a model over HTTP",
        usage="transom serve [MODEL] [flags]",
        description=SERVE_HELP,
        epilog=GEMMA_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("model", nargs="?", metavar="MODEL", help=MODEL_HELP)
    where = parser.add_argument_group("where it listens")
    where.add_argument("--host", default="127.0.0.1", help="address; default %(default)s, this machine only")
    where.add_argument("--port", type=int, default=8000, help="default %(default)s; 0 picks a free one")
    where.add_argument("--served-model-name", metavar="NAME", help="what clients call the model")
    _add_engine_flags(parser)
    talk = parser.add_argument_group("what it says")
    talk.add_argument("--log-level", choices=LOG_LEVELS, default="info", help="debug logs every request")
    parser.set_defaults(run=_serve)
    return parser


def _add_engine_flags(parser: argparse.ArgumentParser) -> None:
    memory = parser.add_argument_group("memory for keys and values")
    memory.add_argument(
        "--kv-bytes",
        type=_size,
        metavar="SIZE",
        help="bytes for all pools, such as 512M or 1G; default: chosen",
    )
    memory.add_argument(
        "--max-total-tokens", type=int, metavar="N", help="the same, said as tokens of the full pool"
    )
    memory.add_argument(
        "--swa-full-tokens-ratio",
        type=float,
        metavar="R",
        help="cut the pools: tokens of the window pool / tokens of the full pool; default: both share bytes",
    )
    memory.add_argument(
        "--cache-policy",
        choices=CACHE_POLICIES,
        default="value",
        help="which cached prefixes go first when memory is short; default %(default)s",
    )
    memory.add_argument(
        "--page-size", type=int, default=16, metavar="N", help="tokens per page; default %(default)s"
    )
    memory.add_argument(
        "--disable-radix-cache", action="store_true", help="forget each prompt's keys and values when it ends"
    )
    steps = parser.add_argument_group("how it computes")
    steps.add_argument(
        "--chunked-prefill-size",
        type=int,
        default=512,
        metavar="N",
        help="tokens of a step: smaller is smoother for running answers, larger faster; default %(default)s",
    )
    steps.add_argument(
        "--max-running-requests", type=int, default=32, metavar="N", help="at once; default %(default)s"
    )
    steps.add_argument("--threads", type=int, metavar="N", help="default: the cores this process may use")
    steps.add_argument("--paranoid", action="store_true", help="check every invariant after every step; slow")


def _generate_parser(commands: Any) -> Parser:
    parser: Parser = commands.add_parser(
        "generate",
        help="continue a text",
        usage="transom generate TEXT [flags]",
        description=GENERATE_HELP,
        epilog=GEMMA_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("text", help="what to continue")
    parser.add_argument("--model", metavar="MODEL", help=MODEL_HELP)
    choice = parser.add_argument_group("how tokens are chosen")
    choice.add_argument("--max-tokens", type=int, default=128, metavar="N", help="default %(default)s")
    choice.add_argument(
        "--temperature", type=float, default=0.0, metavar="T", help="0, the default, is greedy"
    )
    choice.add_argument("--top-k", type=int, default=0, metavar="K", help="the K likeliest only; 0 is all")
    choice.add_argument(
        "--top-p", type=float, default=1.0, metavar="P", help="the likeliest that reach P together"
    )
    choice.add_argument(
        "--min-p", type=float, default=0.0, metavar="P", help="at least P times the likeliest"
    )
    choice.add_argument(
        "--seed", type=int, metavar="N", help="the same seed, the same text; default: another each time"
    )
    choice.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="end before it; repeatable"
    )
    choice.add_argument("--ignore-eos", action="store_true", help="go on past the model's end")
    parser.set_defaults(run=_generate)
    return parser


def _fuzz_parser(commands: Any) -> Parser:
    parser: Parser = commands.add_parser(
        "fuzz-kv",
        help="try to break the memory core",
        usage="transom fuzz-kv [flags]",
        description=FUZZ_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="the same seed, the same operations")
    parser.add_argument("--ops", type=int, default=50_000, metavar="M", help="default %(default)s")
    parser.add_argument("--page-size", type=int, metavar="N", help="tokens per page; default: drawn")
    parser.add_argument("--window", type=int, metavar="N", help="tokens; default: drawn")
    parser.add_argument(
        "--mix",
        metavar="MIX",
        help="components by letter: F full, W window, V wider window, L window beyond the context; "
        "default: drawn",
    )
    parser.add_argument("--replay", metavar="FILE", help="run a printed script instead")
    parser.set_defaults(run=_fuzz)
    return parser


def _size(text: str) -> int:
    try:
        return parse_bytes(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


# ---------------------------------------------------------------- what is done


def _serve(options: argparse.Namespace) -> None:
    server = ServerConfig(
        host=options.host,
        port=options.port,
        served_model_name=options.served_model_name,
        log_level=options.log_level,
    )
    engine = _engine_config(options)
    _log_to_stderr(server.log_level)
    from transom.server.run import listen

    sock = listen(server.host, server.port)
    _find_model(engine.model)
    from transom.server.start import serve_model

    serve_model(server, engine, sock)


def _find_model(model: str | None) -> None:
    """Put a built-in model together if that was never done, having said its terms. ModelFileError."""
    from transom.weights.builtin import GEMMA_NOTICE, builtin_model, is_assembled, resolve_model

    builtin = builtin_model(model)
    if builtin is None or is_assembled(builtin):
        resolve_model(model)
        return
    print(GEMMA_NOTICE, file=sys.stderr, flush=True)
    if not sys.stderr.isatty():
        resolve_model(model)
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("putting the model together", total=None)
        resolve_model(model, lambda done, total: bar.update(task, completed=done, total=total))


def _engine_config(options: argparse.Namespace) -> EngineConfig:
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
        threads=options.threads,
        paranoid=options.paranoid,
    )


def _log_to_stderr(level: str) -> None:
    logging.basicConfig(
        stream=sys.stderr, level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    # uvicorn's own start and stop lines say what the banner says already.
    logging.getLogger("uvicorn.error").setLevel(max(logging.WARNING, logging.getLogger().level))


def _generate(options: argparse.Namespace) -> None:
    wanted = _generate_options(options)
    _find_model(options.model)
    from transom import LLM

    for piece in LLM(options.model).stream(options.text, **wanted):
        print(piece.text, end="", flush=True)
    print()


def _generate_options(options: argparse.Namespace) -> "Options":
    """ConfigError, naming the flag, for what is out of range."""
    _require("--max-tokens", options.max_tokens, 1, 1 << 31)
    _require("--temperature", options.temperature, 0, 2)
    _require("--top-k", options.top_k, 0, 1 << 30)
    _require("--top-p", options.top_p, 0, 1)
    _require("--min-p", options.min_p, 0, 1)
    seed = secrets.randbits(63) if options.seed is None else options.seed
    _require("--seed", seed, 0, 2**64 - 1)
    return {
        "max_tokens": options.max_tokens,
        "temperature": options.temperature,
        "top_k": options.top_k,
        "top_p": options.top_p,
        "min_p": options.min_p,
        "seed": seed,
        "stop": options.stop,
        "ignore_eos": options.ignore_eos,
    }


def _require(flag: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ConfigError(f"{flag} is {value:g}; it must be between {low:g} and {high:g}")


def _fuzz(options: argparse.Namespace) -> None:
    from transom.fuzz.campaign import Drawn
    from transom.fuzz.command import fuzz, replay_file

    if options.replay is not None:
        replay_file(options.replay)
    else:
        fuzz(Drawn(options.seed, options.page_size, options.window, options.mix), options.ops)

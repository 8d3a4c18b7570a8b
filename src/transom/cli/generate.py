"""`transom generate`."""

import argparse
import secrets
from typing import TYPE_CHECKING, Any

from transom.cli.model import GEMMA_HELP, MODEL_HELP, find_model
from transom.cli.parser import Parser, add_command, require

if TYPE_CHECKING:
    from transom.llm import Options

HELP = """\
Continue a text, in this process, streaming to standard output.

  transom generate "The capital of France is" --max-tokens 16
  transom generate "Once upon a time" --temperature 0.8 --seed 7
  transom generate "Q: What is a door? A:" --stop "Q:"

With temperature 0, the default, a text is continued alike every time; above, the seed decides. Cuts are made
in this order: top-k, then min-p, then top-p. The text itself is not repeated.
"""


def add(commands: Any) -> Parser:
    parser = add_command(
        commands,
        "generate",
        _run,
        help="continue a text",
        usage="transom generate TEXT [flags]",
        description=HELP,
        epilog=GEMMA_HELP,
    )
    parser.add_argument("text", metavar="TEXT", help="what to continue")
    parser.add_argument("--model", metavar="MODEL", help=MODEL_HELP)
    _add_choice_flags(parser)
    return parser


def _add_choice_flags(parser: argparse.ArgumentParser) -> None:
    choice = parser.add_argument_group("how tokens are chosen")
    choice.add_argument(
        "--max-tokens", type=int, default=128, metavar="N", help="tokens at most; default %(default)s"
    )
    choice.add_argument(
        "--temperature",
        type=float,
        default=0.0,
        metavar="T",
        help="0, the default, always takes the likeliest token; 1 draws as the model says; up to 2",
    )
    choice.add_argument(
        "--top-k",
        type=int,
        default=0,
        metavar="K",
        help="draw from the K likeliest tokens; 0, all, is default",
    )
    choice.add_argument(
        "--top-p",
        type=float,
        default=1.0,
        metavar="P",
        help="draw from the likeliest tokens that reach probability P together; default %(default)g, all",
    )
    choice.add_argument(
        "--min-p",
        type=float,
        default=0.0,
        metavar="P",
        help="draw from tokens at least P times as probable as the likeliest; default %(default)g, all",
    )
    choice.add_argument(
        "--seed", type=int, metavar="N", help="the same seed, the same text; default: another each time"
    )
    choice.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="end before this text; may be given again"
    )
    choice.add_argument("--ignore-eos", action="store_true", help="go on where the model would end")


def _run(options: argparse.Namespace) -> None:
    wanted = _generate_options(options)
    find_model(options.model)
    from transom import LLM

    for piece in LLM(options.model).stream(options.text, **wanted):
        print(piece.text, end="", flush=True)
    print()


def _generate_options(options: argparse.Namespace) -> "Options":
    """ConfigError, naming the flag, for what is out of range."""
    require("--max-tokens", options.max_tokens, 1, 1 << 31)
    require("--temperature", options.temperature, 0, 2)
    require("--top-k", options.top_k, 0, 1 << 30)
    require("--top-p", options.top_p, 0, 1)
    require("--min-p", options.min_p, 0, 1)
    seed = secrets.randbits(63) if options.seed is None else options.seed
    require("--seed", seed, 0, 2**64 - 1)
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

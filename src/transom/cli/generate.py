"""`transom generate`."""

import argparse
import secrets
from typing import TYPE_CHECKING, Any

from transom.cli.model import GEMMA_HELP, MODEL_HELP, add_sampling_flags, find_model, sampling_options
from transom.cli.parser import Parser, add_command, require
from transom.sampling import PARAMETERS

if TYPE_CHECKING:
    from transom.llm import Options

HELP = """\
Continue a text, in this process. The continuation streams to standard output; the text is not repeated.

  transom generate "The capital of France is" --max-tokens 16
  transom generate "Once upon a time" --temperature 0.8 --seed 7
  transom generate "Q: What is a door? A:" --stop "Q:"

At temperature 0, the default, the output is always the same; above 0 it depends on the seed, which is
random unless --seed is given. Truncations apply in the order top-k, min-p, top-p; then the token is drawn.
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
    parser.add_argument("text", metavar="TEXT", help="the text to continue")
    parser.add_argument("--model", metavar="MODEL", help=MODEL_HELP)
    _add_output_flags(parser)
    return parser


def _add_output_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument(
        "--max-tokens", type=int, default=128, metavar="N", help="most tokens; default %(default)s"
    )
    defaults = {name: parameter.default for name, parameter in PARAMETERS.items()}
    add_sampling_flags(group, {**defaults, "seed": None})
    group.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="end before this text; may be repeated"
    )
    group.add_argument("--ignore-eos", action="store_true", help="continue past the model's end token")


def _run(options: argparse.Namespace) -> None:
    generate_options = _generate_options(options)
    find_model(options.model)
    from transom import LLM

    for piece in LLM(options.model).stream(options.text, **generate_options):
        print(piece.text, end="", flush=True)
    print()


def _generate_options(options: argparse.Namespace) -> "Options":
    """ConfigError, naming the flag, for a value out of range."""
    require("--max-tokens", options.max_tokens, 1, 1 << 31)
    if options.seed is None:
        options.seed = secrets.randbits(63)
    given: Options = {
        "max_tokens": options.max_tokens,
        "stop": options.stop,
        "ignore_eos": options.ignore_eos,
    }
    return {**given, **sampling_options(options)}

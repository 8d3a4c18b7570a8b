"""The command line: parses arguments, runs one command, and reports errors as one line and an exit status."""

import argparse
import logging
import sys
from collections.abc import Callable, Sequence

from transom import __version__, streams
from transom.cli import bench, chat, doctor, export_tokenizer, generate, models, run_batch, serve
from transom.cli.extensions import installed
from transom.cli.model import GEMMA_HELP
from transom.cli.parser import USAGE_ERROR, CommandParser, Parser
from transom.errors import TransomError, require_assertions

INTERRUPTED = 130

HELP = """\
A server for language models that mix full and sliding-window attention.

  transom serve                    an OpenAI-compatible server on http://127.0.0.1:8000
  transom generate "The capital of France is"
  transom COMMAND --help           flags and examples of a command
"""

COMMANDS = (
    serve,
    chat,
    generate,
    run_batch,
    models,
    doctor,
    export_tokenizer,
    bench,
)
"""In the order in which help lists them.

A command imports heavy packages only when it runs: `transom --help` must be fast.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 for success, 1 for an error, 2 for wrong usage, 130 for Ctrl-C."""
    # First of all: without standard streams, the first socket would get the number of standard output.
    streams.complete()
    words = list(sys.argv[1:] if arguments is None else arguments)
    parser, _ = parsers()
    # Unknown arguments are reported by the parser of the command, which can suggest the nearest flag.
    options, unknown = parser.parse_known_args(words)
    if options.command is None:
        parser.refuse_unknown(unknown)
        parser.print_help()
        return USAGE_ERROR
    options.parser.refuse_unknown(unknown)
    run: Callable[[argparse.Namespace], None] = options.run
    try:
        require_assertions()
        run(options)
    except TransomError as error:
        return _fail(str(error))
    except BrokenPipeError:
        # The reader of our output has closed it, as `| head` does: that is no error.
        streams.silence(sys.stdout)
        return 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except MemoryError:
        return _fail("not enough memory")
    except Exception as error:  # the edge of the process: the log gets the traceback, the user one line
        logging.getLogger("transom").debug("failed", exc_info=True)
        return _fail(f"internal error: {type(error).__name__}: {error}")
    return 0


def _fail(message: str) -> int:
    streams.print_line(sys.stderr, f"transom: {' '.join(message.split())}")
    return 1


def parsers() -> tuple[Parser, dict[str, Parser]]:
    """The parser of the whole command line, and the parsers of the commands by name."""
    parser = Parser(
        prog="transom",
        description=HELP,
        epilog=GEMMA_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"transom {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=CommandParser)
    for add in (*(command.add for command in COMMANDS), *installed("transom.commands")):
        add(commands)
    return parser, dict(commands.choices)

"""`transom serve`."""

import argparse
import os
from typing import Any

from transom import logs
from transom.cli.model import GEMMA_HELP, MODEL_HELP, add_engine_flags, engine_config, find_model
from transom.cli.parser import Parser, add_command
from transom.config import LOG_FORMATS, LOG_LEVELS, LogConfig, ServerConfig

HELP = """\
Serve one model over HTTP, in the shape of OpenAI's API.

  transom serve                    the default model on http://127.0.0.1:8000
  transom serve model.gguf --port 9000
  transom serve --kv-bytes 1G --max-running-requests 64

Layers with full attention and layers with a sliding window keep their keys and values in pools of
their own. What a pool cannot hold waits; what no longer fits is retracted and continued later, with the
same output. A prompt that cannot fit at all is refused with the numbers, never cut. The screen that comes up
says what was chosen; its last line is a request to paste into another terminal.

Ctrl-C or SIGTERM stops it: running answers may finish, within --finish-seconds, and the exit status is 0.
A second one stops it at once: 130. What cannot start is said in one line: 1. An engine that dies is replaced
within seconds, until it does so five times in a minute: 1. Wrong usage: 2. All flags at length:
docs/commands.md; endpoints, fields and metrics: docs/serving.md.
"""


def add(commands: Any) -> Parser:
    parser = add_command(
        commands,
        "serve",
        _run,
        help="serve a model over HTTP",
        usage="transom serve [MODEL] [flags]",
        description=HELP,
        epilog=GEMMA_HELP,
    )
    parser.add_argument("model", nargs="?", metavar="MODEL", help=MODEL_HELP)
    where = parser.add_argument_group("where it listens")
    where.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="default %(default)s, this machine only; 0.0.0.0 is every network it is in: ask for a key then",
    )
    where.add_argument(
        "--port", type=int, default=8000, metavar="N", help="default %(default)s; 0 picks a free one"
    )
    where.add_argument(
        "--served-model-name",
        metavar="NAME",
        help="what clients call the model; default: its name, or the file's without .gguf",
    )
    where.add_argument(
        "--api-key",
        action="append",
        default=[],
        metavar="KEY",
        help="ask for this key; may be given again. Who else is on this machine can read it in the list of "
        "processes; the variable TRANSOM_API_KEY does the same in private. Default: nobody is asked",
    )
    add_engine_flags(parser)
    end = parser.add_argument_group("how it ends")
    end.add_argument(
        "--finish-seconds",
        type=float,
        default=5.0,
        metavar="S",
        help="seconds that answers may go on after Ctrl-C or SIGTERM, 0 to 3600; default %(default)g",
    )
    talk = parser.add_argument_group("what it says on standard error")
    talk.add_argument(
        "--log-level", choices=LOG_LEVELS, default="info", help="info, the default, has a line per request"
    )
    talk.add_argument(
        "--log-format", choices=LOG_FORMATS, default="text", help="json is one object a line; default text"
    )
    return parser


def _private_keys() -> tuple[str, ...]:
    """One that is set and empty is passed on to be refused: whoever sets it wants no open server."""
    key = os.environ.get("TRANSOM_API_KEY")
    return () if key is None else (key,)


def _run(options: argparse.Namespace) -> None:
    server = ServerConfig(
        host=options.host,
        port=options.port,
        served_model_name=options.served_model_name,
        api_keys=(*options.api_key, *_private_keys()),
        finish_seconds=options.finish_seconds,
    )
    engine = engine_config(options)
    log_config = LogConfig(options.log_level, options.log_format)
    logs.configure(log_config)
    from transom.server.launch import listen, serve_model

    # The port is taken first: a download or a load that ends in "address in use" would waste minutes.
    sock = listen(server.host, server.port)
    find_model(engine.model)
    serve_model(server, engine, log_config, sock)

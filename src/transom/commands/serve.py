"""`transom serve`."""

import argparse
import logging
import sys
from typing import Any

from transom.commands.model import GEMMA_HELP, MODEL_HELP, add_engine_flags, engine_config, find_model
from transom.commands.parser import Parser, add_command
from transom.config import DRAIN_SECONDS, LOG_LEVELS, ServerConfig

HELP = """\
Serve one model over HTTP, in the shape of OpenAI's API.

  transom serve                    the default model on http://127.0.0.1:8000
  transom serve model.gguf --port 9000
  transom serve --kv-bytes 1G --max-running-requests 64

Layers with full attention and layers with a sliding window keep their keys and values in pools of
their own. What a pool cannot hold waits; what no longer fits is retracted and continued later, with the
same output. A prompt that cannot fit at all is refused with the numbers, never cut.
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
    where.add_argument("--host", default="127.0.0.1", help="address; default %(default)s, this machine only")
    where.add_argument("--port", type=int, default=8000, help="default %(default)s; 0 picks a free one")
    where.add_argument("--served-model-name", metavar="NAME", help="what clients call the model")
    where.add_argument(
        "--drain-seconds",
        type=float,
        default=DRAIN_SECONDS,
        metavar="SECONDS",
        help="how long answers may go on after the first signal to stop; default %(default)g",
    )
    add_engine_flags(parser)
    talk = parser.add_argument_group("what it says")
    talk.add_argument("--log-level", choices=LOG_LEVELS, default="info", help="debug logs every request")
    return parser


def _run(options: argparse.Namespace) -> None:
    server = ServerConfig(
        host=options.host,
        port=options.port,
        served_model_name=options.served_model_name,
        log_level=options.log_level,
        drain_seconds=options.drain_seconds,
    )
    engine = engine_config(options)
    _log_to_stderr(server.log_level)
    from transom.server.run import listen

    sock = listen(server.host, server.port)
    find_model(engine.model)
    from transom.server.start import serve_model

    serve_model(server, engine, sock)


def _log_to_stderr(level: str) -> None:
    logging.basicConfig(
        stream=sys.stderr, level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    # uvicorn's own start and stop lines say what the banner says already.
    logging.getLogger("uvicorn.error").setLevel(max(logging.WARNING, logging.getLogger().level))

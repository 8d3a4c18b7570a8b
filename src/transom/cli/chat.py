"""`transom chat`."""

import argparse
import os
from typing import Any

from transom.cli.model import GEMMA_HELP, MODEL_HELP, add_sampling_flags, find_model, sampling_options
from transom.cli.parser import Parser, add_command, require

HELP = """\
Chat with a model, in this process or on any server with OpenAI's API.

  transom models add smollm2-135m-instruct
  transom chat smollm2-135m-instruct
  transom chat --url http://127.0.0.1:8000

Answers stream. /help lists the commands: /reset, /system, /explain, /save, /quit. Ctrl-C ends an answer,
Ctrl-D the program. OPENAI_API_KEY is sent to the server if it is set.
"""


def add(commands: Any) -> Parser:
    parser = add_command(
        commands,
        "chat",
        _run,
        help="chat with a model",
        usage="transom chat [MODEL] [flags]",
        description=HELP,
        epilog=GEMMA_HELP,
    )
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help=f"{MODEL_HELP}; with --url, the name of a model on that server",
    )
    parser.add_argument("--url", metavar="URL", help="chat with a model on this server")
    parser.add_argument("--system", default="", metavar="TEXT", help="system message of the conversation")
    parser.add_argument(
        "--max-tokens",
        type=int,
        default=1024,
        metavar="N",
        help="most tokens of an answer; default %(default)s",
    )
    add_sampling_flags(parser, {"temperature": 0.7, "seed": None})
    return parser


def _run(options: argparse.Namespace) -> None:
    require("--max-tokens", options.max_tokens, 1, 1 << 31)
    sampling = sampling_options(options)
    # A missing model is reported before the engine's modules are imported.
    if options.url is None:
        find_model(options.model)
    from transom.cli.chat_app.backend import Backend, LocalBackend, RemoteBackend, Settings
    from transom.cli.chat_app.terminal import run_chat

    backend: Backend
    if options.url is not None:
        backend = RemoteBackend(options.url, options.model, os.environ.get("OPENAI_API_KEY"))
    else:
        from transom.llm import LLM
        from transom.weights.catalogue import DEFAULT

        backend = LocalBackend(LLM(options.model), options.model or DEFAULT)
    run_chat(backend, Settings(options.max_tokens, sampling), options.system)

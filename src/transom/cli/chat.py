"""`transom chat`."""

import argparse
import os
from typing import Any

from transom.cli.model import GEMMA_HELP, MODEL_HELP, find_model
from transom.cli.parser import Parser, add_command, require

HELP = """\
Talk with a model: in this process, or on a server, ours or any that speaks OpenAI's API.

  transom models add smollm2-135m-instruct
  transom chat smollm2-135m-instruct
  transom chat --url http://127.0.0.1:8000

Answers stream. /help lists commands: /reset, /system, /explain, /save, /quit. Ctrl-C ends an answer, not the
program; Ctrl-D leaves. OPENAI_API_KEY is sent to a server if it is set.
"""


def add(commands: Any) -> Parser:
    parser = add_command(
        commands,
        "chat",
        _run,
        help="talk with a model",
        usage="transom chat [MODEL] [flags]",
        description=HELP,
        epilog=GEMMA_HELP,
    )
    parser.add_argument("model", nargs="?", metavar="MODEL", help=f"{MODEL_HELP}; with --url, a name there")
    parser.add_argument("--url", metavar="URL", help="talk with the server there instead")
    parser.add_argument(
        "--system", default="", metavar="TEXT", help="what the model is told before you begin"
    )
    parser.add_argument(
        "--max-tokens", type=int, default=1024, metavar="N", help="of an answer at most; default %(default)s"
    )
    parser.add_argument(
        "--temperature",
        type=float,
        default=0.7,
        metavar="T",
        help="0 always takes the likeliest token, 1 draws as the model says, up to 2; default %(default)s",
    )
    parser.add_argument("--seed", type=int, metavar="N", help="the same seed, the same answers; default: any")
    return parser


def _run(options: argparse.Namespace) -> None:
    require("--max-tokens", options.max_tokens, 1, 1 << 31)
    require("--temperature", options.temperature, 0, 2)
    if options.seed is not None:
        require("--seed", options.seed, 0, 2**63 - 1)
    if options.url is None:
        find_model(options.model)
    from transom.cli.chat_app.partner import LocalPartner, Partner, RemotePartner, Style
    from transom.cli.chat_app.terminal import talk

    partner: Partner
    if options.url is not None:
        partner = RemotePartner(options.url, options.model, os.environ.get("OPENAI_API_KEY"))
    else:
        from transom.llm import LLM
        from transom.weights.catalogue import DEFAULT

        partner = LocalPartner(LLM(options.model), options.model or DEFAULT)
    talk(partner, Style(options.max_tokens, options.temperature, options.seed), options.system)

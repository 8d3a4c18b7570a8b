"""`transom doctor`."""

import argparse
import sys
from typing import TYPE_CHECKING, Any

from transom.cli.model import MODEL_HELP
from transom.cli.parser import Parser, add_command
from transom.config import ServerConfig
from transom.errors import TransomError

if TYPE_CHECKING:
    from transom.cli.checks import Finding

HELP = """\
Find problems of this machine that would affect serving, and how to fix them.

  transom doctor
  transom doctor smollm2-135m-instruct --port 9000

A line begins with ok, slow (works, but below the machine's capability) or wrong; an arrow says how to fix it.
Nothing is started, fetched or written. The exit status is 1 if a problem would keep a server from starting.
"""

COLOURS = {"ok": "green", "slow": "yellow", "wrong": "bold red"}


def add(commands: Any) -> Parser:
    parser = add_command(
        commands,
        "doctor",
        _run,
        help="find problems of this machine",
        usage="transom doctor [MODEL] [flags]",
        description=HELP,
    )
    parser.add_argument("model", nargs="?", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="address that the server would listen on; default %(default)s",
    )
    parser.add_argument("--port", type=int, default=8000, metavar="N", help="its port; default %(default)s")
    return parser


def _run(options: argparse.Namespace) -> None:
    from transom.cli.checks import Verdict, examine, worst

    address = ServerConfig(host=options.host, port=options.port)
    findings = examine(options.model, address.host, address.port)
    _show(findings)
    if worst(findings) == Verdict.WRONG:
        wrong = ", ".join(finding.name for finding in findings if finding.verdict == Verdict.WRONG)
        raise TransomError(f"problems found: {wrong}")


def _show(findings: "list[Finding]") -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True, no_color=not sys.stdout.isatty())
    for finding in findings:
        colour = COLOURS[finding.verdict]
        console.print(Text(f"{finding.verdict:<6}", style=colour), Text(f"{finding.name:<10}"), finding.text)
        if finding.fix:
            console.print(Text(f"{'':<18}-> {finding.fix}", style=colour))

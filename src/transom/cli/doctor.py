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
Look at this machine as a server would, and say for each thing whether it is well, or how to mend it.

  transom doctor
  transom doctor smollm2-135m-instruct --port 9000

A line begins with ok, slow (it works, with less than it could have) or wrong; an arrow says what to do.
Nothing is started, fetched or written. The exit status is 1 if something would keep a server from starting.
"""

COLOURS = {"ok": "green", "slow": "yellow", "wrong": "bold red"}


def add(commands: Any) -> Parser:
    parser = add_command(
        commands,
        "doctor",
        _run,
        help="look for what is wrong with this machine",
        usage="transom doctor [MODEL] [flags]",
        description=HELP,
    )
    parser.add_argument("model", nargs="?", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument(
        "--host", default="127.0.0.1", metavar="ADDRESS", help="where it would listen; default %(default)s"
    )
    parser.add_argument("--port", type=int, default=8000, metavar="N", help="default %(default)s")
    return parser


def _run(options: argparse.Namespace) -> None:
    from transom.cli.checks import Verdict, examine, worst

    where = ServerConfig(host=options.host, port=options.port)
    findings = examine(options.model, where.host, where.port)
    _show(findings)
    if worst(findings) == Verdict.WRONG:
        wrong = ", ".join(finding.name for finding in findings if finding.verdict == Verdict.WRONG)
        raise TransomError(f"not well: {wrong}")


def _show(findings: "list[Finding]") -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True, no_color=not sys.stdout.isatty())
    for finding in findings:
        colour = COLOURS[finding.verdict]
        console.print(Text(f"{finding.verdict:<6}", style=colour), Text(f"{finding.name:<10}"), finding.text)
        if finding.mend:
            console.print(Text(f"{'':<18}-> {finding.mend}", style=colour))

"""`transom models`: lists the built-in models, and downloads one."""

import argparse
from typing import TYPE_CHECKING, Any

from transom.cli.parser import Parser, add_command

if TYPE_CHECKING:
    from transom.weights.catalogue import BuiltinModel

HELP = """\
List the built-in models, or download one.

  transom models
  transom models add smollm2-135m-instruct
  transom serve smollm2-135m-instruct

Files are stored in the cache folder, $TRANSOM_CACHE or ~/.cache/transom. An interrupted download resumes
where it stopped. Any other GGUF file can be served by its path.
"""


def add(commands: Any) -> Parser:
    parser = add_command(
        commands,
        "models",
        _run,
        help="list the built-in models; download one",
        usage="transom models [add NAME]",
        description=HELP,
    )
    parser.add_argument(
        "action", nargs="?", choices=("add",), help="download a model; without it, the models are listed"
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="a name from the first column of the list")
    return parser


def _run(options: argparse.Namespace) -> None:
    if options.action is None:
        _list()
    else:
        _add(_known(options.name))


def _list() -> None:
    from rich.table import Table

    from transom.bench.files import screen
    from transom.weights.builtin import cache_folder, is_ready
    from transom.weights.catalogue import BUILTIN

    columns = ("name", "size", "licence", "installed", "description")
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for model in BUILTIN.values():
        installed = "yes" if is_ready(model) else "no"
        table.add_row(model.name, _megabytes(model.size), model.licence, installed, model.about)
    console = screen()
    console.print(table)
    console.print(f"\nin {cache_folder()}")


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.0f} MB"


def _known(name: str | None) -> "BuiltinModel":
    from transom.errors import ConfigError
    from transom.weights.catalogue import BUILTIN

    if name is None:
        raise ConfigError(f"name a model: {', '.join(BUILTIN)}")
    if name not in BUILTIN:
        raise ConfigError(f"{name!r} is not a built-in model; the built-in models are: {', '.join(BUILTIN)}")
    return BUILTIN[name]


def _add(model: "BuiltinModel") -> None:
    from transom.cli.model import obtain_shown
    from transom.weights.builtin import is_ready

    was_installed = is_ready(model)
    path = obtain_shown(model)
    print(f"{model.name} {'was already installed' if was_installed else 'is installed'}: {path}")
    print(f"serve it with: transom serve {model.name}")

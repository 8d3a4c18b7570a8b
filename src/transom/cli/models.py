"""`transom models`: what there is by name, and fetching it."""

import argparse
from typing import TYPE_CHECKING, Any

from transom.cli.parser import Parser, add_command

if TYPE_CHECKING:
    from transom.weights.catalogue import BuiltinModel

HELP = """\
List the models known by name, or bring one to this machine.

  transom models
  transom models add smollm2-135m-instruct
  transom serve smollm2-135m-instruct

Files lie in the cache folder ($TRANSOM_CACHE, else ~/.cache/transom). A download that broke off goes on
where it was. Any other GGUF file is served by its path.
"""


def add(commands: Any) -> Parser:
    parser = add_command(
        commands,
        "models",
        _run,
        help="list the models known by name; add one",
        usage="transom models [add NAME]",
        description=HELP,
    )
    parser.add_argument(
        "action", nargs="?", choices=("add",), help="bring a model here; without it, list them"
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="one of the list's first column")
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

    columns = ("name", "size", "licence", "here", "what it is")
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for model in BUILTIN.values():
        here = "yes" if is_ready(model) else "no"
        table.add_row(model.name, _megabytes(model.size), model.licence, here, model.about)
    console = screen()
    console.print(table)
    console.print(f"\nin {cache_folder()}")


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.0f} MB"


def _known(name: str | None) -> "BuiltinModel":
    from transom.errors import ConfigError
    from transom.weights.catalogue import BUILTIN

    if name is None:
        raise ConfigError(f"which model? one of: {', '.join(BUILTIN)}")
    if name not in BUILTIN:
        raise ConfigError(f"{name!r} is not known by name; these are: {', '.join(BUILTIN)}")
    return BUILTIN[name]


def _add(model: "BuiltinModel") -> None:
    from transom.cli.model import obtain_shown
    from transom.weights.builtin import is_ready

    had = is_ready(model)
    path = obtain_shown(model)
    print(f"{model.name} {'was here already' if had else 'is here now'}: {path}")
    print(f"serve it with: transom serve {model.name}")

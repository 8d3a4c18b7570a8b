"""docs/ names exactly the commands, flags, endpoints, fields, metrics and variables that the code has."""

import argparse
import re
import shlex
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.docs.pages import CODE, DOCS, PAGES, ROOT, anchor, blocks, links, rows, sections, text_of

from transom import wire
from transom.cli import main as cli
from transom.cli import settings
from transom.config import ServerConfig
from transom.server import protocol
from transom.server.app import Service
from transom.server.callers import KeyRing
from transom.server.fields import GROUPS
from transom.server.metrics import Metrics

COMMANDS_PAGE = DOCS / "commands.md"
SERVING_PAGE = DOCS / "serving.md"
NOT_OURS = {"--kl-divergence", "--upgrade", "--strict", "--llama-server"}
"""Flags of other programs and of tools that pages name."""
NOT_OUR_VARIABLES = {"NO_COLOR"}
"""Variables that a library reads."""


def parsers(name: str, parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """The parser and the parsers of its subcommands, recursively, each with the words of its command line."""
    yield name, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, below in action.choices.items():
                yield from parsers(f"{name} {word}", below)


def arguments(parser: argparse.ArgumentParser) -> list[argparse.Action] | None:
    """The arguments of a command, or no list if it takes only a subcommand."""
    own = [action for action in parser._actions if not isinstance(action, NOT_ARGUMENTS)]
    has_commands = any(isinstance(action, argparse._SubParsersAction) for action in parser._actions)
    return own if own or not has_commands else None


NOT_ARGUMENTS = (argparse._HelpAction, argparse._VersionAction, argparse._SubParsersAction)
PARSERS = dict(parsers("transom", cli.parsers()[0]))
COMMANDS = {name: own for name, parser in PARSERS.items() if (own := arguments(parser)) is not None}
SECTIONS = sections(COMMANDS_PAGE)
SHARED = {anchor(title): title for title in SECTIONS if not title.startswith("transom ")}


def documented(command: str) -> dict[str, str]:
    """The page's row for each argument of a command, from its section and the shared sections it links to."""
    assert command in SECTIONS, (
        f"write in docs/commands.md:\n\n## {command}\n\n{suggested(COMMANDS[command])}"
    )
    own = SECTIONS[command]
    named = [target for target in re.findall(r"\]\(#([\w-]+)\)", own) if target in SHARED]
    found: dict[str, str] = {}
    for section in (own, *(SECTIONS[SHARED[target]] for target in named)):
        for cells in rows(section):
            for code in CODE.findall(cells[0]):
                if section is own or code.startswith("--"):
                    found[code.split()[0]] = " ".join(cells)
    return found


def suggested(actions: list[argparse.Action]) -> str:
    """Rows to paste into the page, made from the help texts."""
    lines = []
    for action in actions:
        name = name_of(action)
        value = f" {action.metavar}" if action.option_strings and action.metavar else ""
        words = [str(action.help), *(f"`{choice}`" for choice in action.choices or ())]
        lines.append(f"| `{name}{value}` | {', '.join(words) % vars(action)} |")
    return "\n".join(("| | |", "|---|---|", *lines))


def name_of(action: argparse.Action) -> str:
    """The argument's name on the page: its long flag; without one, its metavar, or its only choice."""
    if action.option_strings:
        return action.option_strings[-1]
    return str(action.metavar or "".join(action.choices or ()))


@pytest.mark.parametrize("command", COMMANDS)
def test_the_section_of_a_command_lists_exactly_its_arguments(command: str) -> None:
    listed, existing = documented(command), {name_of(action): action for action in COMMANDS[command]}
    section = f"docs/commands.md, section '## {command}'"
    missing = [existing[name] for name in existing.keys() - listed.keys()]
    assert not missing, f"{section}: rows are missing:\n\n{suggested(missing)}"
    unknown = sorted(listed.keys() - existing.keys())
    assert not unknown, f"{section}: the command has no {unknown}"


def test_every_section_belongs_to_a_command_that_exists() -> None:
    listed = {title for title in SECTIONS if title.startswith("transom ")}
    unknown = listed - PARSERS.keys()
    assert not unknown, f"docs/commands.md has sections of commands that do not exist: {sorted(unknown)}"


@pytest.mark.parametrize("command", COMMANDS)
def test_the_page_states_the_default_and_the_choices_of_every_argument(command: str) -> None:
    listed = documented(command)
    for action in COMMANDS[command]:
        row = listed.get(name_of(action), "").replace(",", "")
        section = f"docs/commands.md, section '## {command}', {name_of(action)}"
        for choice in action.choices or ():
            assert f"`{choice}`" in row, f"{section}: does not name {choice}"
        if action.default not in (None, False, [], ""):
            assert str(action.default) in row, f"{section}: the default is {action.default}"


def test_no_page_names_a_flag_that_does_not_exist() -> None:
    known = {flag for actions in COMMANDS.values() for action in actions for flag in action.option_strings}
    known |= {"--help", "--version"} | NOT_OURS
    for page in PAGES:
        if page.name == "CHANGELOG.md":
            continue
        lines = [line for line in text_of(page).splitlines() if not is_foreign(line)]
        found = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", "\n".join(lines)))
        assert not found - known, f"{page.name} names flags that do not exist: {found - known}"


def is_foreign(line: str) -> bool:
    """Whether the line is a command line of another program."""
    return line.startswith(("sudo ", "git ", "pip ", "python ", "podman "))


def examples() -> Iterator[tuple[str, str]]:
    """Lines of the pages' code blocks, and examples in the help of every command, each with its origin."""
    for page in PAGES:
        for block in blocks(page):
            for line in block.text.splitlines():
                yield page.name, line
    for name, parser in PARSERS.items():
        for line in (parser.description or "").splitlines():
            if line.startswith("  "):
                yield f"{name} --help", re.split(r" {2,}", line.strip())[0]


LINES = [(where, line) for where, line in examples() if line.startswith("transom ")]


@pytest.mark.parametrize(("where", "line"), LINES)
def test_the_parser_accepts_every_example(where: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split(re.split(r"\s[|&]", line)[0], comments=True)[1:]
    if words[0] == "COMMAND":
        return
    try:
        cli.parsers()[0].parse_args(words)
    except SystemExit as ended:
        assert not ended.code, f"{where}: {line}: {capsys.readouterr().err}"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example_and_a_text_for_every_argument(command: str) -> None:
    assert any(where == f"{command} --help" and line.startswith(command) for where, line in LINES)
    for action in COMMANDS[command]:
        assert action.help and action.help is not argparse.SUPPRESS, (command, name_of(action))


def test_the_table_of_commands_leads_to_every_section() -> None:
    listed = {code for cells in rows(SECTIONS["Commands"]) for code in CODE.findall(cells[0])}
    assert {" ".join(name.split()[:2]) for name in COMMANDS} == listed, "docs/commands.md, the first table"
    targets = links(COMMANDS_PAGE)
    assert all(f"#{anchor(name)}" in targets for name in listed)


# ---------------------------------------------------------------- the server

ABSENT: Any = None
"""Stands in for the engine, the input processor and the metrics: the list of routes does not use them."""


def service() -> Service:
    return Service(ABSENT, ABSENT, ABSENT, ServerConfig(), KeyRing(ServerConfig(), is_local=True))


def test_the_page_lists_exactly_the_endpoints_of_the_server() -> None:
    existing = {
        f"{method} {route.path.replace(':path', '')}"
        for route in service().routes()
        for method in (route.methods or set()) - {"HEAD"}
    }
    listed = {
        code
        for cells in rows(sections(SERVING_PAGE)["Endpoints"])
        for code in CODE.findall(cells[0])
        if code.startswith(("GET ", "POST "))
    }
    assert listed == existing, "docs/serving.md, section '## Endpoints'"


@pytest.mark.parametrize("kind", [protocol.CompletionRequest, protocol.ChatRequest])
def test_every_field_of_a_request_is_documented(kind: Any) -> None:
    listed = set(CODE.findall(sections(SERVING_PAGE)["Fields of a request"]))
    missing = set(kind.__struct_fields__) - listed
    assert not missing, f"docs/serving.md, section '## Fields of a request': {sorted(missing)}"


def test_the_page_lists_exactly_the_fields_that_are_refused() -> None:
    table = rows(sections(SERVING_PAGE)["Fields that are not honoured"])
    listed = {cells[1]: set(CODE.findall(cells[0])) for cells in table if "`" in cells[0]}
    assert listed == {group.instead: set(group.fields) for group in GROUPS}


@pytest.mark.parametrize("kind", [protocol.AbortRequest, protocol.PauseRequest, protocol.UpdateRequest])
def test_every_field_of_a_command_is_documented(kind: Any) -> None:
    section = sections(SERVING_PAGE)["Commands"]
    for field in kind.__struct_fields__:
        assert f'"{field}"' in section, f"docs/serving.md, section '## Commands': {field}"


def test_the_page_lists_exactly_the_metrics_of_the_server() -> None:
    uses = tuple(wire.ComponentUse(name, 1, 0, 0) for name in ("full", "window"))
    stats = wire.Stats(components=uses)
    ready = SimpleNamespace(context=1, page_size=1, weights_bytes=1)
    engine: Any = SimpleNamespace(stats=stats, ready=ready, trouble=None, restarts=0, weights_version="x")
    existing = {
        family.name.removeprefix("transom:") + ("_total" if family.type == "counter" else "")
        for family in text_string_to_metric_families(Metrics("m", engine).text().decode())
        if not family.name.endswith("_created")
    }
    listed = {code for cells in rows(sections(SERVING_PAGE)["Metrics"]) for code in CODE.findall(cells[0])}
    assert listed == existing, "docs/serving.md, section '## Metrics'"


def test_the_page_lists_exactly_the_environment_variables_that_are_read() -> None:
    reading = re.compile(r'(?:environ(?:\.get\(|\[)|getenv\()"(\w+)"')
    sources = (*(ROOT / "src").rglob("*.py"), *(ROOT / "native").glob("*.cpp"))
    existing = {name for path in sources for name in reading.findall(text_of(path))}
    of_flags = {settings.variable(action) for action in COMMANDS["transom serve"]}
    listed = {code for cells in rows(SECTIONS["Environment"]) for code in CODE.findall(cells[0])}
    assert listed & of_flags, "docs/commands.md, section '## Environment': an example of a flag's variable"
    assert listed - of_flags == existing | NOT_OUR_VARIABLES, "docs/commands.md, section '## Environment'"
    assert {name for name in existing if name.startswith(settings.PREFIX)} == settings.OTHER_VARIABLES

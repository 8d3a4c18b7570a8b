"""docs/ names every command, flag, endpoint, field, metric and variable there is, and none that is not."""

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
from transom.config import ServerConfig
from transom.server import protocol
from transom.server.app import Service
from transom.server.metrics import Metrics

COMMANDS_PAGE = DOCS / "commands.md"
SERVING_PAGE = DOCS / "serving.md"
NOT_OURS = {"--kl-divergence", "--strict", "--llama-server"}
"""Flags of other programs, and of tools, that pages name."""
NOT_OUR_VARIABLES = {"NO_COLOR"}
"""Read by a library."""


def parsers(name: str, parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """It and those of its commands, theirs too, each with the words that lead to it."""
    yield name, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, below in action.choices.items():
                yield from parsers(f"{name} {word}", below)


def arguments(parser: argparse.ArgumentParser) -> list[argparse.Action] | None:
    """What a command takes; None if all it takes is another command."""
    own = [action for action in parser._actions if not isinstance(action, NOT_ARGUMENTS)]
    has_commands = any(isinstance(action, argparse._SubParsersAction) for action in parser._actions)
    return own if own or not has_commands else None


NOT_ARGUMENTS = (argparse._HelpAction, argparse._VersionAction, argparse._SubParsersAction)
PARSERS = dict(parsers("transom", cli.parsers()[0]))
COMMANDS = {name: own for name, parser in PARSERS.items() if (own := arguments(parser)) is not None}
SECTIONS = sections(COMMANDS_PAGE)
SHARED = {anchor(title): title for title in SECTIONS if not title.startswith("transom ")}


def documented(command: str) -> dict[str, str]:
    """What the page says of each argument of a command: its section, and those it refers to as shared."""
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
    """Rows to begin with: what help says."""
    lines = []
    for action in actions:
        name = name_of(action)
        value = f" {action.metavar}" if action.option_strings and action.metavar else ""
        words = [str(action.help), *(f"`{choice}`" for choice in action.choices or ())]
        lines.append(f"| `{name}{value}` | {', '.join(words) % vars(action)} |")
    return "\n".join(("| | |", "|---|---|", *lines))


def name_of(action: argparse.Action) -> str:
    """As the page has it: a flag in full, else what help calls it, else its only word."""
    if action.option_strings:
        return action.option_strings[-1]
    return str(action.metavar or "".join(action.choices or ()))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_argument_of_a_command_is_in_its_section_and_no_other(command: str) -> None:
    said, there = documented(command), {name_of(action): action for action in COMMANDS[command]}
    section = f"docs/commands.md, section '## {command}'"
    missing = [there[name] for name in there.keys() - said.keys()]
    assert not missing, f"{section}: rows are missing:\n\n{suggested(missing)}"
    assert not said.keys() - there.keys(), f"{section}: there is no {sorted(said.keys() - there.keys())}"


def test_no_section_is_of_a_command_that_there_is_not() -> None:
    told = {title for title in SECTIONS if title.startswith("transom ")}
    assert not told - PARSERS.keys(), "docs/commands.md has sections of commands that there are not"


@pytest.mark.parametrize("command", COMMANDS)
def test_the_page_says_the_defaults_and_choices_that_there_are(command: str) -> None:
    said = documented(command)
    for action in COMMANDS[command]:
        row = said.get(name_of(action), "").replace(",", "")
        section = f"docs/commands.md, section '## {command}', {name_of(action)}"
        for choice in action.choices or ():
            assert f"`{choice}`" in row, f"{section}: does not say {choice}"
        if action.default not in (None, False, [], ""):
            assert str(action.default) in row, f"{section}: the default is {action.default}"


def test_no_page_names_a_flag_that_there_is_not() -> None:
    known = {flag for actions in COMMANDS.values() for action in actions for flag in action.option_strings}
    known |= {"--help", "--version"} | NOT_OURS
    for page in PAGES:
        if page.name == "CHANGELOG.md":
            continue
        lines = [line for line in text_of(page).splitlines() if not is_others(line)]
        found = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", "\n".join(lines)))
        assert not found - known, f"{page.relative_to(ROOT)} names flags that there are not"


def is_others(line: str) -> bool:
    """A command line of another program."""
    return line.startswith(("sudo ", "git ", "pip ", "python ", "podman "))


def examples() -> Iterator[tuple[str, str]]:
    """Command lines of ours in blocks of pages, and in the help of every command."""
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
def test_every_example_is_understood(where: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split(re.split(r"\s[|&]", line)[0], comments=True)[1:]
    if words[0] == "COMMAND":
        return
    try:
        cli.parsers()[0].parse_args(words)
    except SystemExit as ended:
        assert not ended.code, f"{where}: {line}: {capsys.readouterr().err}"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example_and_a_word_on_every_argument(command: str) -> None:
    assert any(where == f"{command} --help" and line.startswith(command) for where, line in LINES)
    for action in COMMANDS[command]:
        assert action.help and action.help is not argparse.SUPPRESS, (command, name_of(action))


def test_the_table_of_commands_leads_to_every_section() -> None:
    listed = {code for cells in rows(SECTIONS["Commands"]) for code in CODE.findall(cells[0])}
    assert {" ".join(name.split()[:2]) for name in COMMANDS} == listed, "docs/commands.md, the first table"
    targets = links(COMMANDS_PAGE)
    assert all(f"#{anchor(name)}" in targets for name in listed)


# ---------------------------------------------------------------- what is served

NOBODY: Any = None


def service() -> Service:
    return Service(NOBODY, NOBODY, NOBODY, ServerConfig())


def test_every_endpoint_is_documented_and_no_other() -> None:
    there = {
        f"{method} {route.path.replace(':path', '')}"
        for route in service().routes()
        for method in (route.methods or set()) - {"HEAD"}
    }
    said = {
        code
        for cells in rows(sections(SERVING_PAGE)["Endpoints"])
        for code in CODE.findall(cells[0])
        if code.startswith(("GET ", "POST "))
    }
    assert said == there, "docs/serving.md, section '## Endpoints'"


@pytest.mark.parametrize("kind", [protocol.CompletionRequest, protocol.ChatRequest])
def test_every_field_of_a_request_is_documented(kind: Any) -> None:
    said = set(CODE.findall(sections(SERVING_PAGE)["Fields of a request"]))
    missing = set(kind.__struct_fields__) - said
    assert not missing, f"docs/serving.md, section '## Fields of a request': {sorted(missing)}"


@pytest.mark.parametrize("kind", [protocol.AbortRequest, protocol.PauseRequest, protocol.UpdateRequest])
def test_every_field_of_a_command_is_documented(kind: Any) -> None:
    section = sections(SERVING_PAGE)["Commands"]
    for field in kind.__struct_fields__:
        assert f'"{field}"' in section, f"docs/serving.md, section '## Commands': {field}"


def test_every_metric_is_documented_and_no_other() -> None:
    uses = tuple(wire.ComponentUse(name, 1, 0, 0) for name in ("full", "window"))
    stats = wire.Stats(components=uses)
    ready = SimpleNamespace(context=1, page_size=1, weights_bytes=1)
    engine: Any = SimpleNamespace(stats=stats, ready=ready, trouble=None, restarts=0)
    there = {
        family.name.removeprefix("transom:") + ("_total" if family.type == "counter" else "")
        for family in text_string_to_metric_families(Metrics("m", engine).text().decode())
        if not family.name.endswith("_created")
    }
    said = {code for cells in rows(sections(SERVING_PAGE)["Metrics"]) for code in CODE.findall(cells[0])}
    assert said == there, "docs/serving.md, section '## Metrics'"


def test_every_variable_of_the_environment_is_documented_and_no_other() -> None:
    asked = re.compile(r'(?:environ(?:\.get\(|\[)|getenv\()"(\w+)"')
    sources = (*(ROOT / "src").rglob("*.py"), *(ROOT / "native").glob("*.cpp"))
    there = {name for path in sources for name in asked.findall(text_of(path))}
    said = {code for cells in rows(SECTIONS["Environment"]) for code in CODE.findall(cells[0])}
    assert said == there | NOT_OUR_VARIABLES, "docs/commands.md, section '## Environment'"

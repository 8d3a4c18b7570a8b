"""ARCHITECTURE.md and CONTRIBUTING.md agree with the code: layers, files, dependencies, make targets."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.docs.pages import CODE, PAGES, ROOT, prose, rows, sections, text_of
from tests.test_layers import LAYERS

PAGE = ROOT / "ARCHITECTURE.md"
PLACES = (ROOT, ROOT / "src" / "transom")


def test_the_page_lists_the_layers_of_the_import_test_in_its_order() -> None:
    listed = [
        name.removesuffix(".py").rstrip("/")
        for cells in rows(sections(PAGE)["Layers"])
        for name in CODE.findall(cells[0])
        if name != "native/"
    ]
    ranks = {name: rank for rank, names in enumerate(LAYERS) for name in names}
    assert set(listed) == set(ranks)
    assert [ranks[name] for name in listed] == sorted(ranks.values())


def test_every_file_that_the_page_names_exists() -> None:
    named = {
        word.rstrip("/")
        for code in CODE.findall(prose(PAGE))
        for word in re.findall(r"(?<![\w./-])[a-z_][\w/]*(?:/|\.py|\.md)(?![\w*])", code)
    }
    assert len(named) > 20
    missing = [name for name in sorted(named) if not any((place / name).exists() for place in PLACES)]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_function_that_a_page_names_with_its_file_is_defined_there(page: Path) -> None:
    for file, name in re.findall(r"`([\w/]+\.py):([\w.]+)`", prose(page)):
        path = next((place / file for place in PLACES if (place / file).exists()), None)
        assert path is not None, f"{file}: no such file"
        assert name in set(_defined(ast.parse(text_of(path)).body)), f"{file} defines no {name}"


def _defined(body: list[ast.stmt], prefix: str = "") -> Iterator[str]:
    """Dotted names of the classes, functions, methods and variables in the body of a module or class."""
    for statement in body:
        match statement:
            case ast.ClassDef(name=name, body=inner):
                yield prefix + name
                yield from _defined(inner, f"{prefix}{name}.")
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield prefix + name
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                yield prefix + name
            case _:
                pass


def test_the_page_names_every_dependency() -> None:
    section = sections(PAGE)["Dependencies"].lower()
    project = tomllib.loads(text_of(ROOT / "pyproject.toml"))
    needed = project["project"]["dependencies"] + project["build-system"]["requires"]
    names = [re.split(r"[<>=]", requirement)[0] for requirement in needed]
    assert [name for name in names if name not in section] == []


def test_contributing_lists_exactly_the_targets_of_make() -> None:
    targets = set(re.findall(r"^([a-z-]+):.*##", text_of(ROOT / "Makefile"), re.MULTILINE)) - {"help"}
    page = ROOT / "CONTRIBUTING.md"
    listed = {code for cells in rows(sections(page)["Contributing"]) for code in CODE.findall(cells[0])}
    assert listed == {f"make {target}" for target in targets}

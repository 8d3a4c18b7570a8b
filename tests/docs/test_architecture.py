"""ARCHITECTURE.md and CONTRIBUTING.md name what there is."""

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


def test_the_layers_are_those_that_imports_obey_in_that_order() -> None:
    told = [
        name.removesuffix(".py").rstrip("/")
        for cells in rows(sections(PAGE)["Layers"])
        for name in CODE.findall(cells[0])
        if name != "native/"
    ]
    ranks = {name: rank for rank, names in enumerate(LAYERS) for name in names}
    assert set(told) == set(ranks)
    assert [ranks[name] for name in told] == sorted(ranks.values())


def test_every_file_that_is_named_is_there() -> None:
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


def test_every_dependency_is_named() -> None:
    section = sections(PAGE)["Dependencies"].lower()
    project = tomllib.loads(text_of(ROOT / "pyproject.toml"))
    needed = project["project"]["dependencies"] + project["build-system"]["requires"]
    names = [re.split(r"[<>=]", requirement)[0] for requirement in needed]
    assert [name for name in names if name not in section] == []


def test_every_target_of_make_is_in_contributing_and_no_other() -> None:
    there = set(re.findall(r"^([a-z-]+):.*##", text_of(ROOT / "Makefile"), re.MULTILINE)) - {"help"}
    page = ROOT / "CONTRIBUTING.md"
    told = {code for cells in rows(sections(page)["Contributing"]) for code in CODE.findall(cells[0])}
    assert told == {f"make {target}" for target in there}

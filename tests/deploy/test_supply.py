"""What is installed beside Transom: lists of hashes, the container's file, the notice."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCKS = {name: (ROOT / "deploy" / f"{name}.lock").read_text() for name in ("runtime", "build")}
CONTAINERFILE = (ROOT / "deploy" / "Containerfile").read_text()


def locked(name: str) -> dict[str, set[str]]:
    """Versions by package. A package has several if platforms need different ones."""
    found: dict[str, set[str]] = {}
    for package, version in re.findall(r"^([\w.-]+)==([^\s;]+)", LOCKS[name], re.MULTILINE):
        found.setdefault(canonicalize_name(package), set()).add(version)
    return found


def required() -> dict[str, list[str]]:
    """The requirements that each list has to meet."""
    project = PROJECT["project"]
    return {
        "runtime": [*project["dependencies"], *project["optional-dependencies"]["gemma"]],
        "build": PROJECT["build-system"]["requires"],
    }


@pytest.mark.parametrize("name", LOCKS)
def test_a_list_has_a_version_that_fits_for_each_requirement(name: str) -> None:
    versions = locked(name)
    for requirement in map(Requirement, required()[name]):
        found = versions.get(canonicalize_name(requirement.name), set())
        advice = f"deploy/{name}.lock: {requirement}: run `make lock`"
        assert found and all(requirement.specifier.contains(one) for one in found), advice


@pytest.mark.parametrize("name", LOCKS)
def test_every_package_of_a_list_has_hashes(name: str) -> None:
    for entry in re.split(r"^(?=[\w.-]+==)", LOCKS[name], flags=re.MULTILINE)[1:]:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), entry.split()[0]


@pytest.mark.parametrize("name", LOCKS)
def test_a_list_names_no_index_no_url_and_no_file(name: str) -> None:
    assert not re.search(r"://|--(extra-)?index-url|--find-links|file:| @ ", LOCKS[name])


def test_the_notice_names_the_license_of_every_package() -> None:
    notice = (ROOT / "NOTICE").read_text()
    for package in locked("runtime"):
        if not package.startswith("gemma3-"):
            assert re.search(rf"^{re.escape(package)} +\S", notice, re.MULTILINE), f"NOTICE: {package}"


def test_every_image_that_the_container_is_built_from_has_a_full_version() -> None:
    images = re.findall(r"^(?:ARG BASE=|FROM )(\S+)", CONTAINERFILE, re.MULTILINE)
    assert len(images) == 3
    for image in images:
        assert image == "${BASE}" or re.search(r":\d+\.\d+\.\d+-|@sha256:", image), image


def test_everything_that_the_container_copies_is_sent_to_its_builder() -> None:
    kept = [line[1:] for line in (ROOT / ".containerignore").read_text().splitlines() if line.startswith("!")]
    assert set(re.findall(r"deploy/\S+|LICENSE|NOTICE", CONTAINERFILE)) - {"deploy/Containerfile"} <= {
        "deploy/runtime.lock",
        "deploy/build.lock",
        *kept,
    }
    for needed in ("src", "native", "CMakeLists.txt", "pyproject.toml", *PROJECT["project"]["license-files"]):
        assert needed in kept


def test_the_container_installs_packages_with_hashes_only() -> None:
    commands = re.findall(r"pip (?:install|wheel)[^&]*?(?=&&|\n(?! ))", CONTAINERFILE)
    assert len(commands) == 4
    for command in commands:
        assert "--require-hashes" in command or "--no-deps" in command, command

"""The release artifacts, a wheel and an sdist of a clean checkout, work in empty environments.

These tests take minutes: native code is compiled twice, and dependencies come from the package index.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.docs.pages import ROOT
from tests.e2e.test_readme import DEVELOPER_VARIABLES
from tests.over_http import complete
from tests.serving import started
from tests.tiny import write_tiny_gguf

from transom import __version__

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no git repository to export"),
]

PIP = ("-m", "pip", "--disable-pip-version-check", "-q")


@dataclass(frozen=True)
class Venv:
    """A virtual environment of its own. Its programs see nothing of the environment that runs the tests."""

    folder: Path

    def run(self, program: str, *words: str) -> str:
        """Runs a program of the environment and returns its stdout. The exit status must be 0."""
        return run([str(self.folder / "bin" / program), *words], self.folder)


def run(words: list[str], folder: Path) -> str:
    done = subprocess.run(
        words, cwd=folder, env=clean_environment(folder), capture_output=True, text=True, timeout=1500
    )
    assert done.returncode == 0, f"{words}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def clean_environment(folder: Path) -> Mapping[str, str]:
    """Environment variables without the ones of this test run, and with a model cache of their own."""
    kept = {name: value for name, value in os.environ.items() if name not in DEVELOPER_VARIABLES}
    return {**kept, "TRANSOM_CACHE": str(folder / "cache")}


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("wheels")


@pytest.fixture(scope="module")
def checkout(work: Path) -> Path:
    """The files of the last commit, without build outputs, caches and untracked files."""
    folder = work / "checkout"
    folder.mkdir()
    archive = work / "checkout.tar"
    run(["git", "-C", str(ROOT), "archive", "-o", str(archive), "HEAD"], work)
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="module")
def wheel(work: Path, checkout: Path) -> Path:
    return built(str(checkout), work / "from-checkout")


@pytest.fixture(scope="module")
def sdist(work: Path, checkout: Path) -> Path:
    """The sdist, made by the build backend in the version that pyproject.toml requires."""
    venv = fresh(work / "backend")
    project = tomllib.loads((checkout / "pyproject.toml").read_text())
    venv.run("python", *PIP, "install", *project["build-system"]["requires"])
    words = ["-c", f"from scikit_build_core.build import build_sdist; build_sdist({str(work)!r})"]
    run([str(venv.folder / "bin" / "python"), *words], checkout)
    (path,) = work.glob("transom-*.tar.gz")
    return path


@pytest.fixture(scope="module")
def installed(work: Path, wheel: Path) -> Venv:
    """An environment with the wheel, its declared dependencies and pip."""
    venv = fresh(work / "installed")
    venv.run("python", *PIP, "install", str(wheel))
    return venv


@pytest.fixture(scope="module")
def tiny(work: Path) -> Path:
    return write_tiny_gguf(work / "tiny.gguf")


def fresh(folder: Path) -> Venv:
    run([sys.executable, "-m", "venv", str(folder)], folder.parent)
    return Venv(folder)


def built(source: str, folder: Path) -> Path:
    run([sys.executable, *PIP, "wheel", "--no-deps", "--wheel-dir", str(folder), source], folder.parent)
    (path,) = folder.glob("*.whl")
    return path


def members(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_wheel_holds_only_the_package_with_its_types_and_kernels(wheel: Path) -> None:
    names = members(wheel)
    assert "transom/py.typed" in names
    assert [name for name in names if name.startswith("transom/_native") and name.endswith(".so")]
    assert {name.split("/")[0] for name in names} == {"transom", f"transom-{__version__}.dist-info"}
    sources = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("*.py")}
    assert sources <= names


def test_the_declared_dependencies_of_the_wheel_suffice(installed: Venv, tiny: Path) -> None:
    assert installed.run("python", "-m", "pip", "check").strip() == "No broken requirements found."
    assert installed.run("transom", "--version") == f"transom {__version__}\n"
    assert "smollm2-135m-instruct" in installed.run("transom", "models")
    assert "wrong" not in installed.run("transom", "doctor", str(tiny), "--port", "0")
    words = ("generate", "the cat", "--model", str(tiny), "--max-tokens", "8", "--ignore-eos")
    assert installed.run("transom", *words).strip()
    assert "story" not in installed.run("transom", "--help")
    where = installed.run("python", "-c", "import transom; print(transom.LLM, transom.__file__)")
    assert str(installed.folder) in where


def test_the_wheel_of_the_lab_adds_its_commands_to_transom(work: Path, checkout: Path, wheel: Path) -> None:
    lab = built(str(checkout / "lab"), work / "lab-wheel")
    assert {name.split("/")[0] for name in members(lab)} == {
        "transom_lab",
        f"transom_lab-{__version__}.dist-info",
    }
    both = fresh(work / "both")
    both.run("python", *PIP, "install", str(wheel), str(lab))
    assert "repair 1/5" in both.run("transom", "story", "repair", "--frame", "1")
    assert "kernels" in both.run("transom", "bench", "--help")


def test_the_wheel_serves(installed: Venv, tiny: Path) -> None:
    words = [str(installed.folder / "bin" / "transom"), "serve", str(tiny), "--port", "0"]
    with (
        started(words, installed.folder, clean_environment(installed.folder)) as server,
        server.client() as http,
    ):
        assert complete(http, "the cat", max_tokens=4)["usage"]["completion_tokens"] <= 4
        assert "transom:num_steps_total" in http.get("/metrics").text


def test_the_sdist_builds_the_same_wheel(work: Path, sdist: Path, wheel: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert {"pyproject.toml", "CMakeLists.txt", "README.md", "LICENSE", "native/bindings.cpp"} <= names
    again = built(str(sdist), work / "from-sdist")
    assert again.name == wheel.name and members(again) == members(wheel)
    shutil.rmtree(again.parent)

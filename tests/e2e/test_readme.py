"""The commands of README work in a fresh terminal, pasted unchanged."""

import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.docs.pages import blocks
from tests.over_http import complete, is_alive, until
from tests.preflight import preflight
from tests.serving import descendants, started, transom_command

from transom.weights.catalogue import GEMMA_NOTICE

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
DEVELOPER_VARIABLES = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "MAKEFLAGS", "MFLAGS", "MAKELEVEL")
"""Variables that a test run may have set and a fresh terminal has not."""
LATER = 1 << 32
"""A modification time later than that of any file in the checkout: make then takes a stamp as up to date."""


def commands() -> list[str]:
    """The command lines of README's only code block."""
    (block,) = blocks(README)
    return block.text.splitlines()


def test_readme_is_one_screen() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 50


def test_the_first_command_installs_the_packages_that_preflight_checks(tmp_path: Path) -> None:
    bare = preflight(tmp_path, python="python3")
    assert commands()[0].split("#")[0].strip() == bare.stderr.splitlines()[-1].strip()


def test_readme_states_the_terms_of_the_model() -> None:
    assert GEMMA_NOTICE in " ".join(README.read_text(encoding="utf-8").split())


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder that is deleted after the test: pytest would keep it, and it grows to almost a gigabyte."""
    yield tmp_path
    shutil.rmtree(tmp_path)


needs_repository = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no git repository to clone")


def second_command_serves(folder: Path, environment: dict[str, str]) -> str:
    """Runs the second command, requests a completion, and stops the server as Ctrl-C does.

    Returns the output of the command before the server's startup screen.
    """
    assert len(commands()) == 2
    line = commands()[1].replace("git clone URL ", f"git clone {ROOT} ")
    with started(["bash", "-c", line], folder, environment) as server, server.client() as http:
        assert http.get("/health").status_code == 200
        answer = complete(http, "1, 2, 3, 4,", max_tokens=6, temperature=0)
        assert answer["choices"][0]["text"].startswith(" 5, 6")
        pids = descendants(server.process.pid)
        assert server.engine_pid in pids
        os.killpg(server.process.pid, signal.SIGINT)
        server.process.wait()
        until(lambda: not any(map(is_alive, pids)))
        return server.before


@pytest.fixture
def fresh_environment() -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if name not in DEVELOPER_VARIABLES}
    return environment | {"ARGS": "--port 0"}


@pytest.mark.model
@needs_repository
def test_the_second_command_serves_when_everything_is_installed(
    folder: Path, fresh_environment: dict[str, str]
) -> None:
    """The slow test below also builds. Here a script that runs this environment's transom skips the build."""
    installed = folder / "installed"
    (installed / "bin").mkdir(parents=True)
    transom = installed / "bin" / "transom"
    transom.write_text(f'#!/bin/sh\nexec {shlex.join(transom_command())} "$@"\n')
    transom.chmod(0o755)
    for stamp in ("base.stamp", "serve.stamp"):
        (installed / stamp).touch()
        os.utime(installed / stamp, (LATER, LATER))
    second_command_serves(folder, fresh_environment | {"MAKEFLAGS": f" -- VENV={installed}"})


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.timeout(900)
@needs_repository
def test_the_second_command_builds_and_serves(folder: Path, fresh_environment: dict[str, str]) -> None:
    """The whole way: clone, virtual environment, compiler, model file, server."""
    environment = fresh_environment | {"TRANSOM_CACHE": str(folder / "cache")}
    before = second_command_serves(folder, environment)
    assert GEMMA_NOTICE in " ".join(before.split())
    checkout = folder / "transom"
    assert sorted(path.name for path in checkout.parent.iterdir()) == ["cache", "transom"]
    again = ["make", "-q", ".venv/serve.stamp"]
    assert subprocess.run(again, cwd=checkout, env=environment).returncode == 0, (
        "a second make would install again"
    )
    dirty = subprocess.run(["git", "status", "--porcelain"], cwd=checkout, capture_output=True, text=True)
    assert dirty.stdout == ""

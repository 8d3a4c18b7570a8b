"""README, as a stranger reads it: its blocks are run as they stand."""

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
NOT_A_STRANGERS = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "MAKEFLAGS", "MFLAGS", "MAKELEVEL")
"""What the environment of a test run may have and a fresh terminal has not."""
LATER = 1 << 32
"""A time later than that of any file of the checkout, for stamps that say that nothing is to be installed."""


def commands() -> list[str]:
    """The lines a person types."""
    (block,) = blocks(README)
    return block.text.splitlines()


def test_readme_is_one_screen() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 50


def test_the_first_command_installs_what_preflight_looks_for(tmp_path: Path) -> None:
    bare = preflight(tmp_path, python="python3")
    assert commands()[0].split("#")[0].strip() == bare.stderr.splitlines()[-1].strip()


def test_readme_says_under_which_terms_the_model_comes() -> None:
    assert GEMMA_NOTICE in " ".join(README.read_text(encoding="utf-8").split())


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Emptied in the end: what pytest would keep is most of a gigabyte."""
    yield tmp_path
    shutil.rmtree(tmp_path)


needs_repository = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="there is no repository to clone")


def second_command_serves(folder: Path, environment: dict[str, str]) -> str:
    """Runs the second command, asks the server for a text, and ends it as Ctrl-C does.

    Returns what the command printed before the server's screen.
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
    environment = {name: value for name, value in os.environ.items() if name not in NOT_A_STRANGERS}
    return environment | {"ARGS": "--port 0"}


@pytest.mark.model
@needs_repository
def test_the_second_command_serves_where_all_is_installed(
    folder: Path, fresh_environment: dict[str, str]
) -> None:
    """The slow test below also builds; here the virtual environment of this run stands in for the new one."""
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
    """All of it: clone, environment, compiler, model file, server."""
    environment = fresh_environment | {"TRANSOM_CACHE": str(folder / "cache")}
    before = second_command_serves(folder, environment)
    assert GEMMA_NOTICE in " ".join(before.split())
    checkout = folder / "transom"
    assert sorted(path.name for path in checkout.parent.iterdir()) == ["cache", "transom"]
    again = ["make", "-q", ".venv/serve.stamp"]
    assert subprocess.run(again, cwd=checkout, env=environment).returncode == 0, "nothing is left to install"
    dirty = subprocess.run(["git", "status", "--porcelain"], cwd=checkout, capture_output=True, text=True)
    assert dirty.stdout == ""

"""tools/preflight.sh: everything that is missing, in one line to paste, before anything is built."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.preflight import SCRIPT, SHELL, preflight

from transom.cli.model import GEMMA_HELP
from transom.weights.catalogue import GEMMA_NOTICE

PROGRAMS = ("git", "make", "g++", "awk", "df")
INSTALL = "  sudo apt-get install -y "


def folded(text: str) -> str:
    return " ".join(text.split())


def test_nothing_is_said_where_all_is_there(tmp_path: Path) -> None:
    done = preflight(tmp_path, *PROGRAMS, python=sys.executable)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("missing", ["git", "make", "g++"])
def test_one_missing_program_is_named_and_no_other(tmp_path: Path, missing: str) -> None:
    there = [name for name in PROGRAMS if name != missing]
    done = preflight(tmp_path, *there, python=sys.executable)
    assert done.returncode == 1
    assert done.stderr == f"transom: missing: {missing}. Install with:\n{INSTALL}{missing}\n"


def test_on_a_bare_machine_everything_is_in_one_line(tmp_path: Path) -> None:
    done = preflight(tmp_path, python="python3")
    assert done.returncode == 1
    assert done.stderr.splitlines()[1] == f"{INSTALL}git make g++ python3-dev python3-venv"


@pytest.mark.parametrize(("asked", "package"), [("Python.h", "python3-dev"), ("ensurepip", "python3-venv")])
def test_a_python_without_its_parts_is_completed(tmp_path: Path, asked: str, package: str) -> None:
    script = f'case "$*" in *{asked}*) exit 1 ;; esac\nexec {sys.executable} "$@"'
    done = preflight(tmp_path, *PROGRAMS, python="python3", fakes={"python3": script})
    assert done.returncode == 1
    assert done.stderr.splitlines()[1:] == [INSTALL + package]


def test_an_old_python_is_told_by_its_version(tmp_path: Path) -> None:
    old = "import sys; sys.version_info = (3, 10, 2); exec(sys.stdin.read())"
    script = f'[ "$1" = - ] && exec {sys.executable} -c \'{old}\'\nexec {sys.executable} "$@"'
    done = preflight(tmp_path, *PROGRAMS, python="python3", fakes={"python3": script})
    assert done.returncode == 1
    assert "3.10.2; 3.11 or newer is needed" in done.stderr
    assert "make PYTHON=" in done.stderr


def test_a_full_disk_is_told_with_both_numbers(tmp_path: Path) -> None:
    table = "echo Filesystem 1024-blocks Used Available; echo disk 9000000 8000000 204800"
    there = [name for name in PROGRAMS if name != "df"]
    done = preflight(tmp_path, *there, python=sys.executable, fakes={"df": table})
    assert done.returncode == 1
    assert "only 200 MiB" in done.stderr and "1.5 GB" in done.stderr


def test_the_terms_are_the_same_words_wherever_they_are_said() -> None:
    notice = subprocess.run([SHELL, str(SCRIPT), "notice"], capture_output=True, text=True, check=True)
    assert folded(notice.stdout).endswith(GEMMA_NOTICE)
    assert folded(GEMMA_HELP) == GEMMA_NOTICE

"""tools/preflight.sh names every missing program in one line to paste, before the build starts."""

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


def test_a_complete_machine_passes_silently(tmp_path: Path) -> None:
    done = preflight(tmp_path, *PROGRAMS, python=sys.executable)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("missing", ["git", "make", "g++"])
def test_exactly_the_missing_program_is_named(tmp_path: Path, missing: str) -> None:
    present = [name for name in PROGRAMS if name != missing]
    done = preflight(tmp_path, *present, python=sys.executable)
    assert done.returncode == 1
    assert done.stderr == f"transom: missing: {missing}. Install with:\n{INSTALL}{missing}\n"


def test_on_a_bare_machine_one_line_installs_everything(tmp_path: Path) -> None:
    done = preflight(tmp_path, python="python3")
    assert done.returncode == 1
    assert done.stderr.splitlines()[1] == f"{INSTALL}git make g++ python3-dev python3-venv"


@pytest.mark.parametrize(("probe", "package"), [("Python.h", "python3-dev"), ("ensurepip", "python3-venv")])
def test_a_python_without_headers_or_venv_is_completed(tmp_path: Path, probe: str, package: str) -> None:
    script = f'case "$*" in *{probe}*) exit 1 ;; esac\nexec {sys.executable} "$@"'
    done = preflight(tmp_path, *PROGRAMS, python="python3", fakes={"python3": script})
    assert done.returncode == 1
    assert done.stderr.splitlines()[1:] == [INSTALL + package]


def test_an_old_python_is_refused_with_its_version(tmp_path: Path) -> None:
    old = "import sys; sys.version_info = (3, 10, 2); exec(sys.stdin.read())"
    script = f'[ "$1" = - ] && exec {sys.executable} -c \'{old}\'\nexec {sys.executable} "$@"'
    done = preflight(tmp_path, *PROGRAMS, python="python3", fakes={"python3": script})
    assert done.returncode == 1
    assert "3.10.2; 3.11 or newer is needed" in done.stderr
    assert "make PYTHON=" in done.stderr


def test_a_full_disk_is_reported_with_the_free_and_the_needed_space(tmp_path: Path) -> None:
    table = "echo Filesystem 1024-blocks Used Available; echo disk 9000000 8000000 204800"
    present = [name for name in PROGRAMS if name != "df"]
    done = preflight(tmp_path, *present, python=sys.executable, fakes={"df": table})
    assert done.returncode == 1
    assert "only 200 MiB" in done.stderr and "1.5 GB" in done.stderr


def test_the_notice_and_the_help_have_the_same_wording_of_the_terms() -> None:
    notice = subprocess.run([SHELL, str(SCRIPT), "notice"], capture_output=True, text=True, check=True)
    assert folded(notice.stdout).endswith(GEMMA_NOTICE)
    assert folded(GEMMA_HELP) == GEMMA_NOTICE

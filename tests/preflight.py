"""Runs tools/preflight.sh with a PATH that the test composes."""

import os
import shutil
import subprocess
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "tools" / "preflight.sh"
SHELL = "/bin/sh"


def preflight(
    folder: Path, *programs: str, python: str, fakes: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """The result of `preflight.sh check`. The PATH holds only these programs and the fakes.

    `programs` are linked from this machine; `fakes` maps the name of a program to the body of a shell script.
    """
    folder = folder / "bin"
    folder.mkdir()
    for name in programs:
        found = shutil.which(name)
        assert found is not None, name
        (folder / name).symlink_to(found)
    for name, script in (fakes or {}).items():
        (folder / name).write_text(f"#!{SHELL}\n{script}\n")
        (folder / name).chmod(0o755)
    return subprocess.run(
        [SHELL, str(SCRIPT), "check", python],
        env={**os.environ, "PATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
    )

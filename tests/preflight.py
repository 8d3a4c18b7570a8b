"""tools/preflight.sh in a world of the test's making."""

import os
import shutil
import subprocess
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "tools" / "preflight.sh"
SHELL = "/bin/sh"


def preflight(
    folder: Path, *there: str, python: str, fakes: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Its check, where only the programs named are there, and the fakes, by name and script."""
    folder = folder / "bin"
    folder.mkdir()
    for name in there:
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

"""Writes deploy/runtime.lock and deploy/build.lock: versions and hashes for `pip --require-hashes`.

The runtime's list has the package's dependencies with the default model; the other list has the tools that
build the wheel. Both hold for every platform that pyproject.toml names, and neither names a package index.
"""

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUILD_TOOLS = ("cmake", "ninja")
"""Programs that scikit-build-core asks for if the machine has none."""


def compile_lock(source: str, name: str, *flags: str, text: str | None = None) -> None:
    words = f"uv pip compile {source} --generate-hashes --universal --python-version 3.11 --no-header --quiet"
    target = ROOT / "deploy" / name
    # Versions that still fit stay: without --upgrade, an unrelated change would move all of them.
    command = [*words.split(), *flags, "--output-file", str(target)]
    subprocess.run(command, cwd=ROOT, input=text, text=True, check=True)
    target.write_text(f"# Written by `make lock`.\n{target.read_text()}")


def main(flags: list[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    compile_lock("pyproject.toml", "runtime.lock", "--extra", "gemma", *flags)
    tools = "\n".join((*project["build-system"]["requires"], *BUILD_TOOLS))
    compile_lock("-", "build.lock", "--no-annotate", *flags, text=tools)


if __name__ == "__main__":
    main(sys.argv[1:])

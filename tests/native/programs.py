"""Builds and runs the kernels without Python: the program `digests.cpp`, with the flags of a test."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHARED = ("-std=c++20", "-ffp-contract=off", "-pthread")
PORTABLE = ("-DTRANSOM_ISA=portable",)


def build(compiler: str, flags: Sequence[str], program: Path, native: Path = ROOT / "native") -> Path:
    """Compile the sources below `native`. CalledProcessError."""
    sources = sorted(native.glob("kernels/*.cpp"))
    sources += [native / name for name in ("launch.cpp", "pool.cpp", "sampling.cpp")]
    sources.append(native.parent / "tests/native/digests.cpp")
    subprocess.run([compiler, *SHARED, *flags, *map(str, sources), "-o", str(program)], check=True)
    return program


def digests(*command: str) -> list[str]:
    """Run the program: one line per kernel. CalledProcessError."""
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout.splitlines()

"""The kernels as a program of their own, without Python: `digests.cpp`, built as a test wants it."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHARED = ("-std=c++20", "-ffp-contract=off", "-pthread")
PORTABLE = ("-DTRANSOM_ISA=portable",)


def build(compiler: str, flags: Sequence[str], program: Path, native: Path = ROOT / "native") -> Path:
    """From the sources below `native`. Raises CalledProcessError."""
    sources = sorted(native.glob("kernels/*.cpp"))
    sources += [native / name for name in ("launch.cpp", "pool.cpp", "sampling.cpp")]
    sources.append(native.parent / "tests/native/digests.cpp")
    subprocess.run([compiler, *SHARED, *flags, *map(str, sources), "-o", str(program)], check=True)
    return program


def digests(*command: str) -> list[str]:
    """A line for each kernel. Raises CalledProcessError."""
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout.splitlines()

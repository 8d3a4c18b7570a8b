"""64-bit ARM computes the bits of x86: the kernels, cross-built, run in an emulator, and digests compared.

No Python runs there: `digests.cpp` calls the kernels on inputs that it draws from seeds.
"""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CROSS, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
INSTALL = "apt-get install g++ g++-aarch64-linux-gnu qemu-user"
FLAGS = ["-std=c++20", "-O3", "-ffp-contract=off", "-static", "-pthread", "-DTRANSOM_ISA=portable"]


def build(compiler: str, program: Path) -> Path:
    sources = sorted(ROOT.glob("native/kernels/*.cpp"))
    sources += [ROOT / "native" / name for name in ("launch.cpp", "pool.cpp", "selection.cpp")]
    sources.append(ROOT / "tests/native/digests.cpp")
    subprocess.run([compiler, *FLAGS, *map(str, sources), "-o", str(program)], check=True)
    return program


def digests(*command: str) -> list[str]:
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="compares ARM, emulated, with x86")
def test_kernels_on_arm_have_the_bits_of_x86_on_any_threads(tmp_path: Path) -> None:
    missing = [name for name in ("g++", CROSS, EMULATOR) if shutil.which(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not found: {INSTALL}")
    here, arm = build("g++", tmp_path / "x86"), build(CROSS, tmp_path / "arm")
    expected = digests(str(here))
    assert len(expected) > 10 and len({line.split()[1] for line in expected}) > 10
    for threads in ("1", "3"):
        assert digests(EMULATOR, str(arm), threads) == expected, threads

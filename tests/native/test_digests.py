"""64-bit ARM computes the bits of x86: cross-built kernels run in an emulator, and digests are compared.

No Python runs there: `digests.cpp` calls the kernels on inputs that it draws from seeds.
"""

import platform
import shutil
from pathlib import Path

import pytest
from tests.native.programs import PORTABLE, build, digests

CROSS, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
INSTALL = "apt-get install g++ g++-aarch64-linux-gnu qemu-user"
FLAGS = (*PORTABLE, "-O3", "-static")


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="compares ARM, emulated, with x86")
def test_kernels_on_arm_have_the_bits_of_x86_on_any_threads(tmp_path: Path) -> None:
    missing = [name for name in ("g++", CROSS, EMULATOR) if shutil.which(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not found: {INSTALL}")
    here, arm = build("g++", FLAGS, tmp_path / "x86"), build(CROSS, FLAGS, tmp_path / "arm")
    expected = digests(str(here))
    assert len(expected) > 10 and len({line.split()[1] for line in expected}) > 10
    for threads in ("1", "3"):
        assert digests(EMULATOR, str(arm), threads) == expected, threads

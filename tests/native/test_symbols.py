"""Linker symbols of the kernels, which are built once per instruction set."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
OBJECTS = sorted(ROOT.glob("build/*/CMakeFiles/kernels_*.dir/native/kernels/*.o"))


@pytest.mark.skipif(not OBJECTS, reason="the kernels were not built in this checkout")
@pytest.mark.skipif(shutil.which("nm") is None, reason="there is no nm")
def test_kernels_of_different_instruction_sets_share_no_function() -> None:
    """The linker keeps one definition of a weak symbol, and this machine may not have its instructions.

    As a precaution the build lists the portable kernels first. An optimized build has no weak symbol.
    """
    done = subprocess.run(["nm", "-A", *map(str, OBJECTS)], capture_output=True, text=True, check=True)
    defined = [line for line in done.stdout.splitlines() if line.split()[-2] in "TtDdRr"]
    weak = [line for line in done.stdout.splitlines() if line.split()[-2] in "WVuvw"]
    assert len(defined) > len(OBJECTS), "nm lists no symbols"
    assert not weak, weak

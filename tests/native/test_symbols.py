"""What the linker sees of kernels that are built once per instruction set."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
OBJECTS = sorted(ROOT.glob("build/*/CMakeFiles/kernels_*.dir/native/kernels/*.o"))


@pytest.mark.skipif(not OBJECTS, reason="the kernels were not built in this checkout")
@pytest.mark.skipif(shutil.which("nm") is None, reason="there is no nm")
def test_no_kernel_shares_a_function_with_those_of_other_instruction_sets() -> None:
    """Of a weak symbol the linker keeps one, whose instructions this machine may not have.

    The build puts the portable kernels first in case; an optimized build has no such symbol at all.
    """
    done = subprocess.run(["nm", "-A", *map(str, OBJECTS)], capture_output=True, text=True, check=True)
    defined = [line for line in done.stdout.splitlines() if line.split()[-2] in "TtDdRr"]
    weak = [line for line in done.stdout.splitlines() if line.split()[-2] in "WVuvw"]
    assert len(defined) > len(OBJECTS), "nm tells nothing"
    assert not weak, weak

"""Kernels and their threads under sanitizers: no race, no access out of bounds, nothing undefined."""

import shutil
import subprocess
from pathlib import Path

import pytest
from tests.native.programs import PORTABLE, ROOT, build, digests

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++"),
]
RACES = ("-O1", "-g", "-fsanitize=thread")
BOUNDS = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
FLAGS_OF = {
    "portable": "",
    "avx2": "avx2 fma f16c",
    "avxvnni": "avx2 fma f16c avxvnni",
    "avx512": "avx512f avx512bw avx512vl avx512dq avx512vnni fma f16c",
}
"""Compiler flags, as in CMakeLists.txt."""


def flags_of(isa: str) -> tuple[str, ...]:
    """Skips the test if this machine cannot run the instruction set."""
    names = FLAGS_OF[isa].split()
    known = Path("/proc/cpuinfo").read_text().replace("_vnni", "vnni").split()
    if not set(names) <= set(known):
        pytest.skip(f"this machine has no {isa}")
    return (f"-DTRANSOM_ISA={isa}", *(f"-m{name}" for name in names))


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return digests(str(build("g++", (*PORTABLE, "-O3"), tmp_path_factory.mktemp("plain") / "digests")))


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that exits with an error if two threads race."""
    return build("g++", (*PORTABLE, *RACES), tmp_path_factory.mktemp("watched") / "digests")


@pytest.mark.parametrize("threads", ["1", "2", "5"])
def test_threads_do_not_race(watched: Path, expected: list[str], threads: str) -> None:
    assert digests(str(watched), threads) == expected


@pytest.mark.parametrize("isa", FLAGS_OF)
def test_nothing_is_out_of_bounds_or_undefined(tmp_path: Path, expected: list[str], isa: str) -> None:
    program = build("g++", (*flags_of(isa), *BOUNDS), tmp_path / "digests")
    assert digests(str(program), "3") == expected


def test_the_sanitizer_reports_a_pool_without_memory_ordering(tmp_path: Path) -> None:
    native = shutil.copytree(ROOT / "native", tmp_path / "native")
    shutil.copytree(ROOT / "tests" / "native", tmp_path / "tests" / "native")
    pool = native / "pool.cpp"
    text = pool.read_text()
    assert "std::memory_order_acq_rel" in text and "std::memory_order_acquire" in text
    for order in ("acq_rel", "acquire"):
        text = text.replace(f"std::memory_order_{order}", "std::memory_order_relaxed")
    pool.write_text(text)
    program = build("g++", (*PORTABLE, *RACES), tmp_path / "digests", native)
    done = subprocess.run([str(program), "3"], capture_output=True, text=True)
    assert done.returncode != 0 and "data race" in done.stderr

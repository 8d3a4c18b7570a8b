"""Threads of the extension: new processes have their own, concurrent calls are safe, idle threads sleep."""

import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from transom.ops.native import NativeOps, info, set_threads
from transom.ops.pack import pack
from transom.ops.protocol import PackedMatrix, Precision

X = np.random.default_rng(0).standard_normal((33, 640)).astype(np.float32)


@pytest.fixture(autouse=True)
def same_threads_after() -> Iterator[None]:
    before = info().threads
    yield
    set_threads(before)


def matrix() -> PackedMatrix:
    codes = np.random.default_rng(1).integers(-128, 128, (512, 640)).astype(np.int8)
    return pack(codes, np.ones((512, 20), np.float32), None, 32, Precision.INT8)


def product(threads: int) -> bytes:
    ops, weights = NativeOps(threads), matrix()
    return ops.matmul(ops.prepare(X, weights), weights).tobytes()


def test_spawned_and_forked_processes_have_threads_of_their_own() -> None:
    expected = product(3)
    for method in ("spawn", "fork"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            assert pool.apply(product, (3,)) == expected, method


def test_python_threads_may_call_at_the_same_time() -> None:
    ops, weights = NativeOps(2), matrix()
    expected = product(2)
    wrong: list[bytes] = []

    def work() -> None:
        results = (ops.matmul(ops.prepare(X, weights), weights).tobytes() for _ in range(50))
        wrong.extend(result for result in results if result != expected)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def others_running() -> list[str]:
    """Ids of the other threads of this process that are not asleep."""
    tasks = [
        task for task in Path("/proc/self/task").iterdir() if task.name != str(threading.get_native_id())
    ]
    return [task.name for task in tasks if (task / "stat").read_text().rpartition(")")[2].split()[0] == "R"]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
def test_idle_threads_fall_asleep() -> None:
    """If a thread never sleeps, this test runs into its timeout."""
    product(4)
    while others_running():
        pass


def test_the_environment_variable_selects_the_instruction_set_at_import() -> None:
    code = "from transom.ops.native import info; print(info().isa)"
    for isa, status in (("portable", 0), ("sse9", 1)):
        environment = {**os.environ, "TRANSOM_ISA": isa}
        ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        assert ended.returncode == status
        assert isa in (ended.stdout if status == 0 else ended.stderr)
        assert "portable" in (ended.stdout + ended.stderr), "what there is must be said"

"""Findings of `transom doctor` on machines set up by the tests."""

import socket
from pathlib import Path

import pytest
from tests.cli.test_serve import one_line, transom
from tests.tiny import write_tiny_gguf

from transom.cli import checks
from transom.cli.checks import Finding, Verdict, examine, worst


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with the system's files and the cache, for tests to fill."""
    monkeypatch.setattr(checks, "CGROUP", tmp_path)
    monkeypatch.setattr(checks, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setenv("TRANSOM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(checks, "cores_available", lambda: 8)
    return tmp_path


def finding(name: str, model: str | None = None, port: int = 0) -> Finding:
    return next(one for one in examine(model, "127.0.0.1", port) if one.name == name)


def test_a_quota_below_the_cores_is_slow_and_suggests_threads(machine: Path) -> None:
    (machine / "cpu.max").write_text("250000 100000\n")
    found = finding("cores")
    assert found.verdict == Verdict.SLOW and "quota is 2.5" in found.text and "--threads 2" in found.fix


@pytest.mark.parametrize("limit", ["max 100000\n", "900000 100000\n", ""])
def test_no_quota_or_one_above_the_cores_is_ok(machine: Path, limit: str) -> None:
    (machine / "cpu.max").write_text(limit)
    assert finding("cores").verdict == Verdict.OK


def test_memory_is_the_smaller_of_machine_and_container(machine: Path) -> None:
    (machine / "meminfo").write_text("MemTotal: 9000000 kB\nMemAvailable: 8000000 kB\n")
    assert finding("memory").verdict == Verdict.OK
    (machine / "memory.max").write_text("600000000\n")
    (machine / "memory.current").write_text("500000000\n")
    found = finding("memory")
    assert found.verdict == Verdict.WRONG and found.text.startswith("100 MB available") and found.fix


def test_a_system_that_does_not_report_memory_is_ok(machine: Path) -> None:
    assert finding("memory").verdict == Verdict.OK


def test_a_missing_model_comes_with_a_fix(machine: Path) -> None:
    path = write_tiny_gguf(machine / "tiny.gguf")
    assert finding("model", str(path)).verdict == Verdict.OK
    missing = finding("model", str(machine / "none.gguf"))
    assert missing.verdict == Verdict.WRONG and "no such file" in missing.text
    path.write_bytes(path.read_bytes()[:100])
    assert finding("model", str(path)).verdict == Verdict.WRONG
    named = finding("model", "smollm2-135m-instruct")
    assert named.fix == "transom models add smollm2-135m-instruct"


def test_a_taken_port_is_wrong(machine: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert finding("port", port=taken.getsockname()[1]).verdict == Verdict.WRONG
    assert finding("port").verdict == Verdict.OK


def test_the_numpy_backend_is_slow(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRANSOM_NATIVE", "0")
    assert finding("kernels").verdict == Verdict.SLOW


def test_the_worst_finding_counts() -> None:
    found = [Finding("a", verdict, "") for verdict in (Verdict.OK, Verdict.WRONG, Verdict.SLOW)]
    assert (worst(found), worst(found[:1]), worst([])) == (Verdict.WRONG, Verdict.OK, Verdict.OK)


def test_the_command_prints_a_line_per_check_and_fails_for_a_wrong_one(tmp_path: Path) -> None:
    bad = transom("doctor", str(tmp_path / "none.gguf"))
    assert one_line(bad, 1) == "transom: problems found: model\n"
    lines = [line for line in bad.stdout.splitlines() if not line.startswith(" ")]
    assert len(lines) == 8 and "\x1b" not in bad.stdout
    good = transom("doctor", str(write_tiny_gguf(tmp_path / "tiny.gguf")), "--port", "0")
    assert good.returncode == 0, good
    assert "--port" in one_line(transom("doctor", "--port", "70000"), 1)

"""lab/peers.py with a stand-in for llama.cpp's server: it stops every process that it started."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.over_http import DEADLINE_SECONDS, is_alive, until
from tests.tiny import write_tiny_gguf

TOOL = Path(__file__).parents[2] / "lab" / "peers.py"
STAND_IN = """\
#!{python}
import os, sys, time
sys.path[:0] = {path!r}
from pathlib import Path
Path({pid!r}).write_text(str(os.getpid()))
if {behavior!r} == "broken":
    sys.exit("error: no such model")
if {behavior!r} == "slow":
    time.sleep(1000)
from tests.bench.fakes import Fake, serve_for_ever, words_back
def mute(body):
    Path({pid!r} + ".asked").touch()
    time.sleep(1000)
port = int(sys.argv[sys.argv.index("--port") + 1])
serve_for_ever(Fake(mute if {behavior!r} == "mute" else words_back), port)
"""


class Stage:
    """A folder with a model and a stand-in server. `behavior` is well, broken, slow or mute."""

    def __init__(self, folder: Path, behavior: str) -> None:
        self.folder = folder
        self.pid_file = folder / "pid"
        self.server = folder / "llama-server"
        path = [str(TOOL.parents[1]), *sys.path]
        script = STAND_IN.format(python=sys.executable, path=path, pid=str(self.pid_file), behavior=behavior)
        self.server.write_text(script)
        self.server.chmod(0o755)
        self.model = write_tiny_gguf(folder / "tiny.gguf")

    def start(self, *words: str) -> "subprocess.Popen[str]":
        tool = [sys.executable, str(TOOL), "--model", str(self.model), "--llama-server", str(self.server)]
        return subprocess.Popen(
            [*tool, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "TRANSOM_CACHE": str(self.folder / "cache")},
        )

    @property
    def pid(self) -> int:
        return int(self.pid_file.read_text())


def test_both_servers_are_measured_and_stopped(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "well")
    with stage.start("--workloads", "w1", "--json", str(tmp_path / "figures.json")) as tool:
        output, error = tool.communicate(timeout=DEADLINE_SECONDS)
    assert "A / B" in output, output + error
    assert "w1, repeat 1: 0 of 1 answers are the same from A and B" in output
    assert (tmp_path / "figures.json").exists()
    assert not is_alive(stage.pid)


def test_a_server_that_does_not_start_is_reported_in_one_line_with_its_last_output(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "broken")
    with stage.start() as tool:
        _, error = tool.communicate(timeout=DEADLINE_SECONDS)
    assert tool.returncode == 1
    assert "llama-server ended with status 1: error: no such model; see " in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("behavior", "file", "number", "status"),
    [
        ("slow", "pid", signal.SIGINT, 130),
        ("slow", "pid", signal.SIGTERM, 143),
        ("mute", "pid.asked", signal.SIGTERM, 143),
    ],
)
def test_a_signal_stops_the_tool_and_the_processes_that_it_started(
    behavior: str, file: str, number: signal.Signals, status: int, tmp_path: Path
) -> None:
    stage = Stage(tmp_path, behavior)
    with stage.start("--workloads", "w1") as tool:
        until(lambda: (tmp_path / file).exists() and stage.pid_file.read_text() != "")
        tool.send_signal(number)
        tool.communicate(timeout=DEADLINE_SECONDS)
    assert tool.returncode == status
    assert not is_alive(stage.pid)

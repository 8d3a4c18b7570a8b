"""Runs `transom serve` in its own process, as `make serve` does."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from tests.over_http import DEADLINE_SECONDS


@dataclass(frozen=True)
class Serving:
    """A server that has printed its startup screen, and therefore accepts requests."""

    process: subprocess.Popen[str]
    screen: tuple[str, ...]
    before: str
    """Output before the startup screen, such as that of pip and make."""

    @property
    def curl(self) -> str:
        return self.screen[-1]

    @property
    def url(self) -> str:
        (url,) = [words[-1] for line in self.screen if (words := line.split()) and words[0] == "ready"]
        return url

    @property
    def engine_pid(self) -> int:
        (pid,) = [pid for pid in descendants(self.process.pid) if "transom.engine.process" in command(pid)]
        return pid

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=DEADLINE_SECONDS)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Sends the signal, waits, and returns the exit status."""
        self.process.send_signal(number)
        return self.process.wait(DEADLINE_SECONDS)


def transom_command() -> list[str]:
    """The console script beside this interpreter; without one, the module from the source tree."""
    script = Path(sys.executable).with_name("transom")
    return [str(script)] if script.exists() else [sys.executable, "-m", "transom"]


@contextmanager
def serving(
    *flags: str, model: Path | None = None, environment: Mapping[str, str] | None = None
) -> Iterator[Serving]:
    """A server on a free port. It is stopped at the end if it still runs."""
    words = [*transom_command(), "serve", *([str(model)] if model else []), "--port", "0", *flags]
    with started(words, environment={**os.environ, **(environment or {})}) as server:
        yield server


@contextmanager
def started(
    words: list[str], folder: Path | None = None, environment: Mapping[str, str] | None = None
) -> Iterator[Serving]:
    """The server that the command line `words` starts; earlier output is kept in `Serving.before`."""
    process = subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=environment,
        # A process group for the whole command, so that the cleanup also reaches make, pip and the engine.
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        yield _announced(process)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(DEADLINE_SECONDS)
            finally:
                process.kill()
        process.stdout.close()


def _announced(process: subprocess.Popen[str]) -> Serving:
    """Reads until the startup screen is complete: it begins with "model" and ends with the curl line."""
    assert process.stdout is not None
    before: list[str] = []
    screen: list[str] = []
    for line in process.stdout:
        (screen if screen or line.startswith("model ") else before).append(line.rstrip("\n"))
        if line.startswith("curl "):
            return Serving(process, tuple(screen), "\n".join(before))
    shown = "\n".join([*before, *screen])
    raise AssertionError(f"ended with status {process.wait(DEADLINE_SECONDS)} and without a screen:\n{shown}")


def descendants(pid: int) -> list[int]:
    """All descendants of process `pid`: its children, their children, and so on."""
    parents = {child: parent(child) for child in map(int, filter(str.isdigit, os.listdir("/proc")))}
    found = [pid]
    for ancestor in found:  # `found` grows while it is iterated: breadth first
        found += [child for child, its_parent in parents.items() if its_parent == ancestor]
    return found[1:]


def parent(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None


def command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")

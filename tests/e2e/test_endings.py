"""Every way in which the server ends, as docs/endings.md lists them: exit status and one-line message."""

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from tests.over_http import DEADLINE_SECONDS, complete, until
from tests.serving import descendants, transom_command


def shell(words: list[str], before: str = "", redirections: str = "") -> list[str]:
    """`words`, run by a shell that runs `before` first and then execs, so that the process id stays."""
    return ["sh", "-c", f'{before} exec "$@" {redirections}', "sh", *words]


def serve(*words: object) -> list[str]:
    return [*transom_command(), "serve", "--port", "0", *map(str, words)]


def startup_error(words: list[str], **environment: str) -> str:
    """The last line of stderr of a server that cannot start. It must exit with status 1 and no traceback."""
    result = subprocess.run(
        words, capture_output=True, text=True, timeout=DEADLINE_SECONDS, env={**os.environ, **environment}
    )
    assert result.returncode == 1, result
    assert "Traceback" not in result.stderr
    *_, last = result.stderr.splitlines()
    assert last.startswith("transom: "), result.stderr
    assert result.stdout == ""
    return last


@contextmanager
def served(
    words: list[str], port: int, stdout: int | None = None, stderr: int | None = None
) -> Iterator[httpx.Client]:
    """A client of a server that may have unusable standard streams. The server must stop with status 0.

    The port is fixed, because the startup screen may not be readable.
    """
    # Buffered, as outside of test runs: flushing a buffer into a closed pipe at exit is the difficult case.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    process = subprocess.Popen(words, stdout=stdout, stderr=stderr, env=environment)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=DEADLINE_SECONDS) as http:
            until(lambda: process.poll() is not None or is_healthy(http))
            yield http
        assert len(descendants(process.pid)) == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_SECONDS) == 0
    finally:
        process.kill()
        process.wait()


def is_healthy(http: httpx.Client) -> bool:
    try:
        return http.get("/health").status_code == 200
    except httpx.TransportError:
        return False


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


# ---------------------------------------------------------------- failures to start


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_a_truncated_model_file_is_named(tiny: Path, tmp_path: Path, share: float) -> None:
    model = tmp_path / "short.gguf"
    whole = tiny.read_bytes()
    model.write_bytes(whole[: int(len(whole) * share)])
    assert "short.gguf" in startup_error(serve(model))


def test_python_without_assertions_is_refused(tiny: Path) -> None:
    assert "removes assertions" in startup_error(serve(tiny), PYTHONOPTIMIZE="1")


def test_too_little_memory_is_reported_with_the_flag_that_lowers_it(tiny: Path) -> None:
    words = serve(tiny, "--kv-bytes", "4G")
    line = startup_error(shell(words, before="ulimit -v 4000000;"))
    assert "not enough memory" in line
    assert "--kv-bytes" in line


@pytest.mark.parametrize("size", ["9000G", "100T"])
def test_pools_beyond_the_memory_of_the_machine_are_refused(tiny: Path, size: str) -> None:
    line = startup_error(serve(tiny, "--kv-bytes", size))
    assert "of memory are available" in line
    assert "--kv-bytes" in line


@pytest.mark.model
def test_a_full_disk_is_reported_with_the_bytes_needed(tmp_path: Path) -> None:
    line = startup_error(shell(serve(), before="ulimit -f 1000;"), TRANSOM_CACHE=str(tmp_path))
    assert "no room for its 253113024 bytes" in line
    assert {path.suffix for path in tmp_path.iterdir()} == {".lock"}


# ---------------------------------------------------------------- stdout and stderr without a reader


@pytest.mark.parametrize("closed", ["stdout", "stderr"])
def test_a_closed_pipe_does_not_stop_the_server(tiny: Path, closed: str) -> None:
    """The startup screen, or a log line, is written to a pipe with a closed reading end."""
    port = free_port()
    reader, writer = os.pipe()
    os.close(reader)
    try:
        with served(serve(tiny, "--port", port), port, **{closed: writer}) as http:
            for _ in range(3):
                complete(http, "the", max_tokens=3)
    finally:
        os.close(writer)


def test_standard_streams_that_were_never_open_are_not_taken_for_sockets(tiny: Path) -> None:
    port = free_port()
    words = shell(serve(tiny, "--port", port), redirections="<&- >&- 2>&-")
    with served(words, port) as http:
        for _ in range(3):
            complete(http, "the", max_tokens=3)


# ---------------------------------------------------------------- a terminal


def test_in_a_terminal_the_screen_is_coloured_and_ctrl_c_stops_the_server(tiny: Path) -> None:
    words = serve(tiny)
    pid, terminal = os.forkpty()
    if pid == 0:
        os.execvp(words[0], words)
    output = b""
    while b"Ctrl-C stops" not in output:
        output += os.read(terminal, 65536)
    assert b"\x1b[" in output
    os.write(terminal, b"\x03")
    # Reading from the terminal raises an error once the last process has closed its end.
    with pytest.raises(OSError, match="Input/output error"):
        while True:
            output += os.read(terminal, 65536)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert b"SIGINT: stopping" in output
    os.close(terminal)

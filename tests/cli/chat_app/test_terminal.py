"""The chat through a pseudo terminal and through a pipe."""

import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.test_serve import one_line, transom
from tests.server.toy import running_server
from tests.tiny_llama import write_tiny_llama

COMMAND = [sys.executable, "-c", "import sys; from transom.cli.main import main; sys.exit(main())", "chat"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_llama(tmp_path_factory.mktemp("chat") / "tiny.gguf"))


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running_server() as running:
        yield running.url


class Screen:
    """Output of a terminal that has not been read yet."""

    def __init__(self, terminal: int) -> None:
        self.terminal = terminal
        self.pending = b""

    def until(self, words: bytes) -> None:
        """Reads on to the end of `words`."""
        while words not in self.pending:
            self.pending += os.read(self.terminal, 65536)
        self.pending = self.pending.partition(words)[2]


def test_a_pipe_is_read_to_its_end_without_prompts_or_colours(tiny: str) -> None:
    typed = "the hat \\\nand more\n/explain\n/quit\nnever\n"
    done = subprocess.run(
        [*COMMAND, tiny, "--temperature", "0", "--max-tokens", "5"],
        input=typed,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0 and not done.stderr, done
    assert "5 tokens" in done.stdout and "are cached" in done.stdout
    assert "\x1b" not in done.stdout and "> " not in done.stdout


def test_ctrl_c_ends_an_answer_and_not_the_program(url: str, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TRANSOM_CACHE": str(tmp_path), "TERM": "xterm"}
    process = subprocess.Popen(
        [*COMMAND, "--url", url, "--max-tokens", "400"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment,
        start_new_session=True,
        preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR)),
    )
    os.close(theirs)
    screen = Screen(ours)
    try:
        screen.until(b"> ")
        os.write(ours, b"STALL\n")
        screen.until(b"u:")
        os.write(ours, b"\x03")
        screen.until(b"interrupted")
        screen.until(b"> ")
        os.write(ours, b"\x04")
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert (tmp_path / "chat_history").stat().st_mode & 0o077 == 0


def test_errors_are_one_line() -> None:
    assert "no server answers" in one_line(transom("chat", "--url", "http://127.0.0.1:9"), 1)
    assert "--max-tokens is 0" in one_line(transom("chat", "--max-tokens", "0"), 1)
    assert "no such file" in one_line(transom("chat", "none.gguf"), 1)

"""`transom generate` from the command line and in a pipe."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.over_http import DEADLINE_SECONDS
from tests.serving import transom_command

from transom import LLM
from transom.weights.builtin import resolve_model


def generate(*words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*transom_command(), "generate", *words], capture_output=True, timeout=DEADLINE_SECONDS
    )


@contextmanager
def generating(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A running `transom generate`. Its first byte of output has been read."""
    process = subprocess.Popen(
        [*transom_command(), "generate", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None and process.stderr is not None
    try:
        assert os.read(process.stdout.fileno(), 1)
        yield process
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
        process.stdout.close()


def long_text(model: Path) -> tuple[str, ...]:
    """Flags for a long output. Sampled, because a random model may greedily repeat a piece without text."""
    return "--model", str(model), "--max-tokens", "2000", "--temperature", "1", "--seed", "2", "--ignore-eos"


def test_the_output_is_the_text_of_the_python_api_and_a_newline(tiny: Path) -> None:
    words = "--model", str(tiny), "--max-tokens", "40", "--temperature", "0.9", "--seed", "5", "--ignore-eos"
    done = generate("the hat", *words)
    expected = LLM(str(tiny)).generate("the hat", max_tokens=40, temperature=0.9, seed=5, ignore_eos=True)[0]
    assert (done.returncode, done.stdout.decode(), done.stderr) == (0, expected.text + "\n", b"")


def test_a_stop_string_ends_the_output(tiny: Path) -> None:
    words = "the hat", "--model", str(tiny), "--max-tokens", "40", "--ignore-eos"
    text = generate(*words).stdout.decode()
    stop = text[8:11]
    done = generate(*words, "--stop", "never said", "--stop", stop)
    assert done.stdout.decode() == text[: text.index(stop)] + "\n"


def test_the_output_is_streamed(tiny: Path) -> None:
    """The output arrives in several writes, not in one at the end."""
    with generating("the", *long_text(tiny)) as process:
        assert process.stdout is not None
        output = process.stdout.fileno()
        pieces = list(iter(lambda: os.read(output, 1 << 20), b""))
        assert process.wait(DEADLINE_SECONDS) == 0
        assert len(pieces) > 10


def test_a_closed_pipe_ends_the_command_silently(tiny: Path) -> None:
    with generating("the", *long_text(tiny)) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.wait(DEADLINE_SECONDS) == 0
        assert process.stderr.read() == b""


@pytest.mark.model
def test_ctrl_c_ends_the_command_without_a_traceback() -> None:
    resolve_model(None)
    with generating("Once upon a time", "--max-tokens", "20000", "--ignore-eos") as process:
        assert process.stderr is not None
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_SECONDS) == 130
        assert process.stderr.read() == b""


@pytest.mark.model
def test_the_default_model_continues_a_sequence_of_numbers() -> None:
    resolve_model(None)
    done = generate("1, 2, 3, 4,", "--max-tokens", "8")
    assert done.returncode == 0
    assert done.stdout.decode().startswith(" 5, 6,")


def test_help_shows_every_flag_and_an_example() -> None:
    done = generate("--help")
    assert done.returncode == 0
    text = done.stdout.decode()
    for flag in (
        "model",
        "max-tokens",
        "temperature",
        "top-k",
        "top-p",
        "min-p",
        "seed",
        "stop",
        "ignore-eos",
    ):
        assert f"--{flag}" in text
    assert '  transom generate "' in text


@pytest.mark.parametrize(
    ("words", "status", "named"),
    [
        (("x", "--max-tokens", "many"), 2, "--max-tokens"),
        (("x", "--top-p", "2"), 1, "--top-p"),
        (("x", "--top-k", "-3"), 1, "--top-k"),
        (("x", "--stop", ""), 1, "stop"),
        (("x", "y"), 2, "y"),
        (("x", "--model", "/no/such.gguf"), 1, "/no/such.gguf"),
        (("a" * 3000,), 1, "tokens"),
    ],
)
def test_a_wrong_argument_is_named_in_one_line(
    tiny: Path, words: tuple[str, ...], status: int, named: str
) -> None:
    model = () if "--model" in words else ("--model", str(tiny))
    done = generate(*words, *model)
    assert (done.returncode, done.stdout) == (status, b"")
    line = done.stderr.decode()
    assert line.startswith("transom: ") and line.count("\n") == 1
    assert named in line

"""The command line: exit statuses, one-line errors, help."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from transom.cli import main as cli
from transom.cli.model import engine_config
from transom.config import EngineConfig

FLAGS = """
--swa-full-tokens-ratio --page-size --chunked-prefill-size --max-total-tokens --kv-bytes
--max-running-requests
--disable-radix-cache --threads --paranoid --host --port --served-model-name --log-level --log-format
--finish-seconds
"""


def transom(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "import sys; from transom.cli.main import main; sys.exit(main())", *words],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "COLUMNS": "100"},
    )


def one_line(result: subprocess.CompletedProcess[str], status: int) -> str:
    assert result.returncode == status, result
    assert result.stderr.startswith("transom: ")
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr


def test_version_is_printed() -> None:
    result = transom("--version")
    assert (result.returncode, result.stdout) == (0, "transom 0.1.0\n")


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from transom.cli.main import main\n"
        "try: main(['serve', '--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'numpy', 'uvicorn', 'tokenizers', 'msgspec', 'rich'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("command", ["serve", "generate"])
def test_help_states_the_license_terms_of_the_model(command: str) -> None:
    words = " ".join(transom(command, "--help").stdout.split())
    assert "ai.google.dev/gemma/terms" in words
    assert "unofficial third-party conversion of the base model" in words


def test_help_lists_every_flag_of_the_issue() -> None:
    words = transom("serve", "--help").stdout
    for flag in FLAGS.split():
        assert flag in words


def test_an_unknown_flag_suggests_the_nearest() -> None:
    assert "did you mean --page-size?" in one_line(transom("serve", "--page-sise", "16"), 2)
    assert "--zzz" in one_line(transom("serve", "--zzz"), 2)
    assert "did you mean --temperature?" in one_line(transom("generate", "x", "--temprature=1"), 2)


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("serve", "--port", "many"), "--port"),
        (("serve", "--kv-bytes", "lots"), "512M"),
        (("serve", "--log-level", "loud"), "--log-level"),
        (("serve", "--log-format", "xml"), "--log-format"),
        (("generate",), "TEXT"),
        (("sevre",), "serve"),
    ],
)
def test_wrong_usage_is_status_2(words: tuple[str, ...], part: str) -> None:
    assert part in one_line(transom(*words), 2)


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("serve", "--page-size", "0"), "--page-size"),
        (("serve", "--port", "70000"), "--port"),
        (("serve", "--kv-bytes", "1G", "--max-total-tokens", "5"), "--max-total-tokens"),
        (("generate", "x", "--temperature", "-1"), "--temperature"),
        (("generate", "x", "--max-tokens", "0"), "--max-tokens"),
        (("generate", "x", "--seed", "-1"), "--seed"),
        (("serve", "--finish-seconds", "-1"), "--finish-seconds"),
        (("serve", "--port", "0", "/no/such/model.gguf"), "/no/such/model.gguf"),
        (("serve", "--port", "0", "/tmp"), "/tmp: not a regular file"),
        (("serve", "--port", "0", "x" * 1000), "cannot be read: File name too long"),
        (("serve", "--host", "no.such.host.invalid"), "no.such.host.invalid"),
    ],
)
def test_a_configuration_that_cannot_work_is_status_1_and_one_line(words: tuple[str, ...], part: str) -> None:
    assert part in one_line(transom(*words), 1)


def test_a_taken_port_is_reported_before_the_model_is_looked_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        line = one_line(transom("serve", "--port", port, "/no/such/model.gguf"), 1)
    assert port in line
    assert "in use" in line


def test_a_damaged_model_file_is_one_line(tmp_path: Path) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUFnonsense")
    assert "bad.gguf" in one_line(transom("serve", "--port", "0", str(bad)), 1)


def test_flags_reach_the_configuration_and_defaults_agree() -> None:
    parser, _ = cli.parsers()
    assert engine_config(parser.parse_args(["serve"])) == EngineConfig()
    words = (
        "serve m.gguf --page-size 4 --chunked-prefill-size 128 --kv-bytes 1G --swa-full-tokens-ratio 0.1 "
        "--max-running-requests 8 --disable-radix-cache --threads 1 --paranoid"
    )
    assert engine_config(parser.parse_args(words.split())) == EngineConfig(
        model="m.gguf",
        page_size=4,
        chunked_prefill_size=128,
        kv_bytes=1 << 30,
        swa_full_tokens_ratio=0.1,
        max_running_requests=8,
        disable_radix_cache=True,
        threads=1,
        paranoid=True,
    )

"""Values of flags from a file and from the environment, below the command line and above the defaults."""

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest

from transom.cli import main as cli
from transom.cli import settings
from transom.errors import ConfigError

SERVE = cli.parsers()[1]["serve"]
ACTIONS = [action for action in SERVE._actions if action.dest not in ("help", "config")]


def loaded(
    *words: str, file: str | None = None, folder: Path | None = None, **environment: str
) -> argparse.Namespace:
    """The options of `transom serve WORDS`, with a configuration file of this text and these variables."""
    options = cli.parsers()[0].parse_args(["serve", *words])
    if file is not None:
        assert folder is not None
        options.config = str(folder / "server.toml")
        Path(options.config).write_text(file)
    settings.load(options.parser, options, environment)
    return options


def message(*words: str, file: str | None = None, folder: Path | None = None, **environment: str) -> str:
    """The error that these settings end in: one line."""
    with pytest.raises(ConfigError) as caught:
        loaded(*words, file=file, folder=folder, **environment)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_each_source_wins_over_the_next(tmp_path: Path) -> None:
    file = "port = 1\n"
    assert loaded().port == 8000
    assert loaded(file=file, folder=tmp_path).port == 1
    assert loaded(file=file, folder=tmp_path, TRANSOM_PORT="2").port == 2
    assert loaded("--port", "3", file=file, folder=tmp_path, TRANSOM_PORT="2").port == 3


def test_a_flag_with_the_value_of_the_default_still_wins() -> None:
    assert loaded("--port", "8000", TRANSOM_PORT="2").port == 8000


def test_a_repeated_flag_replaces_the_list_of_a_lower_source(tmp_path: Path) -> None:
    file = 'api-key = ["a", "b"]'
    assert loaded(file=file, folder=tmp_path).api_key == ["a", "b"]
    assert loaded(file=file, folder=tmp_path, TRANSOM_API_KEY="c,d").api_key == ["c,d"]
    assert loaded("--api-key", "e", file=file, folder=tmp_path, TRANSOM_API_KEY="c").api_key == ["e"]
    assert loaded().api_key == []


def test_the_model_can_come_from_everywhere(tmp_path: Path) -> None:
    assert loaded(file='model = "a.gguf"', folder=tmp_path).model == "a.gguf"
    assert loaded(TRANSOM_MODEL="b.gguf").model == "b.gguf"
    assert loaded("c.gguf", TRANSOM_MODEL="b.gguf").model == "c.gguf"


def test_the_file_can_be_named_by_a_variable(tmp_path: Path) -> None:
    (tmp_path / "server.toml").write_text("port = 5")
    assert loaded(TRANSOM_CONFIG=str(tmp_path / "server.toml")).port == 5


@pytest.mark.parametrize("action", ACTIONS, ids=settings.key)
def test_every_flag_has_a_key_and_a_variable_of_its_type(action: argparse.Action, tmp_path: Path) -> None:
    text, toml, value = example(action)
    from_file = loaded(file=f"{settings.key(action)} = {toml}", folder=tmp_path)
    from_variable = loaded(**{settings.variable(action): text})
    words = [*action.option_strings[-1:], *([text] if action.nargs != 0 else [])]
    assert getattr(loaded(*words), action.dest) == value
    assert getattr(from_file, action.dest) == value
    assert getattr(from_variable, action.dest) == value


def example(action: argparse.Action) -> tuple[str, str, object]:
    """A value of a flag: as a word of the command line, as TOML, and in Python."""
    if action.nargs == 0:
        return "true", "true", True
    if action.choices is not None:
        choice = list(action.choices)[-1]
        return choice, f'"{choice}"', choice
    if action.type in (int, float):
        return "1", "1", 1
    if action.type is not None:  # a size
        return "3M", '"3M"', 3 << 20
    return "x", '"x"', ["x"] if isinstance(action, argparse._AppendAction) else "x"


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ('port = "many"', ("port is 'many'", "an integer")),
        ("port = true", ("port is True", "an integer")),
        ("port = 8000.0", ("port is 8000.0", "an integer")),
        ("finish-seconds = inf", ("finish-seconds is inf", "a number")),
        ("finish-seconds = false", ("finish-seconds is False", "a number")),
        ('paranoid = "yes"', ("paranoid is 'yes'", "true or false")),
        ("paranoid = 1", ("paranoid is 1", "true or false")),
        ('log-level = "loud"', ("log-level is 'loud'", "one of debug, info")),
        ("host = 127", ("host is 127", "a string")),
        ("host = 2026-01-01", ("host is", "a string")),
        ('kv-bytes = "lots"', ("kv-bytes", "'lots'", "512M")),
        ("[network]\nport = 1", ("'network' is not the name of a flag",)),
        ("port_ = 1", ("'port_'", "did you mean port?")),
        ("page_size = 1", ("did you mean page-size?",)),
        ("--port = 1", ("did you mean port?",)),
        ('config = "other.toml"', ("'config'",)),
        ("help = true", ("'help'",)),
        ("port = ", ("not valid TOML",)),
        ("a = " + "[" * 100_000, ("not valid TOML",)),
        ("port = 1\nport = 2", ("not valid TOML",)),
    ],
)
def test_a_bad_line_is_refused_with_file_key_value_and_rule(
    line: str, parts: tuple[str, ...], tmp_path: Path
) -> None:
    text = message(file=line, folder=tmp_path)
    assert text.startswith(f"{tmp_path}/server.toml: ")
    for part in parts:
        assert part in text


@pytest.mark.parametrize(
    ("variable", "text", "rule"),
    [
        ("TRANSOM_PORT", "many", "an integer"),
        ("TRANSOM_PORT", "", "is empty"),
        ("TRANSOM_MODEL", "", "is empty"),
        ("TRANSOM_API_KEY", "", "is empty"),
        ("TRANSOM_PARANOID", "maybe", "one of 1, true"),
        ("TRANSOM_LOG_FORMAT", "xml", "one of text, json"),
        ("TRANSOM_KV_BYTES", "lots", "512M"),
        ("TRANSOM_FINISH_SECONDS", "soon", "a number"),
    ],
)
def test_a_bad_variable_is_refused_with_its_name_and_rule(variable: str, text: str, rule: str) -> None:
    shown = message(**{variable: text})
    assert shown.startswith(variable)
    assert rule in shown


@pytest.mark.parametrize(("text", "value"), [("1", True), ("ON", True), ("no", False), ("0", False)])
def test_a_switch_is_set_by_a_word(text: str, value: bool) -> None:
    assert loaded(TRANSOM_PARANOID=text).paranoid is value


@pytest.mark.parametrize("line", ["api-key = 31337", "api-key = [31337]", "api-key = [[31337]]"])
def test_a_key_is_never_shown(line: str, tmp_path: Path) -> None:
    text = message(file=line, folder=tmp_path)
    assert "31337" not in text and "a string" in text


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.toml", Path("/dev/zero"), Path("x" * 1000)):
        assert str(path) in message("--config", str(path))
    (tmp_path / "latin1.toml").write_bytes(b"host = '\xff'")
    assert "not valid TOML" in message("--config", str(tmp_path / "latin1.toml"))


def test_variables_of_a_cluster_are_not_taken_for_settings() -> None:
    options = cli.parsers()[0].parse_args(["serve"])
    environment = {
        "TRANSOM_PORT": "tcp://10.0.0.1:8000",
        "TRANSOM_SERVICE_HOST": "10.0.0.1",
        "TRANSOM_SERVICE_PORT_HTTP": "8000",
        "TRANSOM_PORT_8000_TCP_ADDR": "10.0.0.1",
        "TRANSOM_CACHE": "/x",
    }
    assert settings.load(options.parser, options, environment).unknown == ()
    assert options.port == 8000


def test_a_misspelt_variable_is_told() -> None:
    options = cli.parsers()[0].parse_args(["serve"])
    (unknown,) = settings.load(options.parser, options, {"TRANSOM_PROT": "1"}).unknown
    assert unknown == "TRANSOM_PROT; did you mean TRANSOM_PORT?"


def serve(*words: str, **environment: str) -> str:
    """What `transom serve WORDS` writes before it ends."""
    done = subprocess.run(
        [sys.executable, "-m", "transom", "serve", *words],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    return done.stderr


def test_a_value_out_of_range_is_refused_with_its_origin(tmp_path: Path) -> None:
    file = tmp_path / "server.toml"
    file.write_text('page-size = 0\nkv-bytes = "1G"\n')
    rule = "transom: --page-size is 0; it must be between 1 and 4096; --page-size comes from"
    assert serve("--config", str(file)) == f"{rule} page-size in {file}\n"
    assert serve(TRANSOM_PAGE_SIZE="0") == f"{rule} TRANSOM_PAGE_SIZE\n"
    both = serve("--config", str(file), "--page-size", "16", "--max-total-tokens", "5")
    assert both.endswith(f"give one of them; --kv-bytes comes from kv-bytes in {file}\n")


def test_a_file_that_is_missing_ends_the_command() -> None:
    assert serve("--config", "none.toml") == "transom: none.toml: cannot be read: No such file or directory\n"

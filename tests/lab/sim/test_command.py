"""`transom simulate` as a user runs it."""

import json
from pathlib import Path

import pytest
from tests.tiny import write_tiny_gguf

from transom.cli.main import main

FAST = ("simulate", "--workload", "w4s", "--cost", "h200", "--requests", "8")


def test_it_prints_a_table_and_writes_the_same_json_each_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [tmp_path / "one.json", tmp_path / "two.json"]
    for file in files:
        assert main([*FAST, "--json", str(file), "--svg", str(tmp_path / "pictures")]) == 0
    assert files[0].read_bytes() == files[1].read_bytes()
    (figures,) = json.loads(files[0].read_text()).values()
    assert figures["requests"] == 8 and figures["output_tokens"] == 8 * 64
    shown = capsys.readouterr().out
    assert "to first token" in shown and "assumed for an H200, not measured" in shown
    assert sorted(p.name for p in (tmp_path / "pictures").iterdir()) == ["hits.svg", "memory.svg", "ttft.svg"]


def test_policies_are_compared_side_by_side(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    words = ["--compare", "value,lru", "--json", str(file), "--kv-bytes", "16M"]
    assert main([*FAST, *words]) == 0
    assert list(json.loads(file.read_text())) == ["value", "lru"]


def test_regret_is_printed_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "figures.json"
    assert main([*FAST, "--regret", "--json", str(file), "--kv-bytes", "40M"]) == 0
    regret = json.loads(file.read_text())["regret"]
    assert regret["rows"][0]["bytes"] == regret["bytes_all"]
    assert regret["rows"][0]["value"] == regret["hit_tokens_most"] == regret["rows"][0]["bound"]
    assert "clairvoyant" in capsys.readouterr().out


def test_a_saved_workload_plays_the_same_as_a_trace(tmp_path: Path) -> None:
    saved, first, second = (str(tmp_path / name) for name in ("trace.jsonl", "1.json", "2.json"))
    assert main([*FAST, "--save-trace", saved, "--json", first]) == 0
    assert main(["simulate", "--trace", saved, "--cost", "h200", "--json", second]) == 0
    assert Path(first).read_bytes() == Path(second).read_bytes()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--workload", "w9"], "--workload is 'w9'; it must be one of w1,"),
        (["--model-shape", "bert"], "--model-shape is 'bert'"),
        (["--compare", "value,best"], "--compare has 'best'; it must be of value, lru"),
        (["--requests", "0"], "--requests is 0"),
        (["--seed", "-1"], "--seed is -1"),
        (["--cost", "nowhere.json"], "nowhere.json: No such file or directory"),
        (["--trace", "nowhere.jsonl"], "nowhere.jsonl: no such file or directory"),
        (["--kv-bytes", "1K"], "a KV budget of 1024 bytes cannot hold a request"),
        (["--workload", "w1", "--json", "/nowhere/x.json"], "/nowhere/x.json: No such file or directory"),
    ],
)
def test_options_that_cannot_be_played_are_refused_in_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", *words]) == 1
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_another_models_cost_does_not_replace_that_of_the_default_model(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    model = write_tiny_gguf(tmp_path / "tiny.gguf")
    assert main(["bench", "cost", "--model", str(model)]) == 1
    assert "--model needs --output" in capsys.readouterr().err

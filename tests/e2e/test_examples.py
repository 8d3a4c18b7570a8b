"""The examples run unchanged."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.test_serve import transom
from tests.serving import serving

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = pytest.mark.model


def run(name: str, *words: str) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *words],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_shared_prefix_example_hits_the_cache() -> None:
    lines = [line.split() for line in run("shared_prefix.py").splitlines() if line.startswith("  ")]
    cached = [int(words[0]) for words in lines]
    assert len(cached) == 3 and cached[0] == 0 and min(cached[1:]) > 400


def test_the_rollouts_example_finds_the_log_probabilities_of_a_cold_run() -> None:
    assert "to the bit" in run("rollouts.py")


def test_the_chat_example_streams_from_a_server() -> None:
    with serving() as server:
        assert run("chat.py", f"{server.url}/v1").endswith(" tokens\n")


def test_the_tools_example_calls_a_function() -> None:
    with serving() as server:
        assert run("tools.py", f"{server.url}/v1").startswith("temperature of the ")


def test_the_batch_example_is_answered(tmp_path: Path) -> None:
    done = transom("run-batch", str(EXAMPLES / "batch.jsonl"), str(tmp_path / "out.jsonl"))
    assert done.returncode == 0, done
    answers = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert {answer["custom_id"]: answer["response"]["status_code"] for answer in answers} == {
        "france": 200,
        "italy": 200,
    }

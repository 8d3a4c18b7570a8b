"""Batches: over an engine that repeats prompts, and over a tiny model through the command line."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cli.test_serve import one_line, transom
from tests.server.toy import FAKE_ENGINE, ByteText
from tests.tiny_llama import write_tiny_llama

from transom.cli.batch.files import Answers, read_requests
from transom.cli.batch.run import run
from transom.config import EngineConfig
from transom.engine.supervisor import EngineLaunch
from transom.errors import ConfigError

RECIPE = EngineLaunch(EngineConfig(model="echo"), command=(sys.executable, str(FAKE_ENGINE)))


def line(number: int, prompt: str = "hello", **changes: Any) -> dict[str, Any]:
    body = {"model": "toy", "prompt": f"{prompt} {number}", "max_tokens": 8}
    return {"custom_id": f"r{number}", "method": "POST", "url": "/v1/completions", "body": body, **changes}


def written(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in lines))
    return path


def answered(source: Path, target: Path) -> dict[str, Any]:
    answers = Answers(target)
    unanswered = answers.unanswered(read_requests(source))
    try:
        asyncio.run(run(RECIPE, "toy", ByteText(), unanswered, answers, lambda tokens: None))
    finally:
        answers.close()
    found = [json.loads(one) for one in target.read_text().splitlines()]
    assert len({one["custom_id"] for one in found}) == len(found)
    return {one["custom_id"]: one["response"] for one in found}


def test_every_request_gets_one_answer_good_or_bad(tmp_path: Path) -> None:
    lines = [line(i) for i in range(40)]
    lines[7]["body"]["max_tokens"] = -1
    lines[8]["body"]["model"] = "nonesuch"
    found = answered(written(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl")
    assert len(found) == 40
    statuses = {number: response["status_code"] for number, response in found.items()}
    assert {number for number, status in statuses.items() if status != 200} == {"r7", "r8"}
    assert found["r7"]["body"]["error"]["param"] == "max_tokens" and statuses["r8"] == 404
    assert found["r3"]["body"]["choices"][0]["text"] == "hello 3h"


def test_an_interrupted_run_resumes_and_a_torn_line_is_answered_again(tmp_path: Path) -> None:
    source, target = written(tmp_path / "in.jsonl", [line(i) for i in range(5)]), tmp_path / "out.jsonl"
    whole = answered(source, target)
    lines = target.read_bytes().splitlines(keepends=True)
    target.write_bytes(b"".join(lines[:2]) + lines[2][:-10])
    answers = Answers(target)
    assert len(answers.unanswered(read_requests(source))) == 3
    answers.close()
    again = answered(source, target)
    assert {number: one["body"]["choices"] for number, one in again.items()} == {
        number: one["body"]["choices"] for number, one in whole.items()
    }


WRONG: dict[str, tuple[Any, str]] = {
    "no object": ([1], "line 2: not a JSON object"),
    "no id": ({**line(1), "custom_id": ""}, "line 2: custom_id must be a string of 1 to 512 characters"),
    "no body": ({"custom_id": "a", "url": "/v1/completions"}, "line 2: body is missing"),
    "other url": (line(1, url="/v1/embeddings"), "line 2: url is '/v1/embeddings'"),
    "other method": (line(1, method="GET"), "line 2: method is not POST"),
    "streamed": (line(1, body={"stream": True}), "line 2: body.stream"),
    "same id": (line(0), "line 2: custom_id 'r0' is already used in line 1"),
}


@pytest.mark.parametrize(("second", "says"), WRONG.values(), ids=WRONG)
def test_a_wrong_line_is_named_before_anything_is_computed(second: Any, says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=says):
        read_requests(written(tmp_path / "in.jsonl", [line(0), second]))


def test_a_line_that_is_not_json_or_not_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text('{"custom_id": \n')
    with pytest.raises(ConfigError, match=r"line 1: not valid JSON"):
        read_requests(path)
    path.write_bytes(b"\xff\xfe\n")
    with pytest.raises(ConfigError, match="line 1: not valid JSON"):
        read_requests(path)


ODD: dict[str, tuple[bytes, str]] = {
    "half a surrogate pair": (b'{"custom_id": "\\ud800", "url": "/v1/completions", "body": {}}', "surrogate"),
    "NaN": (b'{"custom_id": "a", "url": "/v1/completions", "body": {"temperature": NaN}}', "near"),
    "deep": (b'{"custom_id": "a", "url": "x", "body": ' + b"[" * 9_000 + b"]" * 9_000 + b"}", "deep"),
    "a key twice": (b'{"custom_id": "a", "custom_id": "b", "url": "x", "body": {}}', "custom_id.* twice"),
    "a key of the body twice": (
        b'{"custom_id": "a", "url": "/v1/completions", "body": {"n": 1, "n": 2}}',
        "body.* 'n' twice",
    ),
    "a huge number": (b'{"custom_id": ' + b"1" * 9_000 + b', "url": "x", "body": {}}', "custom_id|range"),
    "a long id": (b'{"custom_id": "' + b"x" * 513 + b'", "url": "x", "body": {}}', "512"),
    "a body of another kind": (b'{"custom_id": "a", "url": "/v1/completions", "body": [1]}', "body: not a"),
}


@pytest.mark.parametrize(("second", "says"), ODD.values(), ids=ODD)
def test_odd_json_is_refused_before_anything_is_computed(second: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(json.dumps(line(0)).encode() + b"\n" + second + b"\n")
    with pytest.raises(ConfigError, match=f"line 2: .*{says}") as caught:
        read_requests(path)
    assert len(str(caught.value)) < 400 and str(caught.value).isprintable()


def test_a_line_may_hold_every_other_line_separator_of_unicode(tmp_path: Path) -> None:
    separators = "\u2028 \u2029 \x85 \x0b \x0c \x1c"
    text = json.dumps(line(0, prompt=separators), ensure_ascii=False)
    path = tmp_path / "in.jsonl"
    path.write_text(f"\ufeff{text}\r\n\n", encoding="utf-8", newline="")
    (request,) = read_requests(path)
    assert json.loads(request.body)["prompt"].startswith(separators)


def test_an_output_file_that_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "precious.txt"
    path.write_text("dear diary\n")
    with pytest.raises(ConfigError, match="name another"):
        Answers(path)
    assert path.read_text() == "dear diary\n"


def test_the_command_answers_a_file_and_reports_errors_in_one_line(tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path / "tiny.gguf")
    lines = [
        line(i, body={"model": "tiny", "prompt": "the hat", "max_tokens": 4, "temperature": 0})
        for i in range(3)
    ]
    source, target = written(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    done = transom("run-batch", str(source), str(target), "--model", str(model))
    assert done.returncode == 0 and "3 answers in" in done.stderr, done
    found = [json.loads(one) for one in target.read_text().splitlines()]
    assert len({one["response"]["body"]["choices"][0]["text"] for one in found}) == 1
    again = transom("run-batch", str(source), str(target), "--model", str(model))
    assert again.returncode == 0 and "3 of 3 requests are already answered" in again.stderr
    assert "no such file" in one_line(transom("run-batch", "none.jsonl", str(target)), 1)

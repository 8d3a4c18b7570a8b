"""Trace files: reading gives back the written trace, and errors name the line."""

import json
from pathlib import Path

import numpy as np
import pytest
from tests.lab.sim.test_workloads import same

from transom.errors import ConfigError
from transom_lab.sim.trace import read_trace, write_trace
from transom_lab.sim.workloads import make_trace

GOOD = {"arrival": 0, "prompt": [5, 6], "output_length": 3}


def written(folder: Path, *lines: object) -> Path:
    path = folder / "trace.jsonl"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def test_a_trace_that_is_written_is_the_same_when_read(tmp_path: Path) -> None:
    for name in ("agents", "w4s", "rollouts"):
        trace = make_trace(name, 1, 24)
        path = tmp_path / f"{name}.jsonl"
        write_trace(trace, path)
        again = read_trace(path)
        assert same(trace, again)
        assert (again.name, again.concurrency) == (trace.name, trace.concurrency)


def test_equal_hashes_are_equal_blocks_and_times_are_milliseconds(tmp_path: Path) -> None:
    """Mooncake's fields: two prompts share two blocks of 512 tokens and differ in the third."""
    one = {"timestamp": 1500, "input_length": 1100, "output_length": 7, "hash_ids": [1, 2, 3]}
    other = {"timestamp": 3000, "input_length": 1300, "output_length": 9, "hash_ids": [1, 2, 4]}
    first, second = read_trace(written(tmp_path, one, other)).arrivals
    assert (first.at, second.at) == (1.5, 3.0)
    assert (len(first.prompt), len(second.prompt), len(second.outputs)) == (1100, 1300, 9)
    assert np.array_equal(first.prompt[:1024], second.prompt[:1024])
    assert not np.array_equal(first.prompt[1024:], second.prompt[1024:1100])
    assert not np.array_equal(first.outputs, second.outputs[:7])


def test_the_header_sets_the_block_size_and_empty_lines_are_skipped(tmp_path: Path) -> None:
    header = {"trace": "mine", "concurrency": 4, "block_size": 16}
    line = {"arrival": 0.5, "input_length": 20, "output_length": 1, "hash_ids": [9, 9]}
    trace = read_trace(written(tmp_path, header, "", line))
    assert (trace.name, trace.concurrency) == ("mine", 4)
    assert np.array_equal(trace.arrivals[0].prompt[:4], trace.arrivals[0].prompt[16:])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not valid JSON"),
        ([1], "not a JSON object"),
        ({**GOOD, "promt": 1}, "unknown field 'promt'"),
        ({"arrival": 0, "prompt": [1]}, "neither outputs and output_length"),
        ({**GOOD, "timestamp": 1}, "both arrival and timestamp"),
        ({**GOOD, "arrival": -1}, "arrival is -1; a time of at least 0"),
        ({**GOOD, "arrival": True}, "arrival is True"),
        ({**GOOD, "arrival": float("nan")}, "near"),
        ({**GOOD, "prompt": []}, "prompt: a list of at least one number"),
        ({**GOOD, "prompt": [1, 2.5]}, "prompt has 2.5"),
        ({**GOOD, "prompt": [1, 1 << 31]}, "prompt has 2147483648"),
        ({**GOOD, "output_length": 0}, "output_length is 0; a whole number between 1 and"),
        ({**GOOD, "after": 1}, "after is 1; a whole number between 0 and 0"),
        ({**GOOD, "tenant": 4}, "tenant is 4; a string"),
        ({"sample_of": 1, "output_length": 1}, "sample_of is 1; a whole number between 0 and 0"),
        ({**GOOD, "sample_of": 0}, "arrival beside sample_of: the first line of the request has it"),
        ({**GOOD, "priority": "high"}, "priority is 'high'"),
        ({"arrival": 0, "hash_ids": [1], "output_length": 1}, "input_length is missing"),
        (
            {"arrival": 0, "hash_ids": [1], "input_length": 513, "output_length": 1},
            "1 hash_ids for 513 tokens; blocks of 512 tokens make 2",
        ),
    ],
)
def test_an_error_names_its_line(tmp_path: Path, line: object, message: str) -> None:
    path = written(tmp_path, GOOD, line)
    with pytest.raises(ConfigError) as error:
        read_trace(path)
    assert str(error.value).startswith(f"{path}:2: ") and message in str(error.value)


def test_a_missing_empty_or_binary_file_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        read_trace(tmp_path / "none.jsonl")
    with pytest.raises(ConfigError, match="no requests"):
        read_trace(written(tmp_path, ""))
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not valid JSON"):
        read_trace(tmp_path / "binary")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"arrival": 0, "prompt": ' + b"[" * 9_000 + b"]" * 9_000 + b"}", "nested"),
        (b'{"arrival": 0, "tenant": "\\udc00"}', "surrogate"),
        (b'{"arrival": 0, "arrival": 1}', "'arrival' twice"),
        (b'{"arrival": ' + b"9" * 9_000 + b"}", ""),
        (b'{"arrival": 0, "priority": ' + b"9" * 300 + b', "prompt": [1], "outputs": [1]}', "priority is 99"),
        (b'{"\xe2\x80\xa8\\u001b[31m": 0}', "unknown field '\\u2028\\x1b[31m'"),
    ],
)
def test_odd_json_is_an_error_of_its_line(tmp_path: Path, line: bytes, message: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(json.dumps(GOOD).encode() + b"\n" + line + b"\n")
    with pytest.raises(ConfigError, match=f"{path}:2: ") as error:
        read_trace(path)
    assert message in str(error.value) and str(error.value).isprintable() and len(str(error.value)) < 400


def test_a_name_may_hold_every_line_separator_of_unicode(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    line = json.dumps({**GOOD, "tenant": "a\u2028b\u2029\x85c"}, ensure_ascii=False)
    path.write_text(f"{line}\n{line}\r\n\n", encoding="utf-8", newline="")
    assert [arrival.tenant for arrival in read_trace(path).arrivals] == ["a\u2028b\u2029\x85c"] * 2

"""Servers that are missing, lack a feature or break: each gives an error of one line."""

import json
import socket
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.bench.fakes import Fake, Said, piece, running, usage, words_back
from tests.bench.test_serve import measured
from tests.over_http import Json

from transom.bench.sheet import ResultFiles
from transom.cli.main import main
from transom.errors import TransomError


def test_an_address_without_a_server_is_named_in_the_error(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert main(["bench", "serve", f"127.0.0.1:{port}/v1"]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"transom: http://127.0.0.1:{port}: no server answers there (")
    assert error.count("\n") == 1


def test_a_server_that_does_not_speak_http_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"220 mail.example.org ESMTP\r\n")
                connection.recv(1)

        thread = threading.Thread(target=greet)
        thread.start()
        with pytest.raises(TransomError, match="the answer is not HTTP"):
            measured(f"http://127.0.0.1:{server.getsockname()[1]}")
        thread.join()


@pytest.mark.parametrize(
    ("models", "message"),
    [
        ((404, {"error": "x"}), r"/v1/models: HTTP 404: is the path right\?"),
        ((401, {"error": "x"}), "give a key with --api-key or OPENAI_API_KEY"),
        ((200, {"data": []}), "lists no model; name one with --model"),
        ((200, {"models": "many"}), "lists no model"),
    ],
)
def test_a_server_without_a_list_of_models_is_refused(models: tuple[int, Json], message: str) -> None:
    with running(Fake(words_back, models)) as fake, pytest.raises(TransomError, match=message):
        measured(fake.url)


def test_a_named_model_needs_no_list() -> None:
    with running(Fake(words_back, (404, {}))) as fake:
        measured(fake.url, model="mine")
    assert {body["model"] for body in fake.asked} == {"mine"}


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ([piece("a"), piece("b")], r"does not report its tokens \(stream_options.include_usage\)"),
        ((200, {"choices": [{"text": "a"}]}), "the answer is not an event stream"),
        ((500, {"error": {"message": "out of\n memory"}}), "HTTP 500: out of memory"),
        ((404, {"detail": "Not Found"}), "HTTP 404"),
        ([{"error": {"message": "[/red] over\x1b[2J loaded"}}], r"\[/red\] over\?\[2J loaded"),
        ([{"choices": [{"text": 7}]}], "an event of the stream is not a completion"),
    ],
)
def test_a_server_that_cannot_be_measured_is_refused(said: Said, message: str) -> None:
    with running(Fake(lambda body: said)) as fake, pytest.raises(TransomError, match=message):
        measured(fake.url)
    assert len(fake.asked) == 1


def test_a_server_that_refuses_extra_fields_gets_requests_without_them() -> None:
    def strict(body: Json) -> Said:
        if "ignore_eos" in body:
            return 400, {"error": {"message": "Unrecognized request argument supplied: ignore_eos"}}
        return words_back(body)

    with running(Fake(strict)) as fake:
        measured(fake.url)
    assert ["ignore_eos" in body for body in fake.asked[:3]] == [True, False, False]


def test_failed_requests_are_counted_and_fail_a_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def twice(body: Json) -> Said:
        return words_back(body) if len(fake.asked) < 6 else (503, {"error": {"message": "[/gone]"}})

    file = tmp_path / "figures.json"
    with running(Fake(twice)) as fake, pytest.raises(TransomError, match="checks failed"):
        measured(fake.url, files=ResultFiles(file))
    (run,) = json.loads(file.read_text())["runs"]
    assert (run["requests"], run["failed"]) == (6, 2)
    assert "WRONG: w2c8 on A, repeat 1: 2 of 6 requests failed: HTTP 503: [/gone]" in capsys.readouterr().out


def test_a_transom_server_that_finds_too_little_fails_a_check(
    capsys: pytest.CaptureFixture[str],
) -> None:
    models = (200, {"data": [{"id": "toy", "owned_by": "transom"}]})
    with running(Fake(words_back, models)) as fake, pytest.raises(TransomError):
        measured(fake.url, workloads="w3")
    assert "that prompts share: is the memory too small?" in capsys.readouterr().out
    with running(Fake(words_back)) as fake:
        measured(fake.url, workloads="w3")


def test_a_file_that_cannot_be_written_is_reported_before_any_request() -> None:
    with running(Fake(words_back)) as fake, pytest.raises(TransomError, match=r"/nowhere/x\.json: No such"):
        measured(fake.url, files=ResultFiles(Path("/nowhere/x.json")))
    assert not fake.asked


def test_llama_cpps_own_count_of_cached_tokens_is_read(tmp_path: Path) -> None:
    def answer(body: Json) -> Sequence[Json]:
        return [piece("a"), {**usage(9, 1), "timings": {"cache_n": 2, "prompt_n": 7}}]

    file = tmp_path / "figures.json"
    with running(Fake(answer)) as fake:
        measured(fake.url, files=ResultFiles(file))
    assert json.loads(file.read_text())["runs"][0]["hits"]["found"] == 6 * 2


def test_without_a_count_of_cached_tokens_none_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "figures.json"
    with running(Fake(lambda body: [piece("a"), usage(9, 1)])) as fake:
        measured(fake.url, files=ResultFiles(file))
    (run,) = json.loads(file.read_text())["runs"]
    assert run["hits"] is None and run["itl_ms_p50"] is None
    assert "not reported" in capsys.readouterr().out


def test_a_key_is_sent_to_its_own_server_and_never_printed_or_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "figures.json"
    with running(Fake(words_back)) as one, running(Fake(words_back)) as other:
        measured(one.url, other.url, files=ResultFiles(file), key="sk-secret")
    assert set(one.keys) == {"Bearer sk-secret"} and set(other.keys) == {None}
    captured = capsys.readouterr()
    assert "sk-secret" not in file.read_text() + captured.out + captured.err


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["bench"], 2, "name a benchmark: serve, cost, kv, micro, sched"),
        (["bench", "everything"], 2, "'everything'"),
        (["bench", "serve", "--workload", "w3"], 2, "did you mean --workloads?"),
        (["bench", "serve", "--repeats", "0"], 1, "--repeats is 0"),
        (["bench", "serve", "--seed", "-1"], 1, "--seed is -1"),
        (["bench", "serve", "--workloads", "w3,w9"], 1, "--workloads has 'w9'; it must be of w1, w2c8"),
        (["bench", "serve", "ftp://x"], 1, "'ftp://x' is not the URL of a server"),
        (["bench", "serve", "http://x:port"], 1, "'http://x:port' is not the URL of a server"),
        (["bench", "serve", "--api-key", "a\nb"], 1, "a key has letters"),
        (["bench", "micro", "tail"], 1, "PART is 'tail'; it must be one of head, layers"),
    ],
)
def test_wrong_usage_is_one_line(
    words: list[str], status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        found = main(words)
    except SystemExit as end:
        found = int(str(end.code))
    error = capsys.readouterr().err
    assert found == status and message in error and error.count("\n") == 1

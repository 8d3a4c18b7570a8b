"""Lines of the log: text for people, JSON for programs, one for every request."""

import dataclasses
import json
import logging
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.over_http import DEADLINE_SECONDS, refused, samples, until
from tests.server.raw import connected, post, read_until
from tests.server.toy import running_server

from transom import __version__
from transom.limits import Limits
from transom.logs import WARNINGS_KEPT, JsonFormatter, RepeatedWarnings, TextFormatter, fields


def record(message: str, *arguments: object, **values: object) -> logging.LogRecord:
    made = logging.LogRecord("transom.x", logging.INFO, __file__, 1, message, arguments, None)
    made.__dict__.update(fields(**values))
    return made


def test_text_has_the_message_then_the_fields_that_are_not_none() -> None:
    line = TextFormatter().format(record("request", id="a", seconds=0.125, count=3, error=None))
    assert line.endswith("INFO transom.x: request id=a seconds=0.1250 count=3")
    assert TextFormatter().format(record("no %s", "fields")).endswith("INFO transom.x: no fields")


@pytest.mark.parametrize("text", ["", "two words", 'a"b', "a=b"])
def test_text_that_could_be_misread_is_quoted(text: str) -> None:
    line = TextFormatter().format(record("request", id=text))
    assert json.loads(line.partition("id=")[2]) == text


def test_json_is_one_object_on_one_line() -> None:
    line = json.loads(JsonFormatter().format(record("two\nlines", id='"', seconds=0.5)))
    assert {key: line[key] for key in ("level", "logger", "message", "id", "seconds")} == {
        "level": "info",
        "logger": "transom.x",
        "message": "two\nlines",
        "id": '"',
        "seconds": 0.5,
    }
    assert line["time"].endswith("+00:00")


def test_json_has_the_traceback_too() -> None:
    try:
        raise ValueError("broke")
    except ValueError as error:
        made = record("failed")
        made.exc_info = (ValueError, error, error.__traceback__)
    text = JsonFormatter().format(made)
    assert "\n" not in text
    assert "ValueError: broke" in json.loads(text)["traceback"]


FORGED = [
    "/v1\nTue INFO transom.request: request id=forged",
    "/\r\x1b[2J\x1b]0;title\x07",
    "/\x9b31m\x85\u2028\u202e",
    "/\x7f\x00\ud800",
    "é",
]


@pytest.mark.parametrize("text", FORGED)
def test_no_value_forges_a_line_or_drives_a_terminal(text: str) -> None:
    for made in (record("request", path=text), record("refused: %s", text), record(text, list=[text])):
        for formatter in (TextFormatter(), JsonFormatter()):
            line = formatter.format(made)
            assert line.isascii() and line.isprintable()
    assert json.loads(TextFormatter().format(record("request", path=text)).partition("path=")[2]) == text


def test_no_value_is_longer_than_200_characters() -> None:
    for value in ("x" * 5000, "\n" * 5000, {"a": ["x" * 5000]}):
        for formatter in (TextFormatter(), JsonFormatter()):
            assert len(formatter.format(record("request", id=value))) < 1600
    assert "... (5000 characters)" in TextFormatter().format(record("request", id="x" * 5000))
    assert len(JsonFormatter().format(record("x" * 100_000))) < 3000


def test_the_text_of_an_exception_forges_no_line() -> None:
    try:
        raise ValueError("broke\n2026-12-01 INFO transom.request: forged\x1b[2J")
    except ValueError as error:
        made = record("failed")
        made.exc_info = (ValueError, error, error.__traceback__)
    first, *rest = TextFormatter().format(made).split("\n")
    assert first.endswith("failed") and all(line.startswith("    ") and line.isprintable() for line in rest)


def test_a_repeated_warning_is_left_out_and_counted() -> None:
    repeated = RepeatedWarnings()

    def passes(
        second: float, *, level: int = logging.WARNING, text: str = "%s leaves"
    ) -> logging.LogRecord | None:
        made = record(text, "a client")
        made.levelno, made.created = level, second
        return made if repeated.filter(made) else None

    assert sum(passes(float(second)) is not None for second in range(50)) == 10
    assert passes(51.0, text="another") and passes(51.0, level=logging.INFO)
    later = passes(61.0)
    assert later is not None and TextFormatter().format(later).endswith("left_out=40")
    for n in range(10_000):
        passes(100.0, text=f"text {n}")
    assert len(repeated._known) <= WARNINGS_KEPT


def test_a_path_cannot_forge_a_line_over_http(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with running_server(log=log, flags=("--api-key", "k")) as server, connected(server.url) as client:
        client.sendall(b"GET /%0aTue%20INFO%20forged%1b[2J HTTP/1.1\r\nHost: localhost\r\n\r\n")
        read_until(client, b"\r\n\r\n")
        until(lambda: "forged" in log.read_text())
    text = log.read_text()
    assert not any(line.startswith("Tue") for line in text.splitlines()) and "\x1b" not in text


def request_lines(log: Path) -> list[dict[str, Any]]:
    """Lines of the request log. Every line of the file must be JSON."""
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return [line for line in lines if line["logger"] == "transom.request"]


def test_every_request_logs_one_line_with_its_figures(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with running_server(log=log, log_format="json") as server:
        with httpx.Client(base_url=server.url, timeout=DEADLINE_SECONDS) as http:

            def ask(number: str, **body: object) -> httpx.Response:
                return http.post("/v1/completions", json=body, headers={"x-request-id": number})

            ask("plain", prompt="abc", max_tokens=5)
            ask("again", prompt="abc", max_tokens=5, stream=True)
            ask("several", prompt=["abc", "xy"], max_tokens=5, stop="y")
            refused(ask("refused", prompt="abc", max_tokens=-1))
            refused(ask("by the engine", prompt="REJECT"))
            ask("failed", prompt="FAIL", stream=True)
            http.get("/v1/models")
            with connected(server.url) as leaver:
                post(leaver, prompt="STALL", stream=True)
                read_until(leaver, b'"text":"')
            until(lambda: samples(http)["transom:request_finish_total/disconnect"] == 1)
            until(lambda: len(request_lines(log)) == 7)
        lines = {line["id"]: line for line in request_lines(log)}
    (leaver_id,) = set(lines) - {"plain", "again", "several", "refused", "by the engine", "failed"}

    plain = lines["plain"]
    assert (plain["prompt_tokens"], plain["output_tokens"], plain["cached_tokens"]) == (4, 5, 0)
    assert (plain["path"], plain["client"]) == ("/v1/completions", "127.0.0.1")
    assert (plain["model"], plain["prompts"], plain["n"]) == ("toy", 1, 1)
    assert "key" not in plain
    assert 0 < plain["first_token_seconds"] <= plain["total_seconds"]
    assert plain["queue_seconds"] >= 0
    assert "error" not in plain
    assert lines["again"]["cached_tokens"] == 3
    several = lines["several"]
    assert (several["prompt_tokens"], several["finish"]) == (7, "length,stop")
    assert (several["prompts"], several["n"]) == (2, 1)
    assert lines["refused"]["status"] == 400
    assert "max_tokens" in lines["refused"]["error"]
    assert lines["by the engine"]["error"] == "no pool holds it"
    assert lines["failed"]["error"] == "its step failed"
    finishes = {number: line["finish"] for number, line in lines.items()}
    assert finishes == {
        "plain": "length",
        "again": "length",
        "several": "length,stop",
        "refused": "refused",
        "by the engine": "error",
        "failed": "error",
        leaver_id: "disconnect",
    }


def test_an_engine_logs_in_the_format_of_its_server(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with (
        running_server(log=log, log_format="json") as server,
        httpx.Client(base_url=server.url, timeout=DEADLINE_SECONDS) as http,
    ):
        http.post("/v1/completions", json={"prompt": "CRASH"})
        until(lambda: "the engine failed" in log.read_text())
        line, *_ = [one for one in map(json.loads, log.read_text().splitlines()) if "traceback" in one]
    assert "the fake broke as asked" in line["traceback"]


def test_the_start_is_one_record_with_every_setting_and_no_key(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with running_server(log=log, log_format="json", flags=("--api-key", "a secret")) as server:
        text = log.read_text()
    (line,) = [one for one in map(json.loads, text.splitlines()) if one["message"] == "serving"]
    assert "a secret" not in text
    assert (line["model"], line["address"], line["keys"], line["tls"]) == (
        "toy",
        server.url,
        ["key-1"],
        False,
    )
    assert line["version"] == __version__
    assert line["engine"]["pid"] == server.engine_pid
    assert [part["name"] for part in line["engine"]["components"]] == ["full", "window"]
    assert line["limits"].keys() == {field.name for field in dataclasses.fields(Limits)}
    assert line["limits"]["finish_seconds"] == 1.0
    assert "/health" in line["open_endpoints"] and "/v1/models" not in line["open_endpoints"]


def test_without_keys_the_start_record_names_every_endpoint(tmp_path: Path) -> None:
    log, path = tmp_path / "log", tmp_path / "socket"
    with running_server(log=log, log_format="json", flags=("--uds", str(path))):
        (line,) = map(json.loads, log.read_text().splitlines())
    assert {"/v1/completions", "/update_weights_from_disk"} <= set(line["open_endpoints"])
    assert line["address"] == str(path)
    assert line["socket"].startswith("mode 0660, owner ")


@pytest.mark.parametrize(
    ("flags", "forwarded", "client"),
    [
        ((), "10.1.1.1", "127.0.0.1"),
        (("--trusted-proxy", "127.0.0.1"), "10.1.1.1", "10.1.1.1"),
        (("--trusted-proxy", "127.0.0.0/8"), "6.6.6.6, 10.1.1.1", "10.1.1.1"),
        (("--trusted-proxy", "127.0.0.1", "--trusted-proxy", "10.0.0.0/8"), "6.6.6.6, 10.1.1.1", "6.6.6.6"),
        (("--trusted-proxy", "10.0.0.0/8"), "10.1.1.1", "127.0.0.1"),
        (("--trusted-proxy", "unix"), "10.1.1.1", "127.0.0.1"),
    ],
)
def test_the_client_is_the_address_that_a_trusted_proxy_names(
    flags: tuple[str, ...], forwarded: str, client: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with running_server(log=log, log_format="json", flags=flags) as server:
        httpx.post(f"{server.url}/v1/completions", json={"prompt": 1}, headers={"x-forwarded-for": forwarded})
        until(lambda: len(request_lines(log)) == 1)
    assert request_lines(log)[0]["client"] == client


def test_the_proxy_of_a_unix_socket_can_be_trusted(tmp_path: Path) -> None:
    log, path = tmp_path / "log", tmp_path / "socket"
    transport = httpx.HTTPTransport(uds=str(path))
    flags = ("--uds", str(path), "--trusted-proxy", "unix")
    with (
        running_server(log=log, log_format="json", flags=flags),
        httpx.Client(base_url="http://localhost", transport=transport) as http,
    ):
        http.post("/v1/completions", json={"prompt": "a", "max_tokens": 1})
        http.post(
            "/v1/completions", json={"prompt": "a", "max_tokens": 1}, headers={"x-forwarded-for": "::1"}
        )
        until(lambda: len(request_lines(log)) == 2)
    assert [line["client"] for line in request_lines(log)] == ["unix", "::1"]

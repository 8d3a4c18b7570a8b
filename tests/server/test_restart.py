"""An engine that dies, and the one that takes its place."""

import http.client
import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from tests.over_http import DEADLINE_SECONDS, complete, is_alive, refused, samples, until
from tests.server.raw import connected, post, read_all, read_until, stalled
from tests.server.toy import Running, running_server
from tests.serving import descendants

from transom.config import EngineConfig
from transom.engine.supervisor import EngineLaunch
from transom.limits import LIMITS


def client(server: Running) -> httpx.Client:
    return httpx.Client(base_url=server.url, timeout=DEADLINE_SECONDS)


def test_between_two_engines_requests_wait_and_health_says_why(tmp_path: Path) -> None:
    with (
        running_server(f"gate {tmp_path}") as server,
        client(server) as http,
        ThreadPoolExecutor(4) as threads,
        stalled(server.url, stream=True) as stream,
    ):
        read_until(stream, b'"text":"')
        os.kill(server.engine_pid, signal.SIGKILL)
        until(lambda: http.get("/health").status_code == 503)
        assert "a new one is being started" in refused(http.get("/health"), 503)["message"]
        late = [threads.submit(complete, http, "late", max_tokens=4) for _ in range(2)]
        flushing = threads.submit(http.post, "/flush_cache")
        assert http.get("/v1/models").status_code == 200
        found = samples(http)
        assert (found["transom:engine_up"], found["transom:engine_restarts_total"]) == (0, 0)
        assert found["transom:num_running_reqs"] == 0
        assert not any(answer.done() for answer in late) and not flushing.done()

        (tmp_path / "open").write_text("echo")
        assert [answer.result()["choices"][0]["text"] for answer in late] == ["late"] * 2
        assert flushing.result().status_code == 200
        until(lambda: samples(http)["transom:num_running_reqs"] == 1)
        found = samples(http)
        assert (found["transom:engine_up"], found["transom:engine_restarts_total"]) == (1, 1)
        server.process.send_signal(signal.SIGTERM)
        assert '"server_error"' in read_all(stream)
        assert server.process.wait(DEADLINE_SECONDS) == 0


@pytest.mark.parametrize("how", ["CRASH", "EXIT"])
def test_a_request_that_crashes_every_engine_gets_an_error_and_the_others_are_whole(how: str) -> None:
    with running_server() as server, client(server) as http, ThreadPoolExecutor(4) as threads:
        others = [threads.submit(complete, http, "good", max_tokens=200) for _ in range(3)]
        answer = http.post("/v1/completions", json={"prompt": how})
        assert "failed repeatedly" in refused(answer, 500)["message"]
        assert [other.result()["choices"][0]["text"] for other in others] == ["good" * 50] * 3
        until(lambda: samples(http)["transom:engine_restarts_total"] == 2)


def test_an_engine_that_finds_itself_damaged_while_idle_is_replaced_without_an_error(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with running_server(f"gate {tmp_path}", log=log) as server, client(server) as http:
        assert complete(http, "DAMAGE", max_tokens=6)["choices"][0]["text"] == "DAMAGE"
        until(lambda: not is_alive(server.engine_pid))
        message = refused(http.get("/health"), 503)["message"]
        assert "a new one is being started" in message and "invariant" not in message
        (tmp_path / "open").write_text("echo")
        until(lambda: http.get("/health").status_code == 200)
        assert complete(http, "next", max_tokens=4)["choices"][0]["text"] == "next"
        assert samples(http)["transom:engine_restarts_total"] == 1
    written = log.read_text()
    assert "a check of the idle engine has found a broken invariant" in written
    assert "the fake is damaged as asked" in written, "the values of the assertion are logged"


def test_a_connection_outlives_the_engine(tmp_path: Path) -> None:
    def ask(
        connection: http.client.HTTPConnection, method: str, path: str, **body: object
    ) -> tuple[int, bytes]:
        connection.request(method, path, json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()

    with running_server(f"gate {tmp_path}") as server:
        connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=DEADLINE_SECONDS)
        connection.connect()
        connection.auto_open = 0  # a lost connection is an error, not a new one
        (tmp_path / "open").write_text("echo")
        status, text = ask(connection, "POST", "/v1/completions", prompt="EXIT", stream=True)
        assert (status, b"server_error" in text) == (200, True)
        until(lambda: ask(connection, "GET", "/health")[0] == 200)
        assert ask(connection, "POST", "/v1/completions", prompt="same")[0] == 200
        connection.close()


def test_connections_outlive_retry_after() -> None:
    assert LIMITS.keep_alive_seconds > 2 * LIMITS.retry_seconds


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("broken", "ended 5 times within 3600 seconds, the last time because: broken.gguf: tensor x"),
        ("other", "the model file has changed"),
    ],
)
def test_an_engine_that_cannot_be_replaced_ends_the_server_with_the_reason(
    model: str, reason: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with running_server(f"gate {tmp_path}", log=log) as server:
        os.kill(server.engine_pid, signal.SIGKILL)
        (tmp_path / "open").write_text(model)
        assert server.process.wait(DEADLINE_SECONDS) == 1
    *_, last = log.read_text().splitlines()
    assert last.startswith("transom: ")
    assert reason in last


def test_a_stop_while_the_next_engine_loads_leaves_nothing(tmp_path: Path) -> None:
    with running_server(f"gate {tmp_path}") as server:
        os.kill(server.engine_pid, signal.SIGKILL)
        until(lambda: bool(set(descendants(server.process.pid)) - {server.engine_pid}))
        (pid,) = set(descendants(server.process.pid)) - {server.engine_pid}
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(DEADLINE_SECONDS) == 0
        assert not is_alive(pid)


def test_a_request_that_waits_for_its_body_meets_the_next_engine(tmp_path: Path) -> None:
    """A client that connects before the crash and sends its request after it notices nothing."""
    with running_server(f"gate {tmp_path}") as server, client(server) as http, connected(server.url) as early:
        (tmp_path / "open").write_text("echo")
        os.kill(server.engine_pid, signal.SIGKILL)
        until(lambda: samples(http)["transom:engine_restarts_total"] == 1)
        post(early, prompt="early", stream=True, max_tokens=5)
        assert "error" not in read_all(early)


@pytest.mark.parametrize(
    ("crashes", "enough"),
    [
        ([], False),
        ([0, 1, 2, 3], False),
        ([0, 1, 2, 3, 4], True),
        ([0, 15, 30, 45, 60], True),
        ([0, 15, 30, 45, 60.5], False),
        ([0, 100, 200, 300, 301, 302, 303], False),
        ([0, 100, 300, 301, 302, 303, 304], True),
    ],
)
def test_enough_is_five_crashes_within_a_minute(crashes: list[float], enough: bool) -> None:
    assert EngineLaunch(EngineConfig()).is_enough(crashes) is enough

"""An engine that dies, and the one that takes its place."""

import http.client
import json
import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from tests.over_http import DEADLINE_SECONDS, complete, is_alive, refused, samples, until
from tests.server.raw import connected, post, read_all, stalled
from tests.server.toy import Running, running_server
from tests.serving import descendants

from transom.config import EngineConfig, ServerConfig
from transom.engine.supervisor import EngineLaunch
from transom.server.errors import RETRY_AFTER_SECONDS
from transom.server.launch import uvicorn_config


def client(server: Running) -> httpx.Client:
    return httpx.Client(base_url=server.url, timeout=DEADLINE_SECONDS)


def kill_with(how: str) -> Callable[[Running, httpx.Client], None]:
    def kill(server: Running, http: httpx.Client) -> None:
        if how == "SIGKILL":
            os.kill(server.engine_pid, signal.SIGKILL)
        else:
            assert http.post("/v1/completions", json={"prompt": how}).status_code == 503

    return kill


@pytest.mark.parametrize("how", ["CRASH", "EXIT", "SIGKILL"])
def test_after_a_crash_clients_get_errors_at_once_and_answers_from_the_next_engine(
    how: str, tmp_path: Path
) -> None:
    with (
        running_server(f"gate {tmp_path}") as server,
        client(server) as http,
        ThreadPoolExecutor(4) as threads,
    ):
        plain = [threads.submit(http.post, "/v1/completions", json={"prompt": "STALL"}) for _ in range(2)]
        with stalled(server.url, stream=True) as one, stalled(server.url, stream=True) as two:
            until(lambda: samples(http)["transom:num_running_reqs"] == 4)
            kill_with(how)(server, http)
            for connection in (one, two):
                text = read_all(connection)
                assert '"server_error"' in text
                assert "data: [DONE]" in text
        for answer in plain:
            assert answer.result().status_code == 503
        until(lambda: not is_alive(server.engine_pid))

        late = http.post("/v1/completions", json={"prompt": "x"})
        assert "a new one is being started" in refused(late, 503)["message"]
        assert int(late.headers["retry-after"]) > 0
        for path in ("/health", "/flush_cache"):
            assert http.get(path).status_code == 503
        assert http.get("/v1/models").status_code == 200
        found = samples(http)
        assert (found["transom:engine_up"], found["transom:engine_restarts_total"]) == (0, 0)
        assert found["transom:num_running_reqs"] == 0

        (tmp_path / "open").write_text("echo")
        until(lambda: http.get("/health").status_code == 200)
        assert complete(http, "back", max_tokens=4)["choices"][0]["text"] == "back"
        found = samples(http)
        assert (found["transom:engine_up"], found["transom:engine_restarts_total"]) == (1, 1)
        assert found["transom:num_requests_total"] == 1
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(DEADLINE_SECONDS) == 0


def test_an_engine_that_finds_itself_damaged_while_idle_is_replaced_without_an_error(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with running_server(f"gate {tmp_path}", log=log) as server, client(server) as http:
        assert complete(http, "DAMAGE", max_tokens=6)["choices"][0]["text"] == "DAMAGE"
        until(lambda: not is_alive(server.engine_pid))
        late = http.post("/v1/completions", json={"prompt": "x"})
        message = refused(late, 503)["message"]
        assert "broken invariant" in message and "a new one is being started" in message
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
        connection.request(method, path, json.dumps(body))
        answer = connection.getresponse()
        return answer.status, answer.read()

    with running_server(f"gate {tmp_path}") as server:
        connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=DEADLINE_SECONDS)
        connection.connect()
        connection.auto_open = 0  # a lost connection is an error, not a new one
        status, text = ask(connection, "POST", "/v1/completions", prompt="EXIT", stream=True)
        assert (status, b"server_error" in text) == (200, True)
        assert ask(connection, "GET", "/health")[0] == 503
        (tmp_path / "open").write_text("echo")
        until(lambda: ask(connection, "GET", "/health")[0] == 200)
        assert ask(connection, "POST", "/v1/completions", prompt="same")[0] == 200
        connection.close()


def test_connections_outlive_retry_after() -> None:
    assert uvicorn_config(None, ServerConfig()).timeout_keep_alive > 2 * RETRY_AFTER_SECONDS


def test_after_many_crashes_the_server_says_so_and_ends_with_status_1(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with running_server(log=log) as server, client(server) as http:
        for crash in range(5):
            until(lambda: http.get("/health").status_code == 200)
            assert samples(http)["transom:engine_restarts_total"] == crash
            assert http.post("/v1/completions", json={"prompt": "CRASH"}).status_code == 503
        assert server.process.wait(DEADLINE_SECONDS) == 1
    *_, last = log.read_text().splitlines()
    assert last.startswith("transom: the engine ended 5 times within")
    assert "the fake broke as asked" in last


@pytest.mark.parametrize(
    ("model", "reason"), [("broken", "tensor x is truncated"), ("other", "the model file has changed")]
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

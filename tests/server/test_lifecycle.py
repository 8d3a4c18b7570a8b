"""Clients that disconnect, an engine that hangs, and shutdown."""

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from tests.over_http import DEADLINE_SECONDS, is_alive, samples, until
from tests.server.raw import POST, connected, post, read_all, read_until, stalled
from tests.server.toy import Running, running_server
from tests.serving import descendants


@contextmanager
def deaf(server: Running) -> Iterator[None]:
    """A client that never reads its stream, which is longer than the buffers of the sockets."""
    prompts = 200
    with connected(server.url) as connection, httpx.Client(base_url=server.url) as http:
        post(connection, prompt=["abc"] * prompts, stream=True, max_tokens=300)
        until(lambda: samples(http)["transom:num_requests_total"] == prompts)
        yield


@pytest.mark.parametrize("stream", [False, True])
def test_a_disconnect_aborts_the_request(toy: Running, http: httpx.Client, stream: bool) -> None:
    left = samples(http)["transom:request_finish_total/disconnect"]
    with stalled(toy.url, stream=stream) as connection:
        if stream:
            read_until(connection, b'"text":"')
        until(lambda: samples(http)["transom:num_running_reqs"] == 1)
    until(lambda: samples(http)["transom:num_running_reqs"] == 0)
    until(lambda: samples(http)["transom:request_finish_total/disconnect"] == left + 1)


def test_a_disconnect_in_the_middle_of_a_body_is_harmless(toy: Running, http: httpx.Client) -> None:
    host, port = toy.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(POST + b"Content-Length: 100\r\n\r\n{")
    assert http.post("/v1/completions", json={"prompt": "x"}).status_code == 200


def test_health_detects_an_engine_that_hangs_and_it_is_replaced() -> None:
    with (
        running_server() as server,
        httpx.Client(base_url=server.url, timeout=DEADLINE_SECONDS) as http,
        stalled(server.url, stream=True),
    ):
        until(lambda: samples(http)["transom:num_running_reqs"] == 1)
        until(lambda: http.get("/health").status_code == 200)
        os.kill(server.engine_pid, signal.SIGSTOP)
        until(lambda: http.get("/health").status_code == 503)
        until(lambda: http.get("/health").status_code == 200)
        assert not is_alive(server.engine_pid)
        assert samples(http)["transom:engine_restarts_total"] == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_everything_in_order(number: signal.Signals) -> None:
    with running_server() as server:
        with stalled(server.url, stream=True) as connection, httpx.Client(base_url=server.url) as http:
            until(lambda: samples(http)["transom:num_running_reqs"] == 1)
            server.process.send_signal(number)
            text = read_all(connection)
            assert '"server_error"' in text
            assert "shutting down" in text
            assert "data: [DONE]" in text
        assert server.process.wait(DEADLINE_SECONDS) == 0
        assert not is_alive(server.engine_pid)


def test_while_it_drains_the_server_is_not_ready_and_still_takes_requests() -> None:
    with running_server(drain_seconds=3600) as server:
        with httpx.Client(base_url=server.url, timeout=DEADLINE_SECONDS) as http:
            assert http.get("/ready").status_code == 200
            server.process.send_signal(signal.SIGTERM)
            until(lambda: http.get("/ready").status_code == 503)
            assert http.get("/health").status_code == 200
            answer = http.post("/v1/completions", json={"prompt": "late", "max_tokens": 4})
            assert answer.json()["choices"][0]["text"] == "late"
            # A connection that is opened now is accepted, too.
            assert httpx.get(f"{server.url}/health").status_code == 200
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(DEADLINE_SECONDS) == 130


def test_a_second_signal_stops_at_once_and_clients_still_get_an_error(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with running_server(finish_seconds=3600, log=log) as server:
        with stalled(server.url, stream=True) as connection:
            read_until(connection, b'"text":"')
            server.process.send_signal(signal.SIGINT)
            until(lambda: "SIGINT: stopping" in log.read_text())
            server.process.send_signal(signal.SIGINT)
            text = read_all(connection)
            assert "shutting down" in text
            assert "data: [DONE]" in text
        assert server.process.wait(DEADLINE_SECONDS) == 130
        assert not is_alive(server.engine_pid)


@pytest.mark.parametrize(("signals", "finish_seconds", "status"), [(1, 0.1, 0), (2, 3600, 130)])
def test_a_client_that_does_not_read_does_not_delay_shutdown(
    tmp_path: Path, signals: int, finish_seconds: float, status: int
) -> None:
    log = tmp_path / "log"
    with running_server(finish_seconds=finish_seconds, log=log) as server, deaf(server):
        for _ in range(signals):
            server.process.send_signal(signal.SIGTERM)
            until(lambda: "SIGTERM: stopping" in log.read_text())
        assert server.process.wait(DEADLINE_SECONDS) == status


def test_an_idle_server_stops_with_status_0() -> None:
    with running_server() as server:
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(DEADLINE_SECONDS) == 0
        assert not is_alive(server.engine_pid)


def test_answers_that_can_finish_do_finish_after_a_signal() -> None:
    with running_server() as server, httpx.Client(base_url=server.url, timeout=DEADLINE_SECONDS) as http:
        body = {"prompt": "abc", "max_tokens": 400, "stream": True}
        with http.stream("POST", "/v1/completions", json=body) as answer:
            server.process.send_signal(signal.SIGTERM)
            text = "".join(answer.iter_text())
        assert '"finish_reason":"length"' in text
        assert "error" not in text
        assert server.process.wait(DEADLINE_SECONDS) == 0


def test_a_stop_while_the_engine_loads_leaves_nothing() -> None:
    with running_server("slow", announced=False) as server:
        until(lambda: bool(descendants(server.process.pid)))
        (engine_pid,) = descendants(server.process.pid)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(DEADLINE_SECONDS) == 0
        assert not is_alive(engine_pid)


def test_a_server_that_is_killed_takes_its_engine_along() -> None:
    with running_server() as server:
        server.process.kill()
        until(lambda: not is_alive(server.engine_pid))


def test_an_engine_that_cannot_load_ends_the_server_with_status_1() -> None:
    with running_server("broken") as server:
        assert server.process.wait(DEADLINE_SECONDS) == 1

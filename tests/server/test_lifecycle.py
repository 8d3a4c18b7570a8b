"""Clients that leave, an engine that dies, a server that is told to stop."""

import json
import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest
from tests.over_http import DEADLINE_SECONDS, is_alive, samples, until
from tests.server.toy import Running, running_server
from tests.serving import descendants


@contextmanager
def stalled(url: str, *, stream: bool) -> Iterator[socket.socket]:
    """A connection whose request does not end by itself."""
    host, port = url.removeprefix("http://").split(":")
    body = json.dumps({"prompt": "STALL", "stream": stream, "max_tokens": 100}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection((host, int(port)), timeout=DEADLINE_SECONDS) as connection:
        connection.sendall(head.encode() + body)
        yield connection


def read_all(connection: socket.socket) -> str:
    """Everything up to the server's closing, or the end of a chunked body."""
    data = b""
    while not data.endswith(b"0\r\n\r\n") and (piece := connection.recv(65536)):
        data += piece
    return data.decode()


def read_until(connection: socket.socket, wanted: bytes) -> None:
    data = b""
    while wanted not in data:
        piece = connection.recv(65536)
        assert piece, data
        data += piece


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_has_its_request_aborted(toy: Running, http: httpx.Client, stream: bool) -> None:
    left = samples(http)["transom:request_finish_total/disconnect"]
    with stalled(toy.url, stream=stream) as connection:
        if stream:
            read_until(connection, b'"text":"')
        until(lambda: samples(http)["transom:num_running_reqs"] == 1)
    until(lambda: samples(http)["transom:num_running_reqs"] == 0)
    until(lambda: samples(http)["transom:request_finish_total/disconnect"] == left + 1)


def test_a_client_that_leaves_in_the_middle_of_its_body_harms_nobody(
    toy: Running, http: httpx.Client
) -> None:
    host, port = toy.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
    assert http.post("/v1/completions", json={"prompt": "x"}).status_code == 200


@pytest.mark.parametrize("how", ["CRASH", "EXIT", "SIGKILL"])
def test_when_the_engine_dies_every_client_gets_an_error_and_later_ones_a_503(how: str) -> None:
    with running_server() as server, ThreadPoolExecutor(4) as threads:
        with httpx.Client(base_url=server.url, timeout=DEADLINE_SECONDS) as http:
            plain = [threads.submit(http.post, "/v1/completions", json={"prompt": "STALL"}) for _ in range(2)]
            with stalled(server.url, stream=True) as one, stalled(server.url, stream=True) as two:
                until(lambda: samples(http)["transom:num_running_reqs"] == 4)
                if how == "SIGKILL":
                    os.kill(server.engine_pid, signal.SIGKILL)
                else:
                    killer = http.post("/v1/completions", json={"prompt": how})
                    assert killer.status_code == 503
                for connection in (one, two):
                    text = read_all(connection)
                    assert '"server_error"' in text
                    assert "data: [DONE]" in text
            for answer in plain:
                assert answer.result().status_code == 503
            late = http.post("/v1/completions", json={"prompt": "x"})
            assert late.status_code == 503
            assert int(late.headers["retry-after"]) > 0
            assert late.json()["error"]["type"] == "server_error"
            for path in ("/health", "/flush_cache"):
                assert http.get(path).status_code == 503
            assert http.get("/v1/models").status_code == 200
            assert http.get("/metrics").status_code == 200
        until(lambda: not is_alive(server.engine_pid))
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(DEADLINE_SECONDS) == 0


def test_health_tells_an_engine_that_hangs_from_one_that_works() -> None:
    with (
        running_server() as server,
        httpx.Client(base_url=server.url, timeout=DEADLINE_SECONDS) as http,
        stalled(server.url, stream=True),
    ):
        until(lambda: samples(http)["transom:num_running_reqs"] == 1)
        until(lambda: http.get("/health").status_code == 200)
        os.kill(server.engine_pid, signal.SIGSTOP)
        until(lambda: http.get("/health").status_code == 503)
        os.kill(server.engine_pid, signal.SIGCONT)
        until(lambda: http.get("/health").status_code == 200)


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

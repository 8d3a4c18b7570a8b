"""Hostile and broken connections: each is answered or closed, and good clients notice nothing."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest
from tests.over_http import DEADLINE_SECONDS, complete, is_alive, samples, until
from tests.server.raw import POST, connected, post, read_until
from tests.server.toy import Running, running_server

from transom.limits import LIMITS

GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture(scope="module")
def hasty() -> Iterator[Running]:
    """A server that waits for no client."""
    with running_server(
        head_seconds=0.3, body_idle_seconds=0.3, keep_alive_seconds=0.3, write_seconds=0.3
    ) as server:
        yield server


def answered(connection: socket.socket) -> bytes:
    """All bytes up to the server's closing, which a reset also is."""
    data = b""
    try:
        while piece := connection.recv(65536):
            data += piece
    except ConnectionResetError:
        pass
    return data


def status_of(url: str, *pieces: bytes) -> int:
    """The status of the last response to these bytes."""
    with connected(url) as connection:
        try:
            for piece in pieces:
                connection.sendall(piece)
        except OSError:
            pass  # closed before all was sent
        return int(answered(connection).rpartition(b"HTTP/1.1 ")[2][:3])


def endless(head: bytes, piece: bytes, connection: socket.socket) -> int:
    """Sends `piece` until the server closes. Returns the bytes that it took."""
    sent = 0
    try:
        connection.sendall(head)
        while True:
            sent += connection.send(piece)
    except OSError:
        return sent


@pytest.mark.parametrize(
    ("head", "piece"),
    [(GET, b"X-Filler: abcdefgh\r\n" * 50), (GET + b"X: ", b"x" * 1000), (b"GET /", b"x" * 1000)],
    ids=["headers", "header", "path"],
)
def test_an_endless_head_ends_the_connection(toy: Running, head: bytes, piece: bytes) -> None:
    with connected(toy.url) as connection:
        # The server closes after 64 KiB; what more is sent lies in the buffers of the sockets.
        assert endless(head, piece, connection) < 32 << 20


def test_a_head_of_the_largest_size_is_answered_and_a_larger_one_is_a_431(toy: Running) -> None:
    def head(size: int) -> bytes:
        start, end = GET + b"X: ", b"\r\nConnection: close\r\n\r\n"
        return start + b"x" * (size - len(start) - len(end)) + end

    assert status_of(toy.url, head(LIMITS.head_bytes - 1)) == 200
    assert status_of(toy.url, head(LIMITS.head_bytes + 1)) == 431
    # In pieces, too: here the parser sees the end of the head in a later read.
    half = head(LIMITS.head_bytes + 2000)
    assert status_of(toy.url, half[:40_000], half[40_000:]) == 431


def test_more_headers_than_allowed_are_a_431(toy: Running) -> None:
    def head(headers: int) -> bytes:
        lines = b"".join(b"X-%d: 1\r\n" % n for n in range(headers - 2))
        return GET + lines + b"Connection: close\r\n\r\n"

    assert status_of(toy.url, head(LIMITS.headers)) == 200
    assert status_of(toy.url, head(LIMITS.headers + 1)) == 431


@pytest.mark.parametrize(
    ("start", "word"),
    [
        (b"", b"the headers"),
        (GET, b"the headers"),
        (
            POST + b"Content-Length: 100\r\n\r\n{",
            b"the body",
        ),
    ],
    ids=["nothing", "half a head", "half a body"],
)
def test_a_client_that_stops_sending_gets_a_408(hasty: Running, start: bytes, word: bytes) -> None:
    with connected(hasty.url) as connection:
        connection.sendall(start)
        answer = answered(connection)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert word in answer


def test_an_idle_connection_is_closed(hasty: Running) -> None:
    with connected(hasty.url) as connection:
        connection.sendall(GET + b"\r\n")
        assert answered(connection).startswith(b"HTTP/1.1 200 ")


def test_a_running_request_is_not_cut_off_while_its_client_waits(hasty: Running) -> None:
    with connected(hasty.url) as connection, httpx.Client(base_url=hasty.url) as http:
        post(connection, prompt="STALL", stream=True, max_tokens=100)
        read_until(connection, b'"text":"')
        # An idle connection that begins later has been closed: the time-outs have passed.
        with connected(hasty.url) as idle:
            answered(idle)
        assert samples(http)["transom:num_running_reqs"] == 1


def test_a_client_that_never_reads_is_cut_off_and_its_request_aborted(hasty: Running) -> None:
    with connected(hasty.url) as connection, httpx.Client(base_url=hasty.url) as http:
        post(connection, prompt=["abc"] * 200, stream=True, max_tokens=300)
        until(lambda: samples(http)["transom:request_finish_total/disconnect"] == 1)


def test_a_client_that_pipelines_and_leaves_is_noticed(toy: Running, http: httpx.Client) -> None:
    with connected(toy.url) as connection:
        post(connection, prompt="STALL", stream=True, max_tokens=100)
        until(lambda: samples(http)["transom:num_running_reqs"] == 1)
        try:
            connection.settimeout(0.2)
            connection.sendall(POST + b"Content-Length: 200000\r\n\r\n")
            connection.sendall(b" " * 200_000)
        except TimeoutError:
            pass  # the server has stopped reading
    until(lambda: samples(http)["transom:num_running_reqs"] == 0)


def test_pipelined_requests_are_answered_in_order_up_to_a_limit(toy: Running) -> None:
    one = b"GET /v1/models/%d HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with connected(toy.url) as connection:
        connection.sendall(
            b"".join(one % n for n in range(LIMITS.pipelined)) + GET + b"Connection: close\r\n\r\n"
        )
        text = answered(connection)
    assert [text.find(b"model '%d'" % n) for n in range(LIMITS.pipelined)] == sorted(
        text.find(b"model '%d'" % n) for n in range(LIMITS.pipelined)
    )
    assert text.count(b"HTTP/1.1 404") == LIMITS.pipelined
    assert text.count(b"HTTP/1.1 200") == 1
    with connected(toy.url) as connection:
        connection.sendall((one % 1) * 500)
        assert answered(connection).count(b"HTTP/1.1") <= LIMITS.pipelined + 2


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (b"Transfer-Encoding: chunked", 200),
        (b"Transfer-Encoding: Chunked", 200),
        (b"Transfer-Encoding: gzip, chunked", 400),
        (b"Transfer-Encoding: xchunked", 400),
        (b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity", 400),
        (b'Transfer-Encoding: "chunked"', 400),
        (b"Transfer-Encoding: chunked\r\nContent-Encoding: gzip", 415),
        (b"Transfer-Encoding: chunked\r\nContent-Encoding: identity", 200),
    ],
)
def test_only_plain_codings_of_a_body_are_accepted(toy: Running, header: bytes, status: int) -> None:
    body = json.dumps({"prompt": "a", "max_tokens": 1}).encode()
    head = POST + b"Connection: close\r\n" + header + b"\r\n\r\n"
    assert status_of(toy.url, head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)) == status


@pytest.mark.parametrize("stream", [False, True])
def test_an_http_1_0_client_gets_no_chunks(toy: Running, stream: bool) -> None:
    body = json.dumps({"prompt": "abc", "max_tokens": 9, "stream": stream}).encode()
    with connected(toy.url) as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
            % (len(body), body)
        )
        head, _, answer = answered(connection).partition(b"\r\n\r\n")
    assert b"chunked" not in head
    assert answer.startswith(b"data: {" if stream else b"{")
    assert answer.endswith(b"data: [DONE]\n\n" if stream else b"}")


def test_no_redirect_is_built_from_the_host_header(http: httpx.Client) -> None:
    listed = http.get("/v1/models/", headers={"host": "evil.localhost"})
    assert listed.status_code == 200
    assert listed.json() == http.get("/v1/models").json()
    for path in ("/health/", "/v1/completions/", "/metrics/"):
        assert http.get(path, headers={"host": "evil.localhost"}).status_code == 404


def test_beyond_the_limit_of_connections_the_one_that_waits_longest_makes_room() -> None:
    with running_server(connections=6) as server, ExitStack() as stack:
        idle = [stack.enter_context(connected(server.url)) for _ in range(30)]
        with httpx.Client(base_url=server.url, timeout=DEADLINE_SECONDS) as http:
            assert complete(http, "abc", max_tokens=3)["choices"][0]["text"] == "abc"
        for connection in idle[:20]:
            assert answered(connection) == b""


def test_connections_that_are_being_answered_do_not_make_room() -> None:
    with running_server(connections=3) as server, ExitStack() as stack:
        busy = [stack.enter_context(connected(server.url)) for _ in range(3)]
        for connection in busy:
            post(connection, prompt="STALL", stream=True, max_tokens=100)
            read_until(connection, b'"text":"')
        assert status_of(server.url, GET + b"\r\n") == 503
        busy[0].close()
        until(lambda: status_of(server.url, GET + b"Connection: close\r\n\r\n") == 200)


def test_few_descriptors_do_not_keep_an_engine_from_being_replaced() -> None:
    """In a process of its own, because a hard limit cannot be raised again."""
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64));"
        "from tests.server.test_connections import crowded; crowded()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=DEADLINE_SECONDS)


def crowded() -> None:
    """Half-open connections fill a server that has 64 descriptors; then its engine dies."""
    with running_server() as server, ExitStack() as stack:
        for _ in range(45):  # this process has 64 descriptors, too
            stack.enter_context(connected(server.url)).sendall(GET)
        with httpx.Client(base_url=server.url, timeout=DEADLINE_SECONDS) as http:
            before = complete(http, "abc", max_tokens=3)["choices"]
            http.post("/v1/completions", json={"prompt": "EXIT", "max_tokens": 9})
            assert complete(http, "abc", max_tokens=3)["choices"] == before
            assert samples(http)["transom:engine_restarts_total"] >= 1
        assert is_alive(server.process.pid)

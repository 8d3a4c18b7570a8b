"""HTTP by hand, over one connection that is never opened again."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from tests.over_http import DEADLINE_SECONDS

POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
"""The head of a request for a completion, up to its length."""


def connected(url: str) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=DEADLINE_SECONDS)


def post(connection: socket.socket, **body: object) -> None:
    """Ask for a completion."""
    content = json.dumps(body).encode()
    connection.sendall(POST + b"Content-Length: %d\r\n\r\n%s" % (len(content), content))


@contextmanager
def stalled(url: str, *, stream: bool) -> Iterator[socket.socket]:
    """A connection with a request that does not end by itself."""
    with connected(url) as connection:
        post(connection, prompt="STALL", stream=stream, max_tokens=100)
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

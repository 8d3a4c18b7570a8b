"""Bounds on connections: uvicorn's HTTP protocol, with limits on what a client sends, owes and leaves unread.

`HttpServer` calls `Connection.look` of every connection ten times a second. A look compares the connection
with the one before. If the client owes something and has made no progress for too long, the connection is
closed. One look for all limits needs no timer per connection, and no clock in the tests.
"""

import asyncio
import os
import resource
import select
import time
from dataclasses import dataclass
from enum import Enum
from typing import Any

import httptools
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from transom.errors import ConfigError
from transom.limits import LIMITS, Limits
from transom.server.errors import Problem, unavailable

FEED_BYTES = LIMITS.head_bytes
"""The parser gets at most this much at a time, so that a head in progress is measured between two feeds."""
PROGRESS_BYTES = 64 << 10
"""A client that sends or reads this much within the time allowed makes progress."""
SPARE_DESCRIPTORS = 16
"""For the sockets and pipes of an engine's start, files of the log, and connections about to be refused."""
POLLRDHUP = getattr(select, "POLLRDHUP", 0)
"""The peer has closed its side. Linux reports it also while unread bytes precede the end."""


class Owed(Enum):
    """What a connection waits for. Values are the words of a time-out."""

    REQUEST = "a request"
    HEAD = "the headers of the request"
    BODY = "the body of the request"
    READING = "the client to read"
    CLOSING = "the client to read the end"


def connections_max(limits: Limits) -> int:
    """The connections that the descriptors of this process allow, at most `limits.connections`.

    Raises the soft limit of descriptors if the hard one permits. ConfigError if no connection is possible.
    """
    used = len(os.listdir("/dev/fd")) + SPARE_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = used + limits.connections
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    allowed = limits.connections if soft == resource.RLIM_INFINITY else min(limits.connections, soft - used)
    if allowed < 1:
        raise ConfigError(
            f"the limit of open files (ulimit -n) is {soft}; the server needs {used + 1} for one connection"
        )
    return allowed


class RefusedRequest(Exception):
    """A request that is answered before it reaches the application; its connection is closed."""

    def __init__(self, status: int, message: str, code: str) -> None:
        super().__init__(message)
        self.problem = Problem(status, message, "invalid_request_error", None, code)


@dataclass(frozen=True, slots=True)
class Seen:
    """A connection at a look. Two equal ones in a row mean that the client has made no progress."""

    owed: Owed | None
    message: int
    progress: int


class Connection(HttpToolsProtocol):
    """One client's connection. Mutable; belongs to the event loop."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        limits: Limits = LIMITS,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.limits = limits
        self.messages = 0
        """Requests that have begun."""
        self._in_head = self._in_body = False
        self._head_bytes = 0
        self._body_bytes = 0
        self._refusal: Problem | None = None
        self._active: RequestResponseCycle | None = None
        """The request that is being answered, or was answered last. `cycle` is the newest one."""
        self._seen = Seen(Owed.HEAD, 0, 0)
        self.since = time.monotonic()
        """When the client last made progress, as seen by a look."""

    # ---------------------------------------------------------------- asyncio's callbacks

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections:
            others = [one for one in self.connections if isinstance(one, Connection) and one is not self]
            if not make_room(others):
                self._refuse(unavailable("too many connections are open"))

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        # uvicorn tells only the newest of the requests that a client has pipelined.
        for cycle in (self._active, *(cycle for cycle, _ in self.pipeline)):
            if cycle is not None:
                cycle.disconnected = True
                cycle.message_event.set()

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        view = memoryview(data)
        try:
            for start in range(0, len(data), FEED_BYTES):
                self._feed(view[start : start + FEED_BYTES])
        except httptools.HttpParserUpgrade:
            pass  # the request is answered as if it asked for no upgrade
        except (httptools.HttpParserError, RefusedRequest) as error:
            self._refuse(self._refusal or _problem_of(error))

    def _feed(self, data: memoryview) -> None:
        """Parses a piece. A head that begins behind other bytes counts from the next piece on."""
        starts_in_head, messages = not self._in_body, self.messages
        self.parser.feed_data(data)
        if self._in_head and starts_in_head and self.messages <= messages + 1:
            self._head_bytes += len(data)
            self._check_head(self._head_bytes)

    def _check_head(self, size: int) -> None:
        if size >= self.limits.head_bytes:
            self._refused(431, f"the line and headers of the request exceed {self.limits.head_bytes} bytes")

    # ---------------------------------------------------------------- the parser's callbacks

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.messages += 1
        self._in_head = True
        self._head_bytes = self._body_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        if len(self.headers) > self.limits.headers:
            self._refused(431, f"the request has more than {self.limits.headers} headers")

    def on_headers_complete(self) -> None:
        self._in_head, self._in_body = False, True
        self._check_head(len(self.url) + sum(len(name) + len(value) for name, value in self.headers))
        self._check_codings()
        if len(self.pipeline) >= self.limits.pipelined:
            self._refused(400, f"more than {self.limits.pipelined} requests wait on this connection")
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_body = False
        super().on_message_complete()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

    def _check_codings(self) -> None:
        """Refuses a body in a coding that the application does not undo."""
        for name, value in self.headers:
            if name == b"transfer-encoding" and value.strip().lower() != b"chunked":
                # Proxies read unusual spellings differently: the next request would be read from the body.
                self._refused(400, "Transfer-Encoding must be chunked, or absent")
            if name == b"content-encoding" and value.strip().lower() not in (b"", b"identity"):
                self._refused(415, "a body with Content-Encoding is not accepted; send it as it is")

    def _refused(self, status: int, message: str) -> None:
        """Raises out of the parser, which would wrap the exception: it is kept beside."""
        error = RefusedRequest(status, message, _CODES[status])
        self._refusal = error.problem
        raise error

    # ---------------------------------------------------------------- answers

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        if cycle.scope["http_version"] == "1.0":
            app = until_close(app, cycle)
        self._active = cycle
        super()._start_asgi_task(cycle, app)

    def _refuse(self, problem: Problem) -> None:
        """Sends an error and closes. Behind an unfinished answer the error would be read as a part of it."""
        active = self._active
        if active is None or active.response_complete or not active.response_started:
            self.transport.write(_raw(problem))
        self.transport.close()

    # ---------------------------------------------------------------- looks

    def look(self, now: float) -> None:
        """Closes the connection if its client has left, or has owed the same for too long."""
        seen = self._look()
        if self._has_left():
            self.transport.abort()
        elif seen != self._seen:
            self._seen, self.since = seen, now
        elif seen.owed is not None and now - self.since >= self._patience_seconds(seen.owed):
            self._give_up(seen.owed)

    @property
    def owes(self) -> bool:
        """Whether the connection waits for its client, and may be closed to make room."""
        return self._look().owed in (Owed.REQUEST, Owed.HEAD, Owed.BODY)

    def _look(self) -> Seen:
        unread = self.transport.get_write_buffer_size()
        if self.transport.is_closing():
            return Seen(Owed.CLOSING, self.messages, 0)
        if self.flow.write_paused:
            return Seen(Owed.READING, self.messages, unread // PROGRESS_BYTES)
        active = self._active
        if active is not None and not active.response_complete:
            waits = active.more_body and not self.flow.read_paused
            return Seen(Owed.BODY if waits else None, self.messages, self._body_bytes // PROGRESS_BYTES)
        return Seen(Owed.HEAD if self._in_head or not self.messages else Owed.REQUEST, self.messages, 0)

    def _patience_seconds(self, owed: Owed) -> float:
        limits = self.limits
        match owed:
            case Owed.REQUEST:
                return limits.keep_alive_seconds
            case Owed.HEAD:
                return limits.head_seconds
            case Owed.BODY:
                return limits.body_idle_seconds
            case Owed.READING | Owed.CLOSING:
                return limits.write_seconds

    def _give_up(self, owed: Owed) -> None:
        match owed:
            case Owed.REQUEST:
                self.transport.close()
            case Owed.HEAD | Owed.BODY:
                message = f"the server has waited {self._patience_seconds(owed):g} seconds for {owed.value}"
                self._refuse(Problem(408, message, "invalid_request_error", None, "request_timeout"))
            case Owed.READING | Owed.CLOSING:
                self.transport.abort()

    def _has_left(self) -> bool:
        """Whether the client has closed its side while reading is paused, so that its end is not read."""
        if not (POLLRDHUP and self.flow.read_paused) or self.transport.is_closing():
            return False
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket").fileno(), POLLRDHUP)
        return bool(poll.poll(0))


def make_room(connections: list[Connection]) -> bool:
    """Closes the connection that has waited longest for its client. False if each one is being answered."""
    waiting = [one for one in connections if one.owes]
    if not waiting:
        return False
    min(waiting, key=lambda one: one.since).transport.abort()
    return True


def until_close(app: ASGIApp, cycle: RequestResponseCycle) -> ASGIApp:
    """The application for an HTTP/1.0 client, which reads no chunks: the answer ends with the connection."""
    # uvicorn then adds no chunks, and compares the bytes of each piece with the length that is expected.
    cycle.chunked_encoding = False

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_plain(message: Message) -> None:
            if message["type"] == "http.response.body":
                more = bool(message.get("more_body", False))
                cycle.expected_content_length = len(message.get("body", b"")) + more
            await send(message)

        await app(scope, receive, send_plain)

    return answer


_CODES = {400: "invalid_http", 415: "unsupported_content_encoding", 431: "headers_too_large"}


def _problem_of(error: Exception) -> Problem:
    return RefusedRequest(400, "the bytes are not an HTTP request", _CODES[400]).problem


def _raw(problem: Problem) -> bytes:
    """A whole response, for a request that no application answers."""
    body = problem.body()
    headers = {
        "content-type": "application/json",
        "content-length": str(len(body)),
        "connection": "close",
        **problem.headers,
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return b"".join([STATUS_LINE[problem.status], lines.encode(), b"\r\n", body])

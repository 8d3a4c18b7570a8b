"""A minimal HTTP/1.1 client, so that the client adds little to the measured times.

Each request has its own connection. Streams are read as they arrive.
"""

import asyncio
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from urllib.parse import quote, urlsplit

import httptools

from transom.errors import ConfigError

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 900.0
"""A request without a whole answer by then has failed."""

EventCallback = Callable[[bytes, float], None]
"""Called with the text after `data:` in a line of a stream, and its time.perf_counter."""


class Broken(Exception):
    """There is no whole answer: no connection, a connection that closed, or no HTTP. Says which."""


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a server. `base` is the path before `/v1`."""

    host: str
    port: int
    base: str = ""
    tls: bool = False

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}{self.base}"


def address_of(url: str) -> Address:
    """Parses a URL with or without `/v1`, and with or without `http://`. Raises ConfigError."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"{url!r} is not the URL of a server: {error}") from None
    if parts.scheme not in ("http", "https") or not host:
        raise ConfigError(f"{url!r} is not the URL of a server, such as http://127.0.0.1:8000")
    tls = parts.scheme == "https"
    base = quote(parts.path.rstrip("/").removesuffix("/v1"), safe="/%")
    return Address(host, port or (443 if tls else 80), base, tls)


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer. `began`: when the request was sent. The body is empty if a callback got the stream."""

    status: int
    body: bytes
    began: float


async def ask(
    address: Address,
    path: str,
    headers: Mapping[str, str],
    body: bytes | None = None,
    on_event: EventCallback | None = None,
) -> Reply:
    """Sends GET, or POST with a body. Events of a stream with status 200 go to `on_event`. Raises Broken."""
    exchange = _Exchange(on_event)
    try:
        transport = await _connected(address, exchange)
    except Broken:
        exchange.whole.cancel()
        raise
    try:
        began = time.perf_counter()
        transport.write(_request(address, path, headers, body))
        async with asyncio.timeout(ANSWER_SECONDS):
            status, content = await exchange.whole
        return Reply(status, content, began)
    except TimeoutError:
        raise Broken(f"no whole answer within {ANSWER_SECONDS:.0f} s") from None
    finally:
        transport.abort()


async def _connected(address: Address, exchange: "_Exchange") -> asyncio.Transport:
    loop = asyncio.get_running_loop()
    secure = _secure() if address.tls else None
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            made = await loop.create_connection(lambda: exchange, address.host, address.port, ssl=secure)
    except TimeoutError:
        raise Broken(f"no connection within {CONNECT_SECONDS:.0f} s") from None
    except OSError as error:
        raise Broken(f"no server answers there ({error.strerror or error})") from None
    return made[0]


@cache
def _secure() -> ssl.SSLContext:
    """Created once: reading the certificates of a machine takes longer than a token."""
    return ssl.create_default_context()


def _request(address: Address, path: str, headers: Mapping[str, str], body: bytes | None) -> bytes:
    lines = [
        f"{'GET' if body is None else 'POST'} {address.base}{path} HTTP/1.1",
        f"Host: {address.host}:{address.port}",
        "Connection: close",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + (body or b"")


class _Exchange(asyncio.Protocol):
    """Owns the answer while it arrives. Mutable. The parser calls the methods named `on_`."""

    def __init__(self, on_event: EventCallback | None) -> None:
        self.whole: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        self._on_event = on_event
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[bytes, bytes] = {}
        self._has_begun = False
        self._is_stream = False
        self._body = bytearray()
        self._at = 0.0

    def data_received(self, data: bytes) -> None:
        self._at = time.perf_counter()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._break(f"the answer is not HTTP ({error})")

    def connection_lost(self, error: Exception | None) -> None:
        # Without a length, the end of the connection is the end of the answer.
        framed = self._headers.keys() & {b"content-length", b"transfer-encoding"}
        if self._has_begun and not framed and error is None:
            self.on_message_complete()
        where = " within the answer" if self._has_begun else ""
        self._break(f"the connection closed{where}")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        self._has_begun = True
        kind = self._headers.get(b"content-type", b"")
        is_stream = kind.startswith(b"text/event-stream") and self._parser.get_status_code() == 200
        self._is_stream = is_stream and self._on_event is not None

    def on_body(self, piece: bytes) -> None:
        self._body += piece
        if self._is_stream and self._on_event is not None:
            # The last piece may be half a line; it waits for the rest.
            *lines, rest = bytes(self._body).split(b"\n")
            self._body = bytearray(rest)
            for line in lines:
                if line.startswith(b"data:"):
                    self._on_event(line[5:].strip(), self._at)

    def on_message_complete(self) -> None:
        if not self.whole.done():
            body = b"" if self._is_stream else bytes(self._body)
            self.whole.set_result((self._parser.get_status_code(), body))

    def _break(self, reason: str) -> None:
        if not self.whole.done():
            self.whole.set_exception(Broken(reason))

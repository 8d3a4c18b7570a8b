"""A minimal HTTP/1.1 client for measuring: one request per connection, with arrival times of events."""

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
"""A request that takes longer has failed."""

OnEvent = Callable[[bytes, float], None]
"""Called for each `data:` line of an event stream, with its data and its arrival by time.perf_counter."""


class NoResponse(Exception):
    """No complete response: no connection, a connection that broke, or not HTTP. The message says which."""


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
    """The address in a URL with or without `http://` and `/v1`. ConfigError if the URL is not valid."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"{url!r} is not the URL of a server: {error}") from None
    if parts.scheme not in ("http", "https") or not host:
        raise ConfigError(f"{url!r} is not the URL of a server; write for example http://127.0.0.1:8000")
    tls = parts.scheme == "https"
    base = quote(parts.path.rstrip("/").removesuffix("/v1"), safe="/%")
    return Address(host, port or (443 if tls else 80), base, tls)


@dataclass(frozen=True, slots=True)
class Response:
    """A complete response. `sent_at`: when the request was sent. A stream with a callback has no body."""

    status: int
    body: bytes
    sent_at: float


async def request(
    address: Address,
    path: str,
    headers: Mapping[str, str],
    body: bytes | None = None,
    on_event: OnEvent | None = None,
) -> Response:
    """GET, or POST with a body. Events of a stream with status 200 go to `on_event`. Raises NoResponse."""
    exchange = _Exchange(on_event)
    try:
        transport = await _connected(address, exchange)
    except NoResponse:
        exchange.complete.cancel()
        raise
    try:
        sent_at = time.perf_counter()
        transport.write(_encoded(address, path, headers, body))
        async with asyncio.timeout(ANSWER_SECONDS):
            status, content = await exchange.complete
        return Response(status, content, sent_at)
    except TimeoutError:
        raise NoResponse(f"no complete response within {ANSWER_SECONDS:.0f} s") from None
    finally:
        transport.abort()


async def _connected(address: Address, exchange: "_Exchange") -> asyncio.Transport:
    loop = asyncio.get_running_loop()
    tls = _tls_context() if address.tls else None
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            created = await loop.create_connection(lambda: exchange, address.host, address.port, ssl=tls)
    except TimeoutError:
        raise NoResponse(f"no connection within {CONNECT_SECONDS:.0f} s") from None
    except OSError as error:
        raise NoResponse(f"no server answers ({error.strerror or error})") from None
    return created[0]


@cache
def _tls_context() -> ssl.SSLContext:
    """Created once: reading the machine's certificates takes longer than generating a token."""
    return ssl.create_default_context()


def _encoded(address: Address, path: str, headers: Mapping[str, str], body: bytes | None) -> bytes:
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
    """Parses the response as it arrives. Mutable. The parser calls the methods named `on_`."""

    def __init__(self, on_event: OnEvent | None) -> None:
        self.complete: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        self._on_event = on_event
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[bytes, bytes] = {}
        self._has_headers = False
        self._streams = False
        self._body = bytearray()
        self._arrived_at = 0.0

    def data_received(self, data: bytes) -> None:
        self._arrived_at = time.perf_counter()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._break(f"the server does not speak HTTP ({error})")

    def connection_lost(self, error: Exception | None) -> None:
        # A response without a length ends with its connection.
        framed = self._headers.keys() & {b"content-length", b"transfer-encoding"}
        if self._has_headers and not framed and error is None:
            self.on_message_complete()
        self._break(
            "the connection closed in the middle of the response"
            if self._has_headers
            else "the connection closed"
        )

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        self._has_headers = True
        kind = self._headers.get(b"content-type", b"")
        is_stream = kind.startswith(b"text/event-stream") and self._parser.get_status_code() == 200
        self._streams = is_stream and self._on_event is not None

    def on_body(self, piece: bytes) -> None:
        self._body += piece
        if self._streams and self._on_event is not None:
            *lines, rest = bytes(self._body).split(b"\n")
            self._body = bytearray(rest)
            for line in lines:
                if line.startswith(b"data:"):
                    self._on_event(line[5:].strip(), self._arrived_at)

    def on_message_complete(self) -> None:
        if not self.complete.done():
            body = b"" if self._streams else bytes(self._body)
            self.complete.set_result((self._parser.get_status_code(), body))

    def _break(self, why: str) -> None:
        if not self.complete.done():
            self.complete.set_exception(NoResponse(why))

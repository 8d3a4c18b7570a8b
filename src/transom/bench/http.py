"""HTTP/1.1 for measuring: one request on a connection of its own, the answer heard as it comes."""

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
"""After which a request has failed, whatever has come."""

Heard = Callable[[bytes, float], None]
"""Told of what follows `data:` in a line of a stream, and when it came, by time.perf_counter."""


class Broken(Exception):
    """There is no answer: nobody is there, it broke off, or it is not HTTP. The message says which."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is. `base` is the path before `/v1`."""

    host: str
    port: int
    base: str = ""
    tls: bool = False

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}{self.base}"


def address_of(url: str) -> Address:
    """Of an URL with or without `/v1`, and with or without `http://`. ConfigError."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"{url!r} is not the URL of a server: {error}") from None
    if parts.scheme not in ("http", "https") or not host:
        raise ConfigError(f"{url!r} is not the URL of a server, as http://127.0.0.1:8000 is")
    tls = parts.scheme == "https"
    base = quote(parts.path.rstrip("/").removesuffix("/v1"), safe="/%")
    return Address(host, port or (443 if tls else 80), base, tls)


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer. `began` is when the request was sent; a stream that was heard has no body."""

    status: int
    body: bytes
    began: float


async def ask(
    address: Address,
    path: str,
    headers: Mapping[str, str],
    body: bytes | None = None,
    heard: Heard | None = None,
) -> Reply:
    """GET, or POST with a body. An event stream with status 200 goes to `heard`, if anybody is. Broken."""
    exchange = _Exchange(heard)
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
        raise Broken(f"nobody answers there ({error.strerror or error})") from None
    return made[0]


@cache
def _secure() -> ssl.SSLContext:
    """Made once: reading the certificates of a machine takes longer than a token."""
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
    """Owns the answer as it comes. Mutable; its parser calls the methods named `on_`."""

    def __init__(self, heard: Heard | None) -> None:
        self.whole: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        self._heard = heard
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[bytes, bytes] = {}
        self._begun = False
        self._streams = False
        self._body = bytearray()
        self._at = 0.0

    def data_received(self, data: bytes) -> None:
        self._at = time.perf_counter()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._break(f"what answers there does not speak HTTP ({error})")

    def connection_lost(self, error: Exception | None) -> None:
        # Without a length the end of the connection is the end of the answer.
        framed = self._headers.keys() & {b"content-length", b"transfer-encoding"}
        if self._begun and not framed and error is None:
            self.on_message_complete()
        self._break("the connection closed within the answer" if self._begun else "the connection closed")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        self._begun = True
        kind = self._headers.get(b"content-type", b"")
        is_stream = kind.startswith(b"text/event-stream") and self._parser.get_status_code() == 200
        self._streams = is_stream and self._heard is not None

    def on_body(self, piece: bytes) -> None:
        self._body += piece
        if self._streams and self._heard is not None:
            *lines, rest = bytes(self._body).split(b"\n")
            self._body = bytearray(rest)
            for line in lines:
                if line.startswith(b"data:"):
                    self._heard(line[5:].strip(), self._at)

    def on_message_complete(self) -> None:
        if not self.whole.done():
            body = b"" if self._streams else bytes(self._body)
            self.whole.set_result((self._parser.get_status_code(), body))

    def _break(self, why: str) -> None:
        if not self.whole.done():
            self.whole.set_exception(Broken(why))

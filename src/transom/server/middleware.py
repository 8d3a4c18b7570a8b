"""ASGI middleware: request ids and API-key authentication."""

import hashlib
import hmac
import time
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from transom.limits import LIMITS
from transom.server.errors import Problem
from transom.server.fields import IGNORED, IGNORED_HEADER
from transom.server.request_log import ARRIVAL, REQUEST_ID, log_refusal

OPEN_PATHS = frozenset({"/health"})
"""Endpoints without authentication: load balancers and process monitors have no key."""


class RequestIds:
    """Sets an x-request-id on every response: the client's own if it is short, printable ASCII.

    A response to a body with unknown fields also gets a header that names them.

    The ASGI scope gets the id and the time of arrival, for the request log.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        header = (b"x-request-id", _request_id(scope))
        scope[REQUEST_ID] = header[1].decode("ascii")
        scope[ARRIVAL] = time.perf_counter()

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], header]
                if IGNORED in scope:
                    message["headers"].append((IGNORED_HEADER, scope[IGNORED].encode("ascii")))
            await send(message)

        await self._app(scope, receive, send_with_id)


def _request_id(scope: Scope) -> bytes:
    for name, value in scope["headers"]:
        if name == b"x-request-id" and len(value) <= LIMITS.request_id_bytes and value.isascii():
            text = value.decode("ascii")
            if text.isprintable() and text:
                return bytes(value)
    return uuid.uuid4().hex.encode()


class Peers:
    """Sets the client's address: the peer's, or the one that a trusted proxy has written in X-Forwarded-For.

    Behind proxies, the address is the last one in the header that is not a trusted proxy's: a client can put
    anything before it. The peer of a Unix socket is called `unix`.
    """

    def __init__(self, app: ASGIApp, trusted: Sequence[str]) -> None:
        behind: Any = ProxyHeadersMiddleware(app, list(trusted))  # type: ignore[arg-type]
        self._app: ASGIApp = behind if trusted else app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("client") is None:
            scope["client"] = ("unix", 0)
        await self._app(scope, receive, send)


class RootPath:
    """Takes `--root-path` off the paths of requests, for a proxy that forwards `/llm/v1/models` unchanged.

    A proxy may as well take it off itself: paths without the prefix are served too. All layers inside see the
    same path in both cases, so a rule for a path cannot be passed by with the prefix.
    """

    def __init__(self, app: ASGIApp, root: str) -> None:
        self._app = app
        self._root = root

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._root and scope["type"] == "http" and scope["path"].startswith(f"{self._root}/"):
            raw = scope["raw_path"].removeprefix(self._root.encode("ascii"))
            scope = {**scope, "path": scope["path"].removeprefix(self._root), "raw_path": raw}
        await self._app(scope, receive, send)


class ApiKeys:
    """API-key authentication by `Authorization: Bearer KEY`. Requests without a valid key get 401.

    Only digests of keys are kept. They are compared in constant time, so that response times reveal nothing
    about a key.
    """

    def __init__(self, app: ASGIApp, keys: Iterable[str]) -> None:
        self._app = app
        self._digests = [_digest(key.encode()) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            scheme, _, key = Request(scope).headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not self._is_known(key.strip()):
                problem = _unknown_key() if key else _missing_key()
                log_refusal(scope, problem)
                await problem.response()(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _is_known(self, key: str) -> bool:
        digest = _digest(key.encode("latin-1"))  # starlette decodes headers as latin-1
        # A list, not a generator: `any` must compare with all keys, or the time would tell which one matched.
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return any(matches)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _missing_key() -> Problem:
    return _unauthorized("this server requires an API key: send the header Authorization: Bearer KEY")


def _unknown_key() -> Problem:
    return _unauthorized("the API key is not one of this server's keys")


def _unauthorized(message: str) -> Problem:
    headers = {"www-authenticate": "Bearer"}
    return Problem(401, message, "invalid_request_error", None, "invalid_api_key", headers)

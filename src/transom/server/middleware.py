"""ASGI middleware: request ids and API-key authentication."""

import time
import uuid
from collections.abc import Sequence
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from transom.limits import LIMITS
from transom.server.callers import CALLER, Caller, KeyRing
from transom.server.errors import Refused
from transom.server.fields import IGNORED, IGNORED_HEADER
from transom.server.request_log import ARRIVAL, KEY_NAME, REQUEST_ID, log_refusal

OPEN_PATHS = frozenset({"/health", "/ready"})
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
    """API-key authentication by `Authorization: Bearer KEY` or `x-api-key: KEY`.

    Requests without a valid key get 401, if the server requires one. The ASGI scope of all others gets their
    `Caller`.
    """

    def __init__(self, app: ASGIApp, keys: KeyRing) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                caller = scope[CALLER] = self._caller(scope)
                scope[KEY_NAME] = caller.key or None
            except Refused as error:
                log_refusal(scope, error.problem)
                await error.problem.response()(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _caller(self, scope: Scope) -> Caller:
        if scope["path"] in OPEN_PATHS:
            return Caller()
        headers = Headers(scope=scope)
        scheme, _, secret = headers.get("authorization", "").partition(" ")
        # A proxy may use Authorization for itself: with another scheme, the key is in the other header.
        key = secret if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        return self._keys.caller(key.strip() or None)

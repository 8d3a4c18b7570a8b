"""Who may ask, where keys are asked for."""

import hashlib
import hmac
from collections.abc import Iterable

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from transom.server.errors import Problem
from transom.server.request_log import log_refusal

OPEN_PATHS = frozenset({"/health"})
"""For whoever watches over the server, and knows no key."""


class Keys:
    """Lets in who brings one of `keys`: `Authorization: Bearer KEY`. Others get 401.

    Digests are kept and compared, in a time that does not tell how much of a key was right.
    """

    def __init__(self, app: ASGIApp, keys: Iterable[str]) -> None:
        self._app = app
        self._digests = [_digest(key.encode()) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            scheme, _, key = Request(scope).headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not self._is_known(key.strip()):
                problem = _unknown() if key else _missing()
                log_refusal(scope, problem)
                await problem.response()(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _is_known(self, key: str) -> bool:
        digest = _digest(key.encode("latin-1"))  # as headers are decoded
        found = [hmac.compare_digest(digest, known) for known in self._digests]
        return any(found)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _missing() -> Problem:
    return _unauthorized("this server asks for a key: send the header Authorization: Bearer KEY")


def _unknown() -> Problem:
    return _unauthorized("the key that was sent is not one of this server's")


def _unauthorized(message: str) -> Problem:
    headers = {"www-authenticate": "Bearer"}
    return Problem(401, message, "invalid_request_error", None, "invalid_api_key", headers)

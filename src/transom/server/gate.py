"""Checks of a request's head, before its body is read: against web pages that misuse a visitor's browser.

A page of any site can make its visitor's browser send requests to a server on the visitor's machine. The
browser tells where they come from: `Origin` names the page's site, and `Host` the name that was resolved to
this machine, which is the attacker's own in DNS rebinding. A body that is not declared as JSON can be sent
without a preflight; JSON cannot.
"""

from collections.abc import Collection
from dataclasses import dataclass
from ipaddress import ip_address

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from transom.config import ServerConfig
from transom.server.errors import Problem, forbidden
from transom.server.fields import IGNORED_HEADER
from transom.server.request_log import log_refusal

JSON = "application/json"
SHOWN_CHARACTERS = 100
PREFLIGHT_SECONDS = 600
"""Time for which a browser need not ask again. Chromium's own limit is two hours."""


def behind_gate(app: ASGIApp, config: ServerConfig, *, checks_host: bool) -> ASGIApp:
    """The application with all checks before it. `checks_host`: the address is a loopback one."""
    app = JsonBodies(app)
    if config.cors_origins:
        # It stands outside of the check above, so that a page can read each refusal.
        app = CORSMiddleware(
            app,
            allow_origins=config.cors_origins,
            allow_methods=("GET", "POST"),
            allow_headers=("*",),
            expose_headers=("x-request-id", "retry-after", IGNORED_HEADER.decode()),
            max_age=PREFLIGHT_SECONDS,
        )
    origins = Origins(frozenset(config.cors_origins))
    hosts = Hosts(frozenset(config.allowed_hosts)) if checks_host or config.allowed_hosts else None
    return Gate(app, origins, hosts)


@dataclass(frozen=True, slots=True)
class Hosts:
    """The names under which the server answers: names of loopback, and those of --allowed-host."""

    allowed: frozenset[str]

    def refusal(self, hosts: Collection[str]) -> str | None:
        """Why a request with these Host headers is refused. A client of HTTP/1.0 may have none."""
        if not hosts:
            return None
        host = next(iter(hosts)) if len(hosts) == 1 else ""
        name = _name(host)
        if name in self.allowed or _is_loopback(name):
            return None
        return (
            f"Host is {host[:SHOWN_CHARACTERS]!r}; this server answers under names of loopback, "
            "such as localhost, and those of --allowed-host"
        )


def _name(host: str) -> str:
    """The name in `name:port`, in lower case; of an IPv6 address without its brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower().removesuffix(".")


def _is_loopback(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):  # RFC 6761: always this machine
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class Origins:
    """The sites whose pages may send requests: those of --cors-origin, and this server's own site."""

    allowed: frozenset[str]

    def refusal(self, origins: Collection[str], hosts: Collection[str]) -> str | None:
        """Why a request is refused. Programs other than browsers send no Origin."""
        if not origins or "*" in self.allowed:
            return None
        origin = next(iter(origins)) if len(origins) == 1 else ""
        # Behind a proxy, a page and the API may be one site. `Hosts` has excluded a site of an attacker.
        site = origin.lower().partition("://")[2]
        is_own = bool(site) and len(hosts) == 1 and site == next(iter(hosts)).lower()
        if is_own or origin.lower() in self.allowed:
            return None
        return (
            f"Origin is {origin[:SHOWN_CHARACTERS]!r}; pages of this site may not use this server: "
            "start it with --cors-origin to allow them"
        )


class Gate:
    """Refuses requests to a foreign name, and those of foreign web pages, with 403."""

    def __init__(self, app: ASGIApp, origins: Origins, hosts: Hosts | None) -> None:
        self._app = app
        self._origins = origins
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (problem := self._refusal(Headers(scope=scope))) is not None:
            log_refusal(scope, problem)
            await problem.response()(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _refusal(self, headers: Headers) -> Problem | None:
        names = headers.getlist("host")
        if self._hosts is not None and (reason := self._hosts.refusal(names)) is not None:
            return forbidden(reason, code="host_not_allowed").problem
        if (reason := self._origins.refusal(headers.getlist("origin"), names)) is not None:
            return forbidden(reason, code="origin_not_allowed").problem
        return None


class JsonBodies:
    """Refuses a body that is not declared as JSON, with 415: a page can send such a body unasked."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] not in ("GET", "HEAD", "OPTIONS"):
            headers = Headers(scope=scope)
            types = headers.getlist("content-type")
            if _has_body(headers) and not (len(types) == 1 and _is_json(types[0])):
                problem = _not_json(types)
                log_refusal(scope, problem)
                await problem.response()(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _has_body(headers: Headers) -> bool:
    return "transfer-encoding" in headers or headers.get("content-length", "0").strip("0") != ""


def _is_json(content_type: str) -> bool:
    kind, _, parameters = content_type.lower().partition(";")
    charset = parameters.strip().removeprefix("charset=").strip('"')
    return kind.strip() == JSON and charset in ("", "utf-8", "utf8")


def _not_json(types: list[str]) -> Problem:
    shown = ", ".join(types)[:SHOWN_CHARACTERS]
    message = f"Content-Type is {shown!r}; it must be {JSON}, in UTF-8"
    return Problem(415, message, "invalid_request_error", None, "unsupported_media_type")

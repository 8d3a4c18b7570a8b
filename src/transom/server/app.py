"""The ASGI application: routes, error shapes, request ids."""

import hashlib
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from transom.config import ServerConfig
from transom.engine.supervisor import Supervisor
from transom.errors import BadRequest, EngineDied
from transom.server import protocol
from transom.server.admin import Operations
from transom.server.errors import (
    Problem,
    Refused,
    bad_request,
    not_found,
    problem_of,
    too_large,
    unavailable,
)
from transom.server.generation import GenerationResponse, Going, Job
from transom.server.input_processor import Intake
from transom.server.metrics import Metrics
from transom.server.middleware import Keys
from transom.server.request_log import ARRIVAL, REQUEST_ID, Account, log_refusal
from transom.server.responses import json_response

REQUEST_ID_BYTES_MAX = 128
TIMEOUT_HEADER = "x-request-timeout"
"""Seconds after which a request ends with what it has; the field `timeout` in the body goes before it."""

Asked = TypeVar("Asked", bound=protocol.Generation)


@dataclass(frozen=True, slots=True)
class Service:
    """The endpoints, and what they need."""

    engine: Supervisor
    intake: Intake
    metrics: Metrics
    config: ServerConfig
    going: Going = field(default_factory=Going)
    created: int = field(default_factory=lambda: int(time.time()))

    def routes(self) -> list[Route]:
        return [
            Route("/v1/completions", self.completions, methods=["POST"]),
            Route("/v1/chat/completions", self.chat_completions, methods=["POST"]),
            Route("/v1/models", self.models),
            Route("/v1/models/{model:path}", self.model),
            Route("/health", self.health),
            Route("/metrics", self.metrics_text),
            *Operations(self.engine, self.going, self._body).routes(),
        ]

    async def completions(self, request: Request) -> GenerationResponse:
        return await self._generation(request, protocol.decode_completion, self.intake.completion)

    async def chat_completions(self, request: Request) -> GenerationResponse:
        return await self._generation(request, protocol.decode_chat, self.intake.chat)

    async def models(self, request: Request) -> Response:
        return json_response({"object": "list", "data": [self._model_card()]})

    async def model(self, request: Request) -> Response:
        name = request.path_params["model"]
        if name != self.intake.served_name:
            raise not_found(
                f"the model {name[:200]!r} is not served here; {self.intake.served_name!r} is",
                "model",
                "model_not_found",
            )
        return json_response(self._model_card())

    async def health(self, request: Request) -> Response:
        """Whether the engine lives and moves. Never waits for it."""
        if self.engine.trouble is not None:
            return unavailable(self.engine.trouble).response()
        stalled = self.engine.client.stalled_seconds()
        if stalled > self.config.stalled_seconds_max:
            return unavailable(f"the engine has not finished a step for {stalled:.0f} seconds").response()
        return json_response({"status": "ok"})

    async def metrics_text(self, request: Request) -> Response:
        return Response(self.metrics.text(), headers={"content-type": CONTENT_TYPE_LATEST})

    async def _generation(
        self, request: Request, decode: Callable[[bytes], Asked], take: Callable[[Asked], Awaitable[Job]]
    ) -> GenerationResponse:
        """What a request's body, decoded and taken in, is answered with. Refused or BadRequest."""
        try:
            asked = protocol.decoded(decode, await self._body(request))
            job = await take(_named(_timed(asked, request), request))
        except (Refused, BadRequest) as error:
            log_refusal(request.scope, problem_of(error))
            raise
        account = Account(job.answers, job.prompt_tokens, request.scope, self.metrics)
        return GenerationResponse(job, self.engine, account, self.going)

    def _model_card(self) -> dict[str, object]:
        return {
            "id": self.intake.served_name,
            "object": "model",
            "created": self.created,
            "owned_by": "transom",
            "max_model_len": self.intake.context,
        }

    async def _body(self, request: Request) -> bytes:
        """The whole body, or 413 as soon as it is known to be too large."""
        limit = self.config.body_bytes_max
        declared = request.headers.get("content-length", "")
        if declared.isdigit() and int(declared) > limit:
            raise too_large(f"the body has {declared[:30]} bytes; at most {limit} are accepted")
        pieces, size = [], 0
        async for piece in request.stream():
            size += len(piece)
            if size > limit:
                raise too_large(f"the body has more than {limit} bytes, the most that is accepted")
            pieces.append(piece)
        return b"".join(pieces)


def build_app(service: Service) -> ASGIApp:
    """The application for one running engine."""
    handlers: dict[Any, Any] = {
        HTTPException: _http_problem,
        ClientDisconnect: _nobody,
        Exception: _problem,
        Refused: _problem,
        EngineDied: _problem,
        BadRequest: _problem,
    }
    app: ASGIApp = Starlette(routes=service.routes(), exception_handlers=handlers)
    keys = service.config.api_keys
    return RequestIds(Keys(app, keys) if keys else app)


async def _problem(request: Request, error: Exception) -> Response:
    return problem_of(error).response()


async def _nobody(request: Request, error: Exception) -> Response:
    """The client left while sending its body; nobody reads this."""
    return Response(status_code=400)


async def _http_problem(request: Request, error: HTTPException) -> Response:
    """Starlette's own: no such route, or not with this method."""
    words = {
        404: f"there is no {request.url.path}",
        405: f"{request.url.path} does not take {request.method}",
    }
    message = words.get(error.status_code, error.detail)
    headers = dict(error.headers or {})
    return Problem(error.status_code, message, "invalid_request_error", None, None, headers).response()


def _named(decoded: Asked, request: Request) -> Asked:
    """With a digest of the key that was sent for `user`, where the body has none: no key is kept."""
    key = request.headers.get("authorization")
    if key is not None and not decoded.user:
        decoded.user = f"key {hashlib.sha256(key.encode()).hexdigest()[:16]}"
    return decoded


def _timed(decoded: Asked, request: Request) -> Asked:
    """With the header's timeout, where the body has none."""
    header = request.headers.get(TIMEOUT_HEADER)
    if header is None or decoded.timeout is not None:
        return decoded
    try:
        decoded.timeout = float(header)
    except ValueError:
        reason = f"the header {TIMEOUT_HEADER} is {header[:30]!r}; it must be a number of seconds"
        raise bad_request(reason, "timeout") from None
    return decoded


class RequestIds:
    """Gives every response an x-request-id: the client's own if it sent a sane one. The scope has it, too."""

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
            await send(message)

        await self._app(scope, receive, send_with_id)


def _request_id(scope: Scope) -> bytes:
    for name, value in scope["headers"]:
        if name == b"x-request-id" and len(value) <= REQUEST_ID_BYTES_MAX and value.isascii():
            text = value.decode("ascii")
            if text.isprintable() and text:
                return bytes(value)
    return uuid.uuid4().hex.encode()

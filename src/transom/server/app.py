"""The ASGI application: routes and error handlers."""

import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from transom.config import ServerConfig
from transom.engine.supervisor import Supervisor
from transom.errors import BadRequest, EngineDied
from transom.server import protocol
from transom.server.admin import Admin
from transom.server.callers import KeyRing, caller_of
from transom.server.doors import Doors
from transom.server.errors import (
    Problem,
    Refused,
    bad_request,
    model_not_found,
    problem_of,
    too_large,
    unavailable,
)
from transom.server.fields import IGNORED, IgnoredFields
from transom.server.gate import behind_gate
from transom.server.generation import Disconnected, GenerationResponse, InFlight, unless_disconnected
from transom.server.input_processor import InputProcessor
from transom.server.metrics import Metrics
from transom.server.middleware import OPEN_PATHS, ApiKeys, RequestIds
from transom.server.output_processor import Generation
from transom.server.protocol import GenerationRequest
from transom.server.queue_bounds import Load, QueueBounds
from transom.server.request_log import Asked, RequestLog, log_refusal
from transom.server.responses import json_response

TIMEOUT_HEADER = "x-request-timeout"
"""Seconds after which a request ends with the output so far. The body's field `timeout` takes precedence."""

T = TypeVar("T", bound=msgspec.Struct)
AnyRequest = TypeVar("AnyRequest", bound=GenerationRequest)


@dataclass(frozen=True, slots=True)
class Service:
    """The endpoints, and the objects that they share."""

    engine: Supervisor
    processor: InputProcessor
    metrics: Metrics
    config: ServerConfig
    keys: KeyRing
    queue: QueueBounds = field(default_factory=QueueBounds)
    is_stopping: Callable[[], bool] = bool
    """Whether the server has been asked to stop."""
    in_flight: InFlight = field(default_factory=InFlight)
    ignored: IgnoredFields = field(default_factory=IgnoredFields)
    created: int = field(default_factory=lambda: int(time.time()))

    def routes(self) -> list[Route]:
        return [
            Route("/v1/completions", self.completions, methods=["POST"]),
            Route("/v1/chat/completions", self.chat_completions, methods=["POST"]),
            Route("/v1/models", self.models),
            Route("/v1/models/", self.models),
            Route("/v1/models/{model:path}", self.model),
            Route("/health", self.health),
            Route("/ready", self.readiness),
            Route("/metrics", self.metrics_text),
            *Doors(self.processor, self._read_command).routes(),
            *self._admin().routes(),
        ]

    def open_endpoints(self) -> list[str]:
        """Paths that are served without a key."""
        if self.config.requires_key:
            return sorted(OPEN_PATHS)
        closed = set() if self.keys.has_open_commands else self._admin().commands().keys()
        return sorted({route.path for route in self.routes()} - closed)

    def _admin(self) -> Admin:
        return Admin(self.engine, self.in_flight, self._read_command, self.config.weights_dir)

    async def completions(self, request: Request) -> GenerationResponse:
        return await self._generate(request, protocol.read_completion, self.processor.completion)

    async def chat_completions(self, request: Request) -> GenerationResponse:
        return await self._generate(request, protocol.read_chat, self.processor.chat)

    async def models(self, request: Request) -> Response:
        return json_response({"object": "list", "data": [self._model_card()]})

    async def model(self, request: Request) -> Response:
        name = request.path_params["model"]
        if name != self.processor.served_name:
            raise model_not_found(name, self.processor.served_name)
        return json_response(self._model_card())

    async def health(self, request: Request) -> Response:
        """200 if the engine is up and makes progress. Responds at once: it never waits for the engine."""
        return _status(self._trouble())

    async def readiness(self, request: Request) -> Response:
        """200 if a request that is sent now would be computed now: not while paused, draining or starting."""
        leaving = "the server is shutting down" if self.is_stopping() else None
        return _status(leaving or self._trouble() or self.engine.client.hold_up)

    def _trouble(self) -> str | None:
        if self.engine.trouble is not None:
            return self.engine.trouble
        stalled = self.engine.client.stalled_seconds()
        if stalled > self.config.limits.stalled_seconds:
            return f"the engine has not finished a step for {stalled:.0f} seconds"
        return None

    async def metrics_text(self, request: Request) -> Response:
        caller = caller_of(request.scope)
        if caller.shares_prefixes and len(self.keys.names) > 1:
            caller.require_command()  # its sums have exact counts of cached tokens
        return Response(self.metrics.text(), headers={"content-type": CONTENT_TYPE_LATEST})

    async def _generate(
        self,
        request: Request,
        reader: protocol.Reader[AnyRequest],
        process: Callable[[AnyRequest], Coroutine[Any, Any, Generation]],
    ) -> GenerationResponse:
        """The response to a completion or chat request. Refused or BadRequest if it cannot be served."""
        try:
            body = self._decoded(request, reader, await self._read_body(request))
            caller = caller_of(request.scope)
            caller.require_priority(body.priority)
            # A full queue is told before any work on the prompt; then with its real size.
            self.queue.check(caller.key, Load(outputs=1))
            _set_default_timeout(body, request)
            generation = await unless_disconnected(request.receive, process(body))
            generation = replace(
                generation,
                requests=tuple(map(caller.claim, generation.requests)),
                # In a common cache, exact counts would spell another key's prompt, token by token.
                cached_unit=self.engine.ready.page_size if caller.shares_prefixes else 1,
            )
            self.queue.check(caller.key, generation.load)
        except Disconnected as error:
            raise ClientDisconnect from error
        except (Refused, BadRequest) as error:
            # Later errors are logged by RequestLog; this request does not reach it.
            log_refusal(request.scope, problem_of(error))
            raise
        prompts = len(generation.requests)
        asked = Asked(
            self.processor.served_name, prompts, len(generation.outputs) // prompts, generation.prompt_tokens
        )
        request_log = RequestLog(asked, generation.outputs, request.scope, self.metrics)
        held = self.queue.hold(caller.key, generation.load)
        return GenerationResponse(generation, self.engine, request_log, self.in_flight, held)

    def _model_card(self) -> dict[str, object]:
        return {
            "id": self.processor.served_name,
            "object": "model",
            "created": self.created,
            "owned_by": "transom",
            "max_model_len": self.processor.context,
            "weights_version": self.engine.weights_version,
        }

    async def _read_command(self, request: Request, reader: protocol.Reader[T]) -> T:
        """The decoded body of a command; an empty one means the defaults."""
        return self._decoded(request, reader, await self._read_body(request) or b"{}")

    def _decoded(self, request: Request, reader: protocol.Reader[T], body: bytes) -> T:
        value, unknown = reader.read(body)
        if (told := self.ignored.tell(unknown)) is not None:
            request.scope[IGNORED] = told
        return value

    async def _read_body(self, request: Request) -> bytes:
        """The whole body. Refused with 413 as soon as it exceeds the limit, without reading the rest."""
        limit = self.config.limits.body_bytes
        declared = request.headers.get("content-length", "")
        # The declared length is checked first, so that a client does not send a body for nothing. It may be
        # absent or wrong: the bytes that arrive are counted too.
        if declared.isdigit() and int(declared) > limit:
            raise too_large(f"the body has {declared[:30]} bytes; at most {limit} are accepted")
        pieces, size = [], 0
        async for piece in request.stream():
            size += len(piece)
            if size > limit:
                raise too_large(f"the body has more than {limit} bytes, the maximum")
            pieces.append(piece)
        return b"".join(pieces)


def _status(trouble: str | None) -> Response:
    return json_response({"status": "ok"}) if trouble is None else unavailable(trouble).response()


def _set_default_timeout(body: GenerationRequest, request: Request) -> None:
    header = request.headers.get(TIMEOUT_HEADER)
    if header is None or body.timeout is not None:
        return
    try:
        body.timeout = float(header)
    except ValueError:
        reason = f"the header {TIMEOUT_HEADER} is {header[:30]!r}; it must be a number of seconds"
        raise bad_request(reason, "timeout") from None


def build_app(service: Service, *, checks_host: bool = False) -> ASGIApp:
    """The application for one running engine. `checks_host`: it listens on a loopback address."""
    handlers: dict[Any, Any] = {
        HTTPException: _http_exception,
        ClientDisconnect: _client_disconnect,
        Exception: _problem,
        # Starlette raises an error again after the handler of Exception, and uvicorn logs its traceback. The
        # errors below are expected: their own handlers keep them out of the log.
        Refused: _problem,
        EngineDied: _problem,
        BadRequest: _problem,
    }
    starlette = Starlette(routes=service.routes(), exception_handlers=handlers)
    # A redirect to the path without its slash would be built from the Host header, which the client chooses.
    starlette.router.redirect_slashes = False
    app = behind_gate(ApiKeys(starlette, service.keys), service.config, checks_host=checks_host)
    # Request ids come first, so that each refusal has an id in the log.
    return RequestIds(app)


async def _problem(request: Request, error: Exception) -> Response:
    return problem_of(error).response()


async def _client_disconnect(request: Request, error: Exception) -> Response:
    """The client disconnected while it sent its body: no response can reach it, but starlette needs one."""
    return Response(status_code=400)


async def _http_exception(request: Request, error: HTTPException) -> Response:
    """Starlette's own errors: unknown route, or method not allowed."""
    messages = {
        404: f"there is no endpoint {request.url.path}",
        405: f"{request.url.path} does not accept {request.method}",
    }
    message = messages.get(error.status_code, error.detail)
    headers = dict(error.headers or {})
    return Problem(error.status_code, message, "invalid_request_error", None, None, headers).response()

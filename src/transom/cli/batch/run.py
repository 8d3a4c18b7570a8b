"""Sends every request of a batch to the server's ASGI application, in this process and without a socket."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from starlette.types import ASGIApp, Message

from transom.cli.batch.files import Answers, BatchRequest
from transom.config import ServerConfig
from transom.engine.supervisor import EngineLaunch, Supervisor
from transom.errors import ConfigError, TransomError
from transom.server.app import Service, build_app
from transom.server.callers import KeyRing
from transom.server.input_processor import InputProcessor
from transom.server.metrics import Metrics
from transom.text.model_text import ModelText

Progress = Callable[[int], None]
"""Called for each answer with the number of its output tokens."""

UNAVAILABLE = 503
RETRIES = 3
RETRY_SECONDS = 2.0
"""An engine that crashed is usually replaced within this time."""


async def run(
    launch: EngineLaunch,
    name: str,
    text: ModelText,
    requests: Sequence[BatchRequest],
    answers: Answers,
    progress: Progress,
) -> None:
    """Answers all requests. TransomError if the engine or the output file fails."""
    engine = await Supervisor.start(launch)
    try:
        processor = InputProcessor(text, name, engine.ready.context)
        config = ServerConfig()
        keys = KeyRing(config, is_local=True)
        app = build_app(Service(engine, processor, Metrics(name, engine), config, keys))
        # As many requests again as can run wait in the scheduler's queue: it sorts them by cached prefix.
        workers = 2 * engine.ready.max_running_requests
        remaining = iter(requests)
        async with asyncio.TaskGroup() as group:
            for _ in range(min(workers, len(requests))):
                group.create_task(_work(app, remaining, answers, progress))
    except ExceptionGroup as failed:
        raise _first(failed) from failed
    finally:
        await engine.stop()


def _first(failed: ExceptionGroup) -> BaseException:
    """The first error. The later ones are the same error in other workers, or consequences of it."""
    error: BaseException = failed
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def _work(
    app: ASGIApp, remaining: Iterator[BatchRequest], answers: Answers, progress: Progress
) -> None:
    """Answers requests one after the other, until no request remains. All workers share `remaining`."""
    for request in remaining:
        status, body, request_id = await _answer(app, request)
        try:
            answers.write(request, status, body, request_id)
        except OSError as error:
            raise ConfigError(f"{answers.path}: {(error.strerror or str(error)).lower()}") from error
        progress(_output_tokens(body) if status == 200 else 0)


async def _answer(app: ASGIApp, request: BatchRequest) -> tuple[int, bytes, str]:
    """Status, body and request id. Repeats the request if the engine crashed under it."""
    for _ in range(RETRIES):
        status, body, request_id = await call(app, request.endpoint, request.body)
        if status != UNAVAILABLE:
            return status, body, request_id
        await asyncio.sleep(RETRY_SECONDS)
    raise TransomError(
        f"request {request.custom_id!r}: the engine is still unavailable; finished answers are kept"
    )


async def call(app: ASGIApp, path: str, body: bytes) -> tuple[int, bytes, str]:
    """One POST to an ASGI application: status, body, request id."""
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"content-type", b"application/json")],
        "client": None,
        "server": None,
    }
    complete = asyncio.Event()
    unread = [{"type": "http.request", "body": body, "more_body": False}]
    start: dict[str, Any] = {}
    pieces: list[bytes] = []

    async def receive() -> Message:
        if unread:
            return unread.pop()
        # The application watches for a disconnect while it generates; this client stays until the end.
        await complete.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            start.update(message)
        else:
            pieces.append(message.get("body", b""))
            if not message.get("more_body"):
                complete.set()

    await app(scope, receive, send)
    headers = dict(start["headers"])
    return start["status"], b"".join(pieces), headers.get(b"x-request-id", b"").decode()


def _output_tokens(body: bytes) -> int:
    usage = json.loads(body).get("usage") or {}
    return int(usage.get("completion_tokens", 0))


def rate(tokens: int, started_at: float) -> str:
    return f"{tokens / max(time.monotonic() - started_at, 1e-3):.0f} tokens/s"

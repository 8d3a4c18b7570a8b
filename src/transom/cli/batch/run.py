"""Sends every request to the server's application, in this process, without a socket."""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

from starlette.types import ASGIApp, Message

from transom.cli.batch.files import Answers, Asked
from transom.config import ServerConfig
from transom.engine.supervisor import EngineLaunch, Supervisor
from transom.errors import ConfigError, TransomError
from transom.server.app import Service, build_app
from transom.server.input_processor import InputProcessor
from transom.server.metrics import Metrics
from transom.text.model_text import ModelText

Progress = Callable[[int], None]
"""Told of answers, and how many tokens of output each had."""

UNAVAILABLE = 503
RETRIES = 3
RETRY_SECONDS = 2.0


async def run(
    recipe: EngineLaunch,
    name: str,
    text: ModelText,
    requests: Sequence[Asked],
    answers: Answers,
    told: Progress,
) -> None:
    """All of them, as many at once as the engine runs and as many again waiting. TransomError, OSError."""
    engine = await Supervisor.start(recipe)
    try:
        processor = InputProcessor(text, name, engine.ready.context)
        app = build_app(Service(engine, processor, Metrics(name, engine), ServerConfig()))
        line = iter(requests)
        workers = 2 * engine.ready.max_running_requests
        async with asyncio.TaskGroup() as group:
            for _ in range(min(workers, len(requests))):
                group.create_task(_work(app, line, answers, told))
    except ExceptionGroup as failed:
        raise _first(failed) from failed
    finally:
        await engine.stop()


def _first(failed: ExceptionGroup) -> BaseException:
    """The one that a user is told of; the others say the same, or come of it."""
    error: BaseException = failed
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def _work(app: ASGIApp, line: Any, answers: Answers, told: Progress) -> None:
    for asked in line:
        status, body, request_id = await _answer(app, asked)
        try:
            answers.write(asked, status, body, request_id)
        except OSError as error:
            raise ConfigError(f"{answers.path}: {(error.strerror or str(error)).lower()}") from error
        told(_output_tokens(body) if status == 200 else 0)


async def _answer(app: ASGIApp, asked: Asked) -> tuple[int, bytes, str]:
    """Asked again when the engine died under it: with the same seed the answer is the same."""
    for _ in range(RETRIES):
        status, body, request_id = await call(app, asked.endpoint, asked.body)
        if status != UNAVAILABLE:
            return status, body, request_id
        await asyncio.sleep(RETRY_SECONDS)
    raise TransomError(f"request {asked.custom_id!r}: the engine does not come back; what is done is kept")


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
    whole = asyncio.Event()
    sent = [{"type": "http.request", "body": body, "more_body": False}]
    started: dict[str, Any] = {}
    pieces: list[bytes] = []

    async def receive() -> Message:
        if sent:
            return sent.pop()
        await whole.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            started.update(message)
        else:
            pieces.append(message.get("body", b""))
            if not message.get("more_body"):
                whole.set()

    await app(scope, receive, send)
    headers = dict(started["headers"])
    return started["status"], b"".join(pieces), headers.get(b"x-request-id", b"").decode()


def _output_tokens(body: bytes) -> int:
    usage = json.loads(body).get("usage") or {}
    return int(usage.get("completion_tokens", 0))


def rate(tokens: int, began: float) -> str:
    return f"{tokens / max(time.monotonic() - began, 1e-3):.0f} tokens/s"

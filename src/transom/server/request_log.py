"""Metrics of each request, and its line in the log."""

import logging
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from starlette.types import Scope

from transom.logs import fields
from transom.server.errors import Problem, problem_of
from transom.server.metrics import Metrics
from transom.text.output import OutputText

log = logging.getLogger("transom.request")

REQUEST_ID = "transom.request_id"
ARRIVAL = "transom.arrival"
"""Keys of the ASGI scope, set for every request: its id, and its arrival by `time.perf_counter`."""


KEY_NAME = "transom.key_name"
"""The name of the API key in the ASGI scope; absent without keys."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request asks the engine for."""

    model: str
    prompts: int
    n: int
    """Outputs of each prompt."""
    prompt_tokens: int
    """Of all prompts."""


class RequestLog:
    """Measures one HTTP request that reaches the engine, and logs one line at its end. Mutable."""

    def __init__(self, asked: Asked, outputs: Sequence[OutputText], scope: Scope, metrics: Metrics) -> None:
        self._asked = asked
        self._outputs = outputs
        self._scope = scope
        self._metrics = metrics
        self._queue_seconds = 0.0
        self._first_token_seconds: float | None = None
        self._ending: str | None = None
        self._error: str | None = None

    def first_token(self) -> None:
        """One of the outputs has its first token. The log line has the earliest, the metrics have all."""
        seconds = _seconds_since_arrival(self._scope)
        # Tokens arrive in order, so the first output to get one is the earliest.
        if self._first_token_seconds is None:
            self._first_token_seconds = seconds
        self._metrics.first_token(seconds)

    def finished(self, output: OutputText, queue_seconds: float) -> None:
        """One of the outputs has all its tokens. The log line has the longest time in the queue."""
        self._queue_seconds = max(self._queue_seconds, queue_seconds)
        self._metrics.queued(queue_seconds)
        seconds = _seconds_since_arrival(self._scope)
        self._metrics.finished(output.finish or "error", seconds, output.tokens)

    def failed(self, error: Exception, outputs: int) -> None:
        """`outputs` outputs remain unfinished because of an error that the client receives."""
        self._ending, self._error = "error", problem_of(error).message
        self._metrics.failed(outputs)

    def disconnected(self) -> None:
        self._ending = "disconnect"
        self._metrics.disconnected(len(self._outputs))

    def close(self) -> None:
        """Writes the line. Called exactly once, whether the request finished, failed or was disconnected."""
        usages = [output.usage for output in self._outputs if output.usage is not None]
        values = fields(
            **_origin(self._scope),
            **asdict(self._asked),
            output_tokens=sum(output.tokens for output in self._outputs),
            cached_tokens=sum(usage.cached_tokens for usage in usages),
            queue_seconds=self._queue_seconds,
            first_token_seconds=self._first_token_seconds,
            total_seconds=_seconds_since_arrival(self._scope),
            finish=self._ending or self._finish_reasons(),
            error=self._error,
        )
        log.info("request", extra=values)

    def _finish_reasons(self) -> str:
        """In the order of the outputs, each reason once."""
        return ",".join(dict.fromkeys(output.finish or "abort" for output in self._outputs))


def log_refusal(scope: Scope, problem: Problem) -> None:
    """Logs the line of a request that was refused before it reached the engine."""
    values = fields(
        **_origin(scope),
        status=problem.status,
        total_seconds=_seconds_since_arrival(scope),
        finish="refused",
        error=problem.message,
    )
    log.info("request", extra=values)


def _origin(scope: Scope) -> dict[str, object]:
    """The request's id, its path, and where it comes from."""
    client = scope.get("client")
    return {
        "id": scope[REQUEST_ID],
        "client": client and client[0],
        "key": scope.get(KEY_NAME),
        "path": scope["path"],
    }


def _seconds_since_arrival(scope: Scope) -> float:
    arrival: float = scope[ARRIVAL]
    return time.perf_counter() - arrival

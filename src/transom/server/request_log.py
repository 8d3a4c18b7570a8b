"""What one request comes to: told to the metrics as it goes, and to the log in one line at its end."""

import logging
import time
from collections.abc import Sequence

from starlette.types import Scope

from transom.logs import fields
from transom.server.errors import Problem, problem_of
from transom.server.metrics import Metrics
from transom.server.output_processor import Answer

log = logging.getLogger("transom.request")

REQUEST_ID = "transom.request_id"
ARRIVAL = "transom.arrival"
"""Keys of the ASGI scope, set for every request: its id, and when it came by `time.perf_counter`."""


class Account:
    """Measures one request that is generated for, from its arrival on. Mutable."""

    def __init__(self, answers: Sequence[Answer], prompt_tokens: int, scope: Scope, metrics: Metrics) -> None:
        self._answers = answers
        self._prompt_tokens = prompt_tokens
        self._scope = scope
        self._metrics = metrics
        self._queue_seconds = 0.0
        self._first_token_seconds: float | None = None
        self._ending: str | None = None
        self._error: str | None = None

    def first_token(self) -> None:
        """An answer has its first token."""
        seconds = _seconds(self._scope)
        if self._first_token_seconds is None:
            self._first_token_seconds = seconds
        self._metrics.first_token(seconds)

    def answered(self, answer: Answer, queue_seconds: float) -> None:
        """An answer has all its tokens. Of several, the one that waited longest counts."""
        self._queue_seconds = max(self._queue_seconds, queue_seconds)
        self._metrics.queued(queue_seconds)
        self._metrics.finished(answer.finish or "error", _seconds(self._scope), answer.tokens)

    def failed(self, error: Exception, answers: int) -> None:
        """So many answers will not be finished, because of an error that the client is told."""
        self._ending, self._error = "error", problem_of(error).message
        self._metrics.failed(answers)

    def disconnected(self) -> None:
        self._ending = "disconnect"
        self._metrics.disconnected(len(self._answers))

    def close(self) -> None:
        """Writes the line."""
        usages = [answer.usage for answer in self._answers if answer.usage is not None]
        told = fields(
            id=self._scope[REQUEST_ID],
            path=self._scope["path"],
            prompt_tokens=self._prompt_tokens,
            output_tokens=sum(answer.tokens for answer in self._answers),
            cached_tokens=sum(usage.cached_tokens for usage in usages),
            queue_seconds=self._queue_seconds,
            first_token_seconds=self._first_token_seconds,
            total_seconds=_seconds(self._scope),
            finish=self._ending or self._finishes(),
            error=self._error,
        )
        log.info("request", extra=told)

    def _finishes(self) -> str:
        """In the order of the answers, each way to end once."""
        return ",".join(dict.fromkeys(answer.finish or "abort" for answer in self._answers))


def log_refusal(scope: Scope, problem: Problem) -> None:
    """The line of a request that never came to the engine."""
    told = fields(
        id=scope[REQUEST_ID],
        path=scope["path"],
        status=problem.status,
        total_seconds=_seconds(scope),
        finish="refused",
        error=problem.message,
    )
    log.info("request", extra=told)


def _seconds(scope: Scope) -> float:
    arrival: float = scope[ARRIVAL]
    return time.perf_counter() - arrival

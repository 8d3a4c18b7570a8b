"""HTTP errors in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`."""

from dataclasses import dataclass, field

import msgspec
from starlette.responses import Response

from transom.errors import BadRequest, EngineDied, TransomError
from transom.limits import LIMITS


@dataclass(frozen=True, slots=True)
class Problem:
    """One error response: HTTP status, and the fields of OpenAI's error object."""

    status: int
    message: str
    type: str
    param: str | None = None
    code: str | None = None
    headers: dict[str, str] = field(default_factory=dict)

    def body(self) -> bytes:
        return msgspec.json.encode(
            {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}
        )

    def response(self) -> Response:
        return Response(self.body(), self.status, self.headers, media_type="application/json")


class Refused(TransomError):
    """Ends the handling of a request; the client receives `problem`."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def bad_request(message: str, param: str | None = None, code: str | None = "invalid_value") -> Refused:
    return Refused(Problem(400, message, "invalid_request_error", param, code))


def forbidden(message: str, code: str, param: str | None = None) -> Refused:
    return Refused(Problem(403, message, "permission_error", param, code))


def not_found(message: str, param: str | None = None, code: str | None = None) -> Refused:
    return Refused(Problem(404, message, "invalid_request_error", param, code))


def model_not_found(name: str, served_name: str) -> Refused:
    # A client chooses the name: it is cut so that the message stays short.
    message = f"the model {name[:200]!r} is not served here; {served_name!r} is"
    return not_found(message, "model", "model_not_found")


def too_large(message: str) -> Refused:
    return Refused(Problem(413, message, "invalid_request_error", None, "request_too_large"))


def unavailable(message: str) -> Problem:
    headers = {"retry-after": str(LIMITS.retry_seconds)}
    return Problem(503, message, "server_error", None, "engine_unavailable", headers)


def internal(message: str) -> Problem:
    return Problem(500, message, "server_error", None, "internal_error")


def problem_of(error: Exception) -> Problem:
    """The response for an exception. Messages of unexpected ones stay in the log: they may name internals."""
    match error:
        case Refused():
            return error.problem
        case BadRequest():
            return Problem(
                400, error.message, "invalid_request_error", error.param, error.code or "invalid_value"
            )
        case EngineDied():
            return unavailable(str(error))
        case _:
            return internal("internal server error; the server's log has the details")

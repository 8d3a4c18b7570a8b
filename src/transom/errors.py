"""The error tree. What a user did wrong is answered; what we did wrong is asserted elsewhere."""


class TransomError(Exception):
    """Anything Transom raises on purpose."""


class BadRequest(TransomError):
    """The request cannot be served as it is: HTTP 400. `param` names the field, `code` is OpenAI's."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


class RequestTooLarge(BadRequest):
    """The request could never run on this server, even alone: HTTP 400 `context_length_exceeded`."""

    def __init__(self, message: str, *, param: str | None = "prompt") -> None:
        super().__init__(message, param=param, code="context_length_exceeded")


class ModelFileError(TransomError):
    """A model file is missing, damaged or of a kind not supported. One line, naming file and tensor."""


class ConfigError(TransomError):
    """The configuration cannot work; the message names the least that would."""


class EngineDied(TransomError):
    """The engine process ended while requests were in flight: HTTP 503."""


class NoSpace(TransomError):
    """A pool has too few free and reclaimable pages. Never leaves `sched`."""

    def __init__(self, component: str, need: int, have: int) -> None:
        super().__init__(f"{component}: {need} pages needed, {have} to be had")
        self.component = component
        self.need = need
        self.have = have

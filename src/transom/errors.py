"""The exceptions of Transom. They report mistakes of users and failures outside; bugs are assertions."""


class TransomError(Exception):
    """Base class of all exceptions that Transom raises on purpose. The message is meant for the user."""


class BadRequest(TransomError):
    """The request is invalid: HTTP 400. `param` names the field, `code` is one of OpenAI's error codes."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


class RequestTooLarge(BadRequest):
    """The request would not fit even if it ran alone: HTTP 400 `context_length_exceeded`."""

    def __init__(self, message: str, *, param: str | None = "prompt") -> None:
        super().__init__(message, param=param, code="context_length_exceeded")


class ModelFileError(TransomError):
    """A model file is missing, damaged or of an unsupported kind. One line that names file and tensor."""


class ConfigError(TransomError):
    """The configuration is invalid or too small; the message names the smallest that works."""


class EngineDied(TransomError):
    """No engine serves: it ended with requests in flight, or a new one is still starting. HTTP 503."""


class NoSpace(TransomError):
    """A pool has too few free and evictable pages. The scheduler handles it; it never reaches a client."""

    def __init__(self, component: str, need: int, have: int) -> None:
        super().__init__(f"{component}: {need} pages needed, {have} available")
        self.component = component
        self.need = need
        self.have = have


def require_assertions() -> None:
    """Raises ConfigError if Python removes assertions. The ownership of pages rests on them."""
    if not __debug__:
        raise ConfigError(
            "Python runs with -O or PYTHONOPTIMIZE, which removes assertions; "
            "Transom does not run without them"
        )

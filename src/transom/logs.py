"""Log lines on standard error, of server and engine alike: text for people, JSON for programs.

A record may have fields, a mapping given to the logger as `extra=fields(...)`.
"""

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TextIO

from transom import streams
from transom.config import LogConfig


def fields(**values: object) -> dict[str, Any]:
    """What a logger takes as `extra`: values that are told one by one, those that are None not at all."""
    return {"fields": {name: value for name, value in values.items() if value is not None}}


def configure(config: LogConfig) -> None:
    """Log to standard error from now on, in this process."""
    handler = StandardError(sys.stderr)
    handler.setFormatter(JsonFormatter() if config.format == "json" else TextFormatter())
    logging.basicConfig(handlers=[handler], level=config.level.upper(), force=True)
    # uvicorn's own start and stop lines say what ours say already.
    logging.getLogger("uvicorn.error").setLevel(max(logging.WARNING, logging.getLogger().level))


class StandardError(logging.StreamHandler[TextIO]):
    """Goes silent when nobody reads any more."""

    def handleError(self, record: logging.LogRecord) -> None:
        if isinstance(sys.exception(), OSError):
            streams.silence(self.stream)
        else:
            super().handleError(record)


class TextFormatter(logging.Formatter):
    """`time LEVEL logger: message name=value ...`"""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        told = [f"{name}={_text(value)}" for name, value in _fields_of(record).items()]
        return " ".join([super().formatMessage(record), *told])


class JsonFormatter(logging.Formatter):
    """One object a line: time, level, logger, message, the fields, and a traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields_of(record),
        }
        if record.exc_info:
            told["traceback"] = self.formatException(record.exc_info)
        return json.dumps(told, default=str)


def _fields_of(record: logging.LogRecord) -> Mapping[str, object]:
    given: Mapping[str, object] = record.__dict__.get("fields", {})
    return given


def _text(value: object) -> str:
    """Seconds to the tenth of a millisecond; texts in quotes where they could be taken for something else."""
    if isinstance(value, float):
        return f"{value:.4f}"
    text = str(value)
    return text if text and not set(text) & set(' "=\\') else json.dumps(text)

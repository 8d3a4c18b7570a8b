"""Log lines on standard error, for server and engine: as text, or as JSON for log collectors.

A record may have named fields, which are passed to the logger as `extra=fields(...)`.
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
    """Named values for a logger's `extra`. Values that are None are left out."""
    return {"fields": {name: value for name, value in values.items() if value is not None}}


def configure(config: LogConfig) -> None:
    """Log to standard error in this process, replacing all handlers."""
    handler = StandardError(sys.stderr)
    handler.setFormatter(JsonFormatter() if config.format == "json" else TextFormatter())
    logging.basicConfig(handlers=[handler], level=config.level.upper(), force=True)
    # uvicorn's start and stop lines repeat ours.
    logging.getLogger("uvicorn.error").setLevel(max(logging.WARNING, logging.getLogger().level))


class StandardError(logging.StreamHandler[TextIO]):
    """A handler that drops its lines once the reader of standard error is gone."""

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
        named = [f"{name}={_text(value)}" for name, value in _fields_of(record).items()]
        return " ".join([super().formatMessage(record), *named])


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, message, the fields, and a traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields_of(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def _fields_of(record: logging.LogRecord) -> Mapping[str, object]:
    given: Mapping[str, object] = record.__dict__.get("fields", {})
    return given


def _text(value: object) -> str:
    """Floats, which are seconds, to a tenth of a millisecond; text in quotes if it would be ambiguous."""
    if isinstance(value, float):
        return f"{value:.4f}"
    text = str(value)
    return text if text and not set(text) & set(' "=\\') else json.dumps(text)

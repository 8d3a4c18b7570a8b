"""Log lines on standard error, for server and engine: as text, or as JSON for log collectors.

A record may have named fields, which are passed to the logger as `extra=fields(...)`.

Clients choose many values: paths, ids, names in error messages. A value can forge no line and drive no
terminal, since everything but printable ASCII is escaped, and it cannot fill the disk, since it is cut.
"""

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TextIO

from transom import streams
from transom.config import LogConfig

TEXT_CHARACTERS = 200
"""Of a value; a longer one is cut, and its length is told."""
LINE_CHARACTERS = 2000
"""Of a message, and of a line of a traceback."""
REPEATS = 10
REPEATS_SECONDS = 60.0
"""A warning that clients can cause is logged this often in this time."""
WARNINGS_KEPT = 256


def fields(**values: object) -> dict[str, Any]:
    """Named values for a logger's `extra`. Values that are None are left out."""
    return {"fields": {name: value for name, value in values.items() if value is not None}}


def configure(config: LogConfig) -> None:
    """Log to standard error in this process, replacing all handlers."""
    handler = StandardError(sys.stderr)
    handler.addFilter(RepeatedWarnings())
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


class RepeatedWarnings(logging.Filter):
    """Passes a warning or error a few times a minute. The next one that passes tells how many were left out.

    Two warnings are equal if their texts are, before values are filled in. Mutable.
    """

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[tuple[str, str], tuple[float, int]] = {}
        """Start of the period, and the number in it, by logger and text."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        key = (record.name, str(record.msg))
        start, count = self._known.pop(key, (record.created, 0))
        if record.created - start >= REPEATS_SECONDS:
            if count > REPEATS:
                record.__dict__.update(fields(**_fields_of(record), left_out=count - REPEATS))
            start, count = record.created, 0
        self._known[key] = start, count + 1
        while len(self._known) > WARNINGS_KEPT:
            del self._known[next(iter(self._known))]
        return count < REPEATS


class TextFormatter(logging.Formatter):
    """`time LEVEL logger: message name=value ...`"""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        named = [f"{name}={_text(value)}" for name, value in _fields_of(record).items()]
        return " ".join([_plain(_cut(super().formatMessage(record), LINE_CHARACTERS)), *named])

    def formatException(self, ei: Any) -> str:
        """Indented, so that no line of an exception's text begins like a line of the log."""
        return "\n".join(f"    {_plain(line)}" for line in _lines(super().formatException(ei)))


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, message, the fields, and a traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _cut(record.getMessage(), LINE_CHARACTERS),
            **{name: _bounded(value) for name, value in _fields_of(record).items()},
        }
        if record.exc_info:
            line["traceback"] = "\n".join(_lines(self.formatException(record.exc_info)))
        return _json(line)


def _fields_of(record: logging.LogRecord) -> Mapping[str, object]:
    given: Mapping[str, object] = record.__dict__.get("fields", {})
    return given


def _text(value: object) -> str:
    """Floats, which are seconds, to a tenth of a millisecond; text as JSON if it would be ambiguous."""
    if isinstance(value, float):
        return f"{value:.4f}"
    text = _cut(str(value), TEXT_CHARACTERS)
    is_plain = text.isascii() and text.isprintable() and not set(text) & set(' "=\\')
    return text if text and is_plain else _json(text)


def _bounded(value: object) -> object:
    """The value, with each text in it cut."""
    match value:
        case str():
            return _cut(value, TEXT_CHARACTERS)
        case dict():
            return {name: _bounded(item) for name, item in value.items()}
        case list() | tuple():
            return [_bounded(item) for item in value]
        case _:
            return value


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"


def _plain(text: str) -> str:
    """The text in printable ASCII; every other character is escaped as in JSON."""
    return text if text.isascii() and text.isprintable() else _json(text)[1:-1]


def _json(value: object) -> str:
    """JSON in printable ASCII: the only other character that `json` passes is DEL."""
    return json.dumps(value, default=lambda one: _bounded(str(one))).replace("\x7f", "\\u007f")


def _lines(text: str) -> list[str]:
    return [_cut(line, LINE_CHARACTERS) for line in text.split("\n")]

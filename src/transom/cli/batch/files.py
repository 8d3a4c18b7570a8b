"""Batch files: what is asked, what was answered already, and answers as they come."""

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transom.errors import ConfigError

ENDPOINTS = ("/v1/chat/completions", "/v1/completions")


@dataclass(frozen=True, slots=True)
class Asked:
    """One line of the input, ready to be sent: `body` is JSON."""

    custom_id: str
    endpoint: str
    body: bytes


def read_requests(path: Path) -> list[Asked]:
    """All of them, or ConfigError naming the first line that is wrong: before anything is computed."""
    requests: list[Asked] = []
    seen: dict[str, int] = {}
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        try:
            asked = _request(json.loads(line))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise ConfigError(f"{path}: line {number}: {_reason(error)}") from error
        if (before := seen.get(asked.custom_id)) is not None:
            same = f"custom_id {asked.custom_id!r} is that of line {before}"
            raise ConfigError(f"{path}: line {number}: {same}")
        seen[asked.custom_id] = number
        requests.append(asked)
    return requests


def _reason(error: Exception) -> str:
    match error:
        case json.JSONDecodeError():
            return f"no JSON: {error.msg} at column {error.colno}"
        case KeyError():
            return f"{error.args[0]} is missing"
        case _:
            return str(error)


def _request(line: Any) -> Asked:
    """ValueError, TypeError or KeyError for what a batch line is not."""
    if not isinstance(line, dict):
        raise TypeError("is not an object")
    custom_id, endpoint, body = line["custom_id"], line["url"], line["body"]
    if not isinstance(custom_id, str) or not custom_id:
        raise TypeError("custom_id is not a text")
    if line.get("method", "POST") != "POST":
        raise ValueError("method is not POST")
    if endpoint not in ENDPOINTS:
        raise ValueError(f"url is {endpoint!r}; it must be one of {', '.join(ENDPOINTS)}")
    if not isinstance(body, dict):
        raise TypeError("body is not an object")
    if body.get("stream"):
        raise ValueError("body.stream: answers of a batch are not streamed")
    return Asked(custom_id, endpoint, json.dumps(body).encode())


def _lines(path: Path) -> Iterator[str]:
    try:
        with path.open(encoding="utf-8") as file:
            yield from file
    except OSError as error:
        raise ConfigError(f"{path}: {(error.strerror or str(error)).lower()}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text") from error


class Answers:
    """Owns the output file: each answer is one line, appended whole. A torn last line is cut off. Mutable."""

    def __init__(self, path: Path) -> None:
        """Opens it, with what an earlier run left in it. ConfigError."""
        self.path = path
        try:
            self._file = path.open("a+b")
            self._file.seek(0)
            kept, self.answered = _kept(self._file)
            self._file.truncate(kept)
        except OSError as error:
            raise ConfigError(f"{path}: {(error.strerror or str(error)).lower()}") from error

    def left(self, requests: Iterable[Asked]) -> list[Asked]:
        """Those without an answer."""
        return [asked for asked in requests if asked.custom_id not in self.answered]

    def write(self, asked: Asked, status: int, body: bytes, request_id: str) -> None:
        """OSError, for a disk that is full for example: what was written before is whole."""
        response = {"status_code": status, "request_id": request_id, "body": json.loads(body)}
        line = {
            "id": f"batch_{request_id}",
            "custom_id": asked.custom_id,
            "response": response,
            "error": None,
        }
        self._file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
        self._file.flush()
        self.answered.add(asked.custom_id)

    def close(self) -> None:
        with self._file:
            os.fsync(self._file.fileno())


def _kept(lines: Iterable[bytes]) -> tuple[int, set[str]]:
    """Bytes of whole lines at the beginning, and whose answers they are. ConfigError for another file."""
    size, answered = 0, set[str]()
    for line in lines:
        if not line.endswith(b"\n"):
            break
        try:
            answered.add(json.loads(line)["custom_id"])
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigError("the output file holds something else than answers; name another") from error
        size += len(line)
    return size, answered

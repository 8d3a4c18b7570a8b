"""Batch files: the requests, the answers of an earlier run, and new answers."""

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transom.errors import ConfigError

ENDPOINTS = ("/v1/chat/completions", "/v1/completions")


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """One line of the input. `body` is encoded JSON."""

    custom_id: str
    endpoint: str
    body: bytes


def read_requests(path: Path) -> list[BatchRequest]:
    """All requests of a file. ConfigError, naming the line, if one is invalid: before any is computed."""
    requests: list[BatchRequest] = []
    seen: dict[str, int] = {}
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        try:
            request = _request(json.loads(line))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise ConfigError(f"{path}: line {number}: {_reason(error)}") from error
        if (before := seen.get(request.custom_id)) is not None:
            same = f"custom_id {request.custom_id!r} is already used in line {before}"
            raise ConfigError(f"{path}: line {number}: {same}")
        seen[request.custom_id] = number
        requests.append(request)
    return requests


def _reason(error: Exception) -> str:
    match error:
        case json.JSONDecodeError():
            return f"not JSON: {error.msg} at column {error.colno}"
        case KeyError():
            return f"{error.args[0]} is missing"
        case _:
            return str(error)


def _request(line: Any) -> BatchRequest:
    """ValueError, TypeError or KeyError if the line is not a batch request."""
    if not isinstance(line, dict):
        raise TypeError("not a JSON object")
    custom_id, endpoint, body = line["custom_id"], line["url"], line["body"]
    if not isinstance(custom_id, str) or not custom_id:
        raise TypeError("custom_id must be a non-empty string")
    if line.get("method", "POST") != "POST":
        raise ValueError("method is not POST")
    if endpoint not in ENDPOINTS:
        raise ValueError(f"url is {endpoint!r}; it must be one of {', '.join(ENDPOINTS)}")
    if not isinstance(body, dict):
        raise TypeError("body is not a JSON object")
    if body.get("stream"):
        raise ValueError("body.stream is not supported in a batch")
    return BatchRequest(custom_id, endpoint, json.dumps(body).encode())


def _lines(path: Path) -> Iterator[str]:
    try:
        with path.open(encoding="utf-8") as file:
            yield from file
    except OSError as error:
        raise ConfigError(f"{path}: {(error.strerror or str(error)).lower()}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text") from error


class Answers:
    """The output file. Mutable. Each answer is one line, written in one call.

    A crash can leave an incomplete last line. Opening removes it, and its request is answered again.
    """

    def __init__(self, path: Path) -> None:
        """Opens the file and reads the answers of an earlier run. ConfigError if that fails."""
        self.path = path
        try:
            self._file = path.open("a+b")
            self._file.seek(0)
            size, self.answered = _complete_lines(self._file)
            self._file.truncate(size)
        except OSError as error:
            raise ConfigError(f"{path}: {(error.strerror or str(error)).lower()}") from error

    def unanswered(self, requests: Iterable[BatchRequest]) -> list[BatchRequest]:
        """The requests that have no answer yet."""
        return [request for request in requests if request.custom_id not in self.answered]

    def write(self, request: BatchRequest, status: int, body: bytes, request_id: str) -> None:
        """Appends an answer. OSError, for example if the disk is full: earlier answers stay intact."""
        response = {"status_code": status, "request_id": request_id, "body": json.loads(body)}
        line = {
            "id": f"batch_{request_id}",
            "custom_id": request.custom_id,
            "response": response,
            "error": None,
        }
        self._file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
        self._file.flush()
        self.answered.add(request.custom_id)

    def close(self) -> None:
        with self._file:
            os.fsync(self._file.fileno())


def _complete_lines(lines: Iterable[bytes]) -> tuple[int, set[str]]:
    """Size of the complete lines in bytes, and their custom_ids. ConfigError if the file is another kind."""
    size, answered = 0, set[str]()
    for line in lines:
        if not line.endswith(b"\n"):
            break
        try:
            answered.add(json.loads(line)["custom_id"])
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigError("the output file is not a file of answers; name another one") from error
        size += len(line)
    return size, answered

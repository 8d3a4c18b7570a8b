"""Batch files: the requests, the answers of an earlier run, and new answers."""

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from transom.errors import ConfigError
from transom.json_text import JSON_ERRORS, JsonError, escape_separators, fields_of, object_of, read_lines

ENDPOINTS = ("/v1/chat/completions", "/v1/completions")
CUSTOM_ID_CHARACTERS_MAX = 512


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
    for number, line in read_lines(path):
        try:
            request = _request(line)
        except (JsonError, ValueError, TypeError) as error:
            raise ConfigError(f"{path}: line {number}: {error}") from None
        except KeyError as error:
            raise ConfigError(f"{path}: line {number}: {error.args[0]} is missing") from None
        if (before := seen.get(request.custom_id)) is not None:
            same = f"custom_id {request.custom_id!a} is already used in line {before}"
            raise ConfigError(f"{path}: line {number}: {same}")
        seen[request.custom_id] = number
        requests.append(request)
    return requests


def _request(line: bytes) -> BatchRequest:
    """JsonError, ValueError, TypeError or KeyError if the line is not a batch request."""
    given = fields_of(line)
    # The body is answered as it was written: its endpoint checks it, like any body.
    body = bytes(given.pop("body"))
    fields = object_of(msgspec.json.encode(given))
    custom_id, endpoint = fields["custom_id"], fields["url"]
    if not isinstance(custom_id, str) or not 1 <= len(custom_id) <= CUSTOM_ID_CHARACTERS_MAX:
        raise TypeError(f"custom_id must be a string of 1 to {CUSTOM_ID_CHARACTERS_MAX} characters")
    if fields.get("method", "POST") != "POST":
        raise ValueError("method is not POST")
    if endpoint not in ENDPOINTS:
        raise ValueError(f"url is {str(endpoint)[:64]!a}; it must be one of {', '.join(ENDPOINTS)}")
    try:
        stream = fields_of(body).get("stream", msgspec.Raw(b"null"))
    except JsonError as error:
        raise ValueError(f"body: {error}") from None
    if bytes(stream) not in (b"null", b"false"):
        raise ValueError("body.stream is not supported in a batch")
    return BatchRequest(custom_id, endpoint, body)


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
        self._file.write(escape_separators(json.dumps(line, ensure_ascii=False).encode()) + b"\n")
        self._file.flush()
        self.answered.add(request.custom_id)

    def close(self) -> None:
        with self._file:
            os.fsync(self._file.fileno())


class _Answer(msgspec.Struct):
    custom_id: str


_decode_answer = msgspec.json.Decoder(_Answer).decode


def _complete_lines(lines: Iterable[bytes]) -> tuple[int, set[str]]:
    """Size of the complete lines in bytes, and their custom_ids. ConfigError if the file is another kind."""
    size, answered = 0, set[str]()
    for line in lines:
        if not line.endswith(b"\n"):
            break
        try:
            answered.add(_decode_answer(line).custom_id)
        except JSON_ERRORS as error:
            raise ConfigError("the output file is not a file of answers; name another one") from error
        size += len(line)
    return size, answered

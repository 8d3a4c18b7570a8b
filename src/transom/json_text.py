"""JSON that strangers wrote: parsed strictly, with errors that tell where.

Python's own parser accepts NaN, half of a surrogate pair and a key that occurs twice, and recurses without a
bound. Here each of these is an error, because another program would read another value.
"""

import json
import re
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from transom.errors import ConfigError

NESTING_MAX = 64
FIELDS_MAX = 512
"""Fields of the outermost object. A request to the server has at most some sixty."""
OBJECTS_MAX = 20_000
"""Objects in one field: each costs about 0.3 microseconds."""
VALUES_MAX = 20_000
"""Values of any shape in one field, such as those of a JSON Schema."""
EXCERPT_BYTES = 24

# Possessive repeats: without backtracking, a long key takes no memory.
_KEY = re.compile(rb'\s*+("(?:[^"\\]++|\\.)*+")\s*+:\s*+', re.DOTALL)
_AFTER = re.compile(rb"\s*[,}]")
_PAIR = re.compile(rb"\\u[dD][89abAB]..\\u[dD][c-fC-F]..")
_HALF_PAIR = re.compile(rb"\\u[dD][89a-fA-F]")
# msgspec's messages end with "(byte 29)".
_BYTE = re.compile(r"\(byte (\d+)\)$")

_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_key = msgspec.json.Decoder(str).decode
_decode_any = msgspec.json.Decoder().decode

JSON_ERRORS = (msgspec.DecodeError, ValueError, RecursionError)
"""What a decoder raises for a text that is not JSON, or not JSON of the wanted type."""


class JsonError(Exception):
    """The text is not strict JSON. `field`: the outermost field that the error is in, if it is known."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = None if field is None else field[:NESTING_MAX]


def fields_of(text: bytes) -> dict[str, msgspec.Raw]:
    """The fields of an object, with their values as JSON. JsonError, also for an error within a value."""
    try:
        given = _decode_fields(text)
        _check_keys(text, given)
    except JSON_ERRORS as error:
        raise explained(error, text) from None
    for name, value in given.items():
        raw = bytes(value)
        # Only objects have keys. Lists of numbers, the longest values of all, are not parsed again.
        if raw[:1] in (b"{", b"[") and b"{" in raw:
            _check_objects(name, raw)
    return given


def object_of(text: bytes) -> dict[str, Any]:
    """The object that a text stands for. JsonError."""
    try:
        return {name: _decode_any(value) for name, value in fields_of(text).items()}
    except JSON_ERRORS as error:
        raise explained(error, text) from None


def explained(error: Exception, text: bytes) -> JsonError:
    """One of JSON_ERRORS in words, with the place."""
    if isinstance(error, msgspec.ValidationError):
        message = str(error)
        return JsonError(f"not a JSON object: {message[0].lower()}{message[1:]}")
    if isinstance(error, RecursionError):
        return JsonError("nested too deeply")
    # msgspec says "truncated" or "hex escape".
    if _HALF_PAIR.search(_PAIR.sub(b"", text)):
        return JsonError("not valid JSON: a string has half of a surrogate pair, \\ud800 to \\udfff")
    near = ""
    if (where := _BYTE.search(str(error))) is not None:
        at = int(where[1])
        excerpt = text[max(0, at - EXCERPT_BYTES) : at + EXCERPT_BYTES].decode("utf-8", "replace")
        near = f", near {excerpt!a}"
    return JsonError(f"not valid JSON: {error}{near}")


def _check_keys(text: bytes, given: Mapping[str, msgspec.Raw]) -> None:
    """JsonError if the outermost object has a key twice: parsers disagree about which value counts."""
    seen = set[str]()
    for name in _keys(text, given):
        if name in seen:
            raise _twice(name)
        seen.add(name)
        if len(seen) > FIELDS_MAX:
            raise JsonError(f"an object of more than {FIELDS_MAX} fields, the maximum")


def _keys(text: bytes, given: Mapping[str, msgspec.Raw]) -> Iterator[str]:
    """The keys of the outermost object, in order. The text is valid JSON, and `given` has its last values.

    Values are skipped by their length. Where that does not lead to the next key or to the end, the value is
    not the last one of its key, so the key is yielded twice.
    """
    at, name = text.index(b"{") + 1, ""
    while (key := _KEY.match(text, at)) is not None:
        name = _decode_key(key[1])
        yield name
        after = _AFTER.match(text, key.end() + len(bytes(given.get(name, b""))))
        if after is None:
            yield name
            return
        at = after.end()
    if text[at:].strip() not in (b"", b"}"):
        yield name


def _check_objects(field: str, text: bytes) -> None:
    count = 0

    def check(pairs: list[tuple[str, object]]) -> None:
        nonlocal count
        count += 1
        if count > OBJECTS_MAX:
            raise JsonError(f"{field[:NESTING_MAX]} holds more than {OBJECTS_MAX} JSON objects", field)
        if len(dict(pairs)) < len(pairs):
            names = [name for name, _ in pairs]
            raise _twice(next(name for name in names if names.count(name) > 1), field)

    try:
        json.loads(text, object_pairs_hook=check, parse_int=len, parse_float=len)
    except JSON_ERRORS as error:
        raise explained(error, text) from None


def check_shape(field: str, value: object) -> None:
    """JsonError if a decoded value of any shape is nested too deeply for its readers, or too large."""
    level = [] if value is None else [value]
    count = depth = 0
    while level:
        count, depth = count + len(level), depth + 1
        if depth > NESTING_MAX:
            raise JsonError(f"{field[:NESTING_MAX]} is nested more than {NESTING_MAX} levels deep", field)
        if count > VALUES_MAX:
            raise JsonError(f"{field[:NESTING_MAX]} holds more than {VALUES_MAX} JSON values", field)
        deeper: list[object] = []
        for one in level:
            if isinstance(one, dict):
                deeper += one.values()
            elif isinstance(one, list):
                deeper += one
            elif isinstance(one, msgspec.Struct):
                deeper += msgspec.structs.astuple(one)
        level = deeper


def _twice(name: str, within: str | None = None) -> JsonError:
    shown = ascii(name[:NESTING_MAX])
    where = "the key" if within is None else f"an object in {within[:NESTING_MAX]!a} has the key"
    return JsonError(f"{where} {shown} twice; each key may occur once", within or name)


_SEPARATORS = (
    (b"\xc2\x85", b"\\u0085"),
    (b"\xe2\x80\xa8", b"\\u2028"),
    (b"\xe2\x80\xa9", b"\\u2029"),
)


def escape_separators(text: bytes) -> bytes:
    """The JSON text without raw line separators of Unicode: some readers of lines split it there."""
    if not text.isascii():
        for separator, escaped in _SEPARATORS:
            text = text.replace(separator, escaped)
    return text


# ---------------------------------------------------------------- files of one object per line


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Lines that are not blank, with their numbers from 1. ConfigError if the file cannot be read.

    A line ends with a line feed only: U+2028, for one, is a character like any other inside of JSON.
    """
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                # Editors on Windows begin a file with a byte order mark.
                line = line.removeprefix(BOM_UTF8) if number == 1 else line
                if line.strip():
                    yield number, line
    except OSError as error:
        raise ConfigError(f"{path}: {(error.strerror or str(error)).lower()}") from None

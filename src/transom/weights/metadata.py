"""Typed access to a model file's metadata: a key has the right type, or the error names it."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from transom.errors import ModelFileError

Value = bool | int | float | str | Sequence[str] | NDArray[np.generic]


def shown(name: str) -> str:
    """A name from a file, made safe for a message: quoted, on one line, at most 80 characters."""
    return repr(name) if len(name) <= 80 else f"{name[:77]!r}..."


class Metadata(Mapping[str, Value]):
    """Metadata of a model file. Getters raise ModelFileError for a wrong type, and for a missing key without
    default.

    Getters record the keys that they are asked for, so that a loader can refuse a file with keys that it did
    not read: see `unread`. The methods of Mapping record nothing.
    """

    __slots__ = ("_file", "_read", "_values")

    def __init__(self, file: str, values: Mapping[str, Value]) -> None:
        self._file = file
        self._values = values
        self._read: set[str] = set()

    def __getitem__(self, key: str) -> Value:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def error(self, key: str, problem: str) -> ModelFileError:
        return ModelFileError(f"{self._file}: key {shown(key)}: {problem}")

    def unread(self) -> list[str]:
        """Keys of the file that no getter was asked for, in the order of the file."""
        return [key for key in self._values if key not in self._read]

    def optional(self, key: str) -> Value | None:
        """A value of any type; None if the key is missing."""
        self._read.add(key)
        return self._values.get(key)

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._find(key, default)
        if isinstance(value, bool) or not isinstance(value, int):  # Python's bool is an int
            raise self._mistyped(key, "an integer", value)
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._find(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._mistyped(key, "a number", value)
        return float(value)

    def flag(self, key: str, default: bool | None = None) -> bool:
        value = self._find(key, default)
        if not isinstance(value, bool):
            raise self._mistyped(key, "a flag", value)
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self._find(key, default)
        if not isinstance(value, str):
            raise self._mistyped(key, "a string", value)
        return value

    def strings(self, key: str) -> Sequence[str]:
        value = self._find(key, None)
        if isinstance(value, str | np.ndarray) or not isinstance(value, Sequence):
            raise self._mistyped(key, "an array of strings", value)
        return value

    def integers(self, key: str) -> NDArray[np.integer]:
        """An array of integers of any width, or of flags."""
        value = self._find(key, None)
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "iub":
            raise self._mistyped(key, "an array of integers", value)
        return value.astype(np.int64)

    def floats(self, key: str) -> NDArray[np.float32]:
        value = self._find(key, None)
        if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
            raise self._mistyped(key, "an array of floats", value)
        return value.astype(np.float32)

    def _find(self, key: str, default: Value | None) -> Value:
        found = self.optional(key)
        value = default if found is None else found
        if value is None:
            raise self.error(key, "is missing")
        return value

    def _mistyped(self, key: str, wanted: str, value: Value) -> ModelFileError:
        return self.error(key, f"is {type(value).__name__}, not {wanted}")

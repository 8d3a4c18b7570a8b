"""Reads GGUF files in place: parses the header; tensors are views of the mapped file.

A file is untrusted input. Time and memory stay proportional to its size, because no count in it sizes an
allocation before it was checked. Every failure is a `ModelFileError` of one line that names the file and the
key or tensor. Source: docs/gguf.md of the ggml project; versions 2 and 3, little endian.
"""

import mmap
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from math import prod
from pathlib import Path
from typing import overload

import numpy as np
from numpy.typing import NDArray

from transom.errors import ModelFileError
from transom.weights.metadata import Metadata, Value, shown

# Limits and default of the format's specification.
VERSIONS = (2, 3)
KEY_BYTES_MAX = 65_535
DIMENSIONS_MAX = 4
ALIGNMENT_DEFAULT = 32
# A page of the largest kind; no file needs more.
ALIGNMENT_MAX = 1 << 21
# A key's length, a type and a value of one byte; a name's length, one dimension, a type and an offset.
VALUE_BYTES_MIN, INFO_BYTES_MIN = 8 + 4 + 1, 8 + 4 + 8 + 4 + 8


class TensorType(IntEnum):
    """The tensor types that Transom supports, by their numbers in the file."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    BF16 = 30


BLOCKS: Mapping[TensorType, tuple[int, int]] = {
    TensorType.F32: (1, 4),
    TensorType.F16: (1, 2),
    TensorType.BF16: (1, 2),
    # One scale as float16 (2 bytes), in the types _1 also a minimum (2); then 16 bytes of nibbles, in Q5 also
    # 4 bytes of fifth bits, in Q8 32 bytes of codes.
    TensorType.Q4_0: (32, 18),
    TensorType.Q4_1: (32, 20),
    TensorType.Q5_0: (32, 22),
    TensorType.Q5_1: (32, 24),
    TensorType.Q8_0: (32, 34),
    # Eight groups of 32, in Q6_K sixteen of 16, with small integers as scales: see `blocks`.
    TensorType.Q4_K: (256, 144),
    TensorType.Q5_K: (256, 176),
    TensorType.Q6_K: (256, 210),
}
"""Per type: elements and bytes of a block."""


@dataclass(frozen=True, slots=True, eq=False)
class GgufTensor:
    """One tensor. `shape` has the outermost axis first: a matrix is `(out, in)`. `data` holds its bytes."""

    file: str
    name: str
    type: TensorType
    shape: tuple[int, ...]
    data: NDArray[np.uint8]
    start: int = 0
    """Where `data` starts in the file."""

    def error(self, problem: str) -> ModelFileError:
        return ModelFileError(f"{self.file}: tensor {shown(self.name)}: {problem}")

    def first_rows(self, rows: int) -> "GgufTensor":
        """A matrix of the first `rows` rows. Every row is a whole number of blocks."""
        size = self.data.size // self.shape[0]
        return replace(self, shape=(rows, *self.shape[1:]), data=self.data[: rows * size])


@dataclass(frozen=True, slots=True, eq=False)
class GgufFile:
    """A mapped file. Tensors are read-only views that keep the mapping alive; there is nothing to close.

    `tensor` records the names that it is asked for, so that a loader can refuse a file with tensors that it
    did not read: see `unread`.
    """

    path: Path
    metadata: Metadata
    tensors: Mapping[str, GgufTensor]
    _read: set[str] = field(default_factory=set)

    def tensor(self, name: str) -> GgufTensor:
        found = self.tensors.get(name)
        if found is None:
            raise ModelFileError(f"{self.path}: tensor {shown(name)} is missing")
        self._read.add(name)
        return found

    def unread(self) -> list[str]:
        """Names of the tensors that were not asked for, in the order of the file."""
        return [name for name in self.tensors if name not in self._read]


class StringArray(Sequence[str]):
    """The strings of an array value, decoded at each access: use `list(array)`, one pass.

    A vocabulary has hundreds of thousands of strings, and most processes that open a file never read them.
    """

    __slots__ = ("_buffer", "_count", "_start", "_where")

    def __init__(self, buffer: mmap.mmap, start: int, count: int, where: str) -> None:
        self._buffer, self._start, self._count, self._where = buffer, start, count, where

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        buffer, position, length_at = self._buffer, self._start, _U64.unpack_from
        try:
            for _ in range(self._count):
                end = position + 8 + length_at(buffer, position)[0]
                yield buffer[position + 8 : end].decode()
                position = end
        except UnicodeDecodeError as error:
            raise ModelFileError(f"{self._where}: a string is not UTF-8 (byte {position})") from error

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        return list(self)[index]


def read_gguf(path: Path) -> GgufFile:
    """Map and parse a file. ModelFileError."""
    cursor = _Cursor(_map(path), str(path))
    tensor_count, value_count = _read_preamble(cursor)
    metadata = Metadata(str(path), _read_values(cursor, value_count))
    infos = _read_infos(cursor, tensor_count)
    alignment = _alignment(metadata)
    data_start = _up(cursor.position, alignment)
    tensors = {info.name: _view(cursor, info, data_start) for info in infos}
    _check_offsets(cursor, infos, alignment, data_start)
    return GgufFile(path, metadata, tensors)


# ---------------------------------------------------------------- bytes

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


def _map(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            if size < 24:  # magic and version, 4 bytes each; two counts, 8 bytes each
                raise ModelFileError(f"{path}: not a GGUF file ({size} bytes)")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror}") from error


class _Cursor:
    """A mutable position in a mapped file. A read past the end raises an error with its context."""

    __slots__ = ("buffer", "file", "position", "size", "what")

    def __init__(self, buffer: mmap.mmap, file: str) -> None:
        self.buffer, self.file = buffer, file
        self.size = len(buffer)
        self.position = 0
        self.what = "header"

    def error(self, problem: str) -> ModelFileError:
        return ModelFileError(f"{self.file}: {self.what}: {problem}")

    def skip(self, count: int) -> int:
        """Move past `count` bytes; return the position where they begin."""
        start = self.position
        if count > self.size - start:
            raise self.error(f"file ends at byte {self.size}, {count} bytes are needed from {start}")
        self.position = start + count
        return start

    def u32(self) -> int:
        return int(_U32.unpack_from(self.buffer, self.skip(4))[0])

    def u64(self) -> int:
        return int(_U64.unpack_from(self.buffer, self.skip(8))[0])

    def string(self, longest: int | None = None) -> str:
        length = self.u64()
        if longest is not None and length > longest:
            raise self.error(f"a name of {length} bytes; at most {longest} are allowed")
        start = self.skip(length)
        try:
            return self.buffer[start : start + length].decode()
        except UnicodeDecodeError as error:
            raise self.error("a string is not UTF-8") from error


def _read_preamble(cursor: _Cursor) -> tuple[int, int]:
    """Tensor and metadata counts."""
    if cursor.buffer[:4] != b"GGUF":
        raise ModelFileError(f"{cursor.file}: not a GGUF file (it begins with {cursor.buffer[:4]!r})")
    cursor.skip(4)
    version = cursor.u32()
    if version not in VERSIONS:
        # A big-endian 3, read as little endian, is 0x03000000.
        kind = "a big-endian file" if version & 0xFFFF == 0 else f"GGUF version {version}"
        raise ModelFileError(
            f"{cursor.file}: {kind} is not supported; supported are versions 2 and 3, little endian"
        )
    counts = cursor.u64(), cursor.u64()
    cursor.what = "header"
    for count, what, least in zip(
        counts, ("tensors", "metadata entries"), (INFO_BYTES_MIN, VALUE_BYTES_MIN), strict=True
    ):
        if count * least > cursor.size:
            raise cursor.error(f"{count} {what}, of at least {least} bytes each, in {cursor.size} bytes")
    return counts


# ---------------------------------------------------------------- metadata

_STRING, _ARRAY = 8, 9
_SCALARS: Mapping[int, np.dtype[np.generic]] = {
    0: np.dtype("<u1"),
    1: np.dtype("<i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    7: np.dtype("?"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}


def _read_values(cursor: _Cursor, count: int) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for index in range(count):
        cursor.what = f"metadata entry {index + 1} of {count}"
        key = cursor.string(KEY_BYTES_MAX)
        cursor.what = f"key {shown(key)}"
        if key in values:
            raise cursor.error("appears twice")
        values[key] = _read_value(cursor)
    return values


def _read_value(cursor: _Cursor) -> Value:
    kind = cursor.u32()
    if kind == _STRING:
        return cursor.string()
    if kind == _ARRAY:
        return _read_array(cursor)
    return _read_scalars(cursor, kind, 1)[0].item()  # type: ignore[no-any-return]


def _read_array(cursor: _Cursor) -> Value:
    kind, count = cursor.u32(), cursor.u64()
    if kind == _STRING:
        return _read_strings(cursor, count)
    return _read_scalars(cursor, kind, count)


def _read_scalars(cursor: _Cursor, kind: int, count: int) -> NDArray[np.generic]:
    dtype = _SCALARS.get(kind)
    if dtype is None:
        raise cursor.error(f"value type {kind} is not supported")
    start = cursor.skip(count * dtype.itemsize)
    if dtype.kind == "b":
        # A file may have any byte here, and a numpy bool that is neither 0 nor 1 is undefined.
        return np.not_equal(np.frombuffer(cursor.buffer, np.uint8, count, start), 0)
    return np.frombuffer(cursor.buffer, dtype, count, start)


def _read_strings(cursor: _Cursor, count: int) -> StringArray:
    """Skips the array to find its end: the only loop over the vocabulary that opening a file needs."""
    start = position = cursor.position
    buffer, last, length_at = cursor.buffer, cursor.size - 8, _U64.unpack_from
    # Each string takes 8 bytes at least. Without this check, a wrong count would mean a loop of its length.
    if count > (cursor.size - start) // 8:
        raise cursor.error(f"{count} strings do not fit the file")
    for _ in range(count):
        if position > last:
            raise cursor.error(f"file ends at byte {cursor.size}, within an array of {count} strings")
        position += 8 + length_at(buffer, position)[0]
    cursor.skip(position - start)
    return StringArray(buffer, start, count, f"{cursor.file}: {cursor.what}")


# ---------------------------------------------------------------- tensors


@dataclass(frozen=True, slots=True)
class _Info:
    name: str
    type: TensorType
    shape: tuple[int, ...]
    offset: int

    @property
    def bytes(self) -> int:
        # Python's integers do not overflow, so no shape can make this product small by accident.
        elements, size = BLOCKS[self.type]
        return prod(self.shape) // elements * size


def _read_infos(cursor: _Cursor, count: int) -> list[_Info]:
    infos: dict[str, _Info] = {}
    # No list of `count` entries: a wrong count ends at the first read past the end of the file.
    for index in range(count):
        cursor.what = f"tensor {index + 1} of {count}"
        name = cursor.string(KEY_BYTES_MAX)
        cursor.what = f"tensor {shown(name)}"
        if name in infos:
            raise cursor.error("appears twice")
        infos[name] = _read_info(cursor, name)
    return list(infos.values())


def _read_info(cursor: _Cursor, name: str) -> _Info:
    dimensions = cursor.u32()
    if not 1 <= dimensions <= DIMENSIONS_MAX:
        raise cursor.error(f"{dimensions} dimensions; 1 to {DIMENSIONS_MAX} are allowed")
    # ggml names the innermost axis first.
    shape = tuple(cursor.u64() for _ in range(dimensions))[::-1]
    if 0 in shape:
        raise cursor.error(f"impossible shape {shape}")
    number, offset = cursor.u32(), cursor.u64()
    try:
        kind = TensorType(number)
    except ValueError:
        known = ", ".join(kind.name for kind in TensorType)
        raise cursor.error(f"type {_type_name(number)} is not supported; supported are {known}") from None
    block = BLOCKS[kind][0]
    # Blocks lie along rows; the decoders could not split one between two rows.
    if shape[-1] % block:
        raise cursor.error(f"impossible shape {shape}: rows of {kind.name} must be multiples of {block}")
    return _Info(name, kind, shape, offset)


def _alignment(metadata: Metadata) -> int:
    """Tensor data begins at a multiple of this number of bytes, and so does each tensor in it."""
    alignment = metadata.integer("general.alignment", ALIGNMENT_DEFAULT)
    if not 1 <= alignment <= ALIGNMENT_MAX or alignment & (alignment - 1):
        raise metadata.error("general.alignment", f"{alignment} is not a power of two up to {ALIGNMENT_MAX}")
    return alignment


def _check_offsets(cursor: _Cursor, infos: list[_Info], alignment: int, data_start: int) -> None:
    """Tensors fill the file, each from the next multiple of the alignment, as the format's library requires.

    A wrong type, shape or offset leaves a gap or an overlap. Each tensor would still be in bounds, and the
    model would answer nonsense.
    """
    end = 0
    for info in sorted(infos, key=lambda info: info.offset):
        cursor.what = f"tensor {shown(info.name)}"
        if info.offset != end:
            raise cursor.error(
                f"offset {info.offset}; {end} is expected, the end of the tensor before it, "
                f"in steps of {alignment}"
            )
        end = _up(info.offset + info.bytes, alignment)
    rest = cursor.size - _up(data_start + end, alignment)
    if infos and rest > 0:
        raise cursor.error(f"{rest} bytes follow this last tensor, which belong to no tensor")


def _up(position: int, alignment: int) -> int:
    return -(-position // alignment) * alignment


def _view(cursor: _Cursor, info: _Info, data_start: int) -> GgufTensor:
    count, start = info.bytes, data_start + info.offset
    cursor.what = f"tensor {shown(info.name)}"
    if start + count > cursor.size:
        raise cursor.error(f"needs bytes {start} to {start + count}, the file has {cursor.size}")
    data = np.frombuffer(cursor.buffer, np.uint8, count, start)
    return GgufTensor(cursor.file, info.name, info.type, info.shape, data, start)


# For error messages: names of types that Transom does not support.
_OTHER_TYPES: Mapping[int, str] = {
    2: "Q4_0",
    3: "Q4_1",
    7: "Q5_1",
    9: "Q8_1",
    10: "Q2_K",
    11: "Q3_K",
    13: "Q5_K",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
    40: "NVFP4",
}


def _type_name(number: int) -> str:
    return _OTHER_TYPES.get(number, str(number))

"""Numbers that a file claims are checked before any work or memory in proportion to them.

A tiny model is cut at every byte of its header, and every field of its header is replaced. The test finds the
fields with a parser of its own.
"""

import os
import re
import struct
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from tests.models.test_load_errors import rewritten
from tests.tiny_llama import write_tiny_llama

from transom.config import EngineConfig
from transom.engine.sizing import size_pools
from transom.errors import ModelFileError
from transom.models.load import load_model
from transom.text.tokenizer import Tokenizer
from transom.weights.gguf import read_gguf
from transom.weights.vocabulary import read_vocabulary

SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
STRING, ARRAY = 8, 9
PEAK_BYTES_MAX = 16 << 20
NAMED = re.compile(r"(key|tensor|metadata entry|tensor \d+ of|header|not a GGUF|GGUF version|big-endian)")


@dataclass
class Fields:
    """The places of numbers in a header: `(name, position, size)`. Mutable: `at` is where to go on."""

    content: bytes
    at: int = 4

    def number(self, name: str, size: int) -> tuple[int, tuple[str, int, int]]:
        field = (name, self.at, size)
        self.at += size
        return int.from_bytes(self.content[self.at - size : self.at], "little"), field

    def string(self, name: str) -> Iterator[tuple[str, int, int]]:
        length, field = self.number(f"{name}: length", 8)
        yield field
        self.at += length

    def all(self) -> Iterator[tuple[str, int, int]]:
        yield self.number("version", 4)[1]
        tensors, field = self.number("tensors", 8)
        yield field
        values, field = self.number("values", 8)
        yield field
        for index in range(values):
            yield from self.string(f"key {index}")
            yield from self.value(f"value {index}")
        for index in range(tensors):
            yield from self.string(f"tensor {index}")
            dimensions, field = self.number(f"tensor {index}: dimensions", 4)
            yield field
            for axis in range(dimensions):
                yield self.number(f"tensor {index}: axis {axis}", 8)[1]
            yield self.number(f"tensor {index}: type", 4)[1]
            yield self.number(f"tensor {index}: offset", 8)[1]

    def value(self, name: str) -> Iterator[tuple[str, int, int]]:
        kind, field = self.number(f"{name}: type", 4)
        yield field
        if kind == STRING:
            yield from self.string(name)
        elif kind != ARRAY:
            yield self.number(name, SIZES[kind])[1]
        else:
            inner, field = self.number(f"{name}: item type", 4)
            yield field
            count, field = self.number(f"{name}: items", 8)
            yield field
            for index in range(count):
                # All items are parsed; the first and the last stand for the rest.
                items = list(self.string(name)) if inner == STRING else [self.number(name, SIZES[inner])[1]]
                yield from items if index in (0, count - 1) else ()


def opened(path: Path) -> None:
    """What the server's two processes do with a file, up to the first request."""
    file = read_gguf(path)
    model = load_model(file)
    size_pools(model.spec, EngineConfig(page_size=1))
    Tokenizer(read_vocabulary(file))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """One layer, so that the header is short."""

    def change(values: dict[str, object], tensors: dict[str, np.ndarray]) -> None:
        values["llama.block_count"] = 1
        for name in [name for name in tensors if name.startswith("blk.1.")]:
            del tensors[name]

    folder = tmp_path_factory.mktemp("claims")
    return rewritten(write_tiny_llama(folder / "tiny.gguf"), folder / "small.gguf", change).read_bytes()


def replaced(value: int, size: int) -> set[int]:
    top = 1 << 8 * size - 1
    return {0, 1, value ^ 1, value ^ top, value ^ 1 << 8 * size - 4, 2 * top - 1, top - 1} - {value}


def test_a_field_with_another_number_is_read_or_refused_by_name(small: bytes, tmp_path: Path) -> None:
    path = tmp_path / "changed.gguf"
    refused, read = 0, set()
    tracemalloc.start()
    try:
        for name, at, size in Fields(small).all():
            before = int.from_bytes(small[at : at + size], "little")
            for number in sorted(replaced(before, size)):
                path.write_bytes(small[:at] + number.to_bytes(size, "little") + small[at + size :])
                tracemalloc.reset_peak()
                try:
                    opened(path)
                    read.add(name)
                except ModelFileError as error:
                    refused += 1
                    message = str(error)
                    assert message.startswith(f"{path}: ") and "\n" not in message, (name, number, message)
                    assert NAMED.search(message.removeprefix(str(path))), (name, number, message)
                except Exception as error:
                    raise AssertionError(f"{name} = {number} (byte {at})") from error
                assert tracemalloc.get_traced_memory()[1] < PEAK_BYTES_MAX, (name, number)
    finally:
        tracemalloc.stop()
    assert refused > 500
    # Not a shape, type or offset of a tensor, and not a count: their changes never pass unseen.
    allowed = ("version", "value ")
    assert all(name.startswith(allowed) and not name.endswith(("length", "items")) for name in read), read


def test_a_model_cut_at_any_byte_of_its_header_is_refused(small: bytes, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    *_, (_, last, size) = Fields(small).all()
    path.write_bytes(small)
    for length in reversed(range(last + size)):
        os.truncate(path, length)
        with pytest.raises(ModelFileError) as caught:
            read_gguf(path)
        assert str(caught.value).startswith(f"{path}: ") and "\n" not in str(caught.value)


@pytest.mark.parametrize("key", ["block_count", "context_length", "embedding_length", "attention.head_count"])
@pytest.mark.parametrize("number", [-(10**9), -1, 0, 10**9])
def test_a_claimed_size_is_refused_with_its_rule(small: bytes, tmp_path: Path, key: str, number: int) -> None:
    (tmp_path / "small.gguf").write_bytes(small)

    def change(values: dict[str, object], _: dict[str, np.ndarray]) -> None:
        values[f"llama.{key}"] = number & 0xFFFF_FFFF

    path = rewritten(tmp_path / "small.gguf", tmp_path / "claim.gguf", change)
    # The type of the value becomes int32, because the file's package writes these keys without a sign.
    name = f"llama.{key}".encode()
    content = path.read_bytes()
    at = content.index(struct.pack("<Q", len(name)) + name) + 8 + len(name)
    path.write_bytes(content[:at] + struct.pack("<Ii", 5, number) + content[at + 8 :])
    with pytest.raises(ModelFileError, match=rf"key 'llama\.{key}': is {number}; it must be [12] to "):
        opened(path)

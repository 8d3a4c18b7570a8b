"""The GGUF reader, against files written by the `gguf` package and against hostile ones made by hand."""

import struct
import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transom.errors import ModelFileError
from transom.weights.gguf import GgufFile, TensorType, read_gguf

# ---------------------------------------------------------------- files made by hand


def string(text: str | bytes) -> bytes:
    raw = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(raw)) + raw


def value(key: str | bytes, kind: int, payload: bytes) -> bytes:
    return string(key) + struct.pack("<I", kind) + payload


def u32(key: str, number: int) -> bytes:
    return value(key, 4, struct.pack("<I", number))


def strings(key: str, count: int, payload: bytes) -> bytes:
    return value(key, 9, struct.pack("<IQ", 8, count) + payload)


def info(name: str | bytes, dimensions: Sequence[int], kind: int = 0, offset: int = 0) -> bytes:
    shape = struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions)
    return string(name) + shape + struct.pack("<IQ", kind, offset)


@dataclass(frozen=True)
class Draft:
    """A GGUF file to be written, in which every number may be wrong."""

    values: Sequence[bytes] = ()
    infos: Sequence[bytes] = ()
    data: bytes = b""
    magic: bytes = b"GGUF"
    version: int = 3
    tensor_count: int | None = None
    value_count: int | None = None

    def bytes(self) -> bytes:
        tensors = len(self.infos) if self.tensor_count is None else self.tensor_count
        values = len(self.values) if self.value_count is None else self.value_count
        header = self.magic + struct.pack("<IQQ", self.version, tensors, values)
        header += b"".join(self.values) + b"".join(self.infos)
        return header + bytes(-len(header) % 32) + self.data if self.data else header


def write(folder: Path, content: Draft | bytes) -> Path:
    path = folder / "model.gguf"
    path.write_bytes(content if isinstance(content, bytes) else content.bytes())
    return path


GOOD = Draft(
    values=[
        value("name", 8, string("tiny")),
        strings("tokens", 3, string("a") + string("") + string("é")),
        value("scores", 9, struct.pack("<IQ3f", 6, 3, 0.0, -1.0, -2.0)),
        u32("layers", 2),
    ],
    infos=[info("norm", [4], 0, 0), info("matrix", [32, 2], 8, 32)],
    data=np.arange(4, dtype="<f4").tobytes() + bytes(16) + bytes(range(68)),
)

# ---------------------------------------------------------------- good files


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> GgufFile:
    path = tmp_path_factory.mktemp("written") / "model.gguf"
    writer = gguf.GGUFWriter(path, "gemma3")
    writer.add_uint8("u8", 255)
    writer.add_int8("i8", -128)
    writer.add_uint64("u64", 2**64 - 1)
    writer.add_int64("i64", -(2**63))
    writer.add_float32("f32", 1e-6)
    writer.add_float64("f64", 1e-300)
    writer.add_bool("yes", True)
    writer.add_bool("no", False)
    writer.add_string("text", "größer\n▁")
    writer.add_array("strings", ["", "a", "▁▁", "日本"])
    writer.add_array("flags", [True, False, True])
    writer.add_array("integers", [1, -2, 3])
    writer.add_array("floats", [0.5, -0.25])
    writer.add_tensor("vector", np.arange(5, dtype=np.float32))
    writer.add_tensor("half", np.arange(6, dtype=np.float16).reshape(2, 3))
    writer.add_tensor(
        "block", np.arange(4 * 34, dtype=np.uint8).reshape(2, 68), raw_dtype=gguf.GGMLQuantizationType.Q8_0
    )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return read_gguf(path)


def test_scalars_keep_value_and_type(written: GgufFile) -> None:
    expected = {
        "u8": 255,
        "i8": -128,
        "u64": 2**64 - 1,
        "i64": -(2**63),
        "f32": float(np.float32(1e-6)),
        "f64": 1e-300,
        "yes": True,
        "no": False,
        "text": "größer\n▁",
        "general.architecture": "gemma3",
    }
    for key, want in expected.items():
        assert written.metadata[key] == want and type(written.metadata[key]) is type(want), key


def test_arrays_come_through_their_typed_getters(written: GgufFile) -> None:
    metadata = written.metadata
    assert list(metadata.strings("strings")) == ["", "a", "▁▁", "日本"]
    assert (metadata.strings("strings")[3], len(metadata.strings("strings"))) == ("日本", 4)
    assert metadata.integers("flags").tolist() == [1, 0, 1]
    assert metadata.integers("integers").tolist() == [1, -2, 3]
    assert metadata.floats("floats").tolist() == [0.5, -0.25]


def test_getters_name_the_key_that_is_missing_or_of_another_type(written: GgufFile) -> None:
    metadata = written.metadata
    wrong = [
        lambda: metadata.integer("nothing"),
        lambda: metadata.integer("yes"),
        lambda: metadata.number("text"),
        lambda: metadata.flag("u8"),
        lambda: metadata.text("strings"),
        lambda: metadata.strings("text"),
        lambda: metadata.integers("floats"),
        lambda: metadata.floats("integers"),
    ]
    for get, key in zip(
        wrong, ["nothing", "yes", "text", "u8", "strings", "text", "floats", "integers"], strict=True
    ):
        with pytest.raises(ModelFileError, match=rf"model\.gguf: key '{key}': is "):
            get()


def test_getters_fall_back_to_their_default_only_when_the_key_is_missing(written: GgufFile) -> None:
    metadata = written.metadata
    assert (metadata.integer("nothing", 3), metadata.flag("nothing", False)) == (3, False)
    assert (metadata.integer("u8", 3), metadata.flag("yes", False)) == (255, True)


def test_tensors_have_their_type_shape_and_bytes(written: GgufFile) -> None:
    half, block = written.tensor("half"), written.tensor("block")
    assert (half.type, half.shape) == (TensorType.F16, (2, 3))
    assert half.data.view("<f2").tolist() == [0, 1, 2, 3, 4, 5]
    assert (block.type, block.shape, block.data.tolist()) == (TensorType.Q8_0, (2, 64), list(range(4 * 34)))
    assert not block.data.flags.writeable


def test_a_missing_tensor_is_named(written: GgufFile) -> None:
    with pytest.raises(ModelFileError, match=r"model\.gguf: tensor 'blk\.0\.x' is missing"):
        written.tensor("blk.0.x")


def test_the_draft_the_hostile_files_vary_is_a_good_file(tmp_path: Path) -> None:
    file = read_gguf(write(tmp_path, GOOD))
    assert file.tensor("norm").data.view("<f4").tolist() == [0, 1, 2, 3]
    assert file.tensor("matrix").data.tolist() == list(range(68))


# ---------------------------------------------------------------- bad files

ENDS = "key 'k': file ends"
LONG_STRING = struct.pack("<Q", 2**63) + bytes(16)
ODD_ALIGNMENT = u32("general.alignment", 24)
BAD: dict[str, tuple[Draft | bytes, str]] = {
    "empty": (b"", "not a GGUF file"),
    "other magic": (Draft(magic=b"GGML"), "not a GGUF file"),
    "version 1": (Draft(version=1), "GGUF version 1 is not supported"),
    "big endian": (Draft(version=3 << 24), "big-endian"),
    "2^60 values": (
        Draft(value_count=2**60),
        "header: 1152921504606846976 metadata entries, of at least 13 bytes each, in 24 bytes",
    ),
    "2^60 tensors": (
        Draft(tensor_count=2**60),
        "header: 1152921504606846976 tensors, of at least 32 bytes each",
    ),
    "string of 2^40": (Draft([string("k") + struct.pack("<IQ", 8, 2**40)]), "key 'k': file ends"),
    "key of 2^63": (Draft([struct.pack("<Q", 2**63)]), "a name of 9223372036854775808 bytes"),
    "key not utf-8": (Draft([value(b"\xff", 4, bytes(4))]), "not UTF-8"),
    "value not utf-8": (Draft([value("k", 8, string(b"\xff"))]), "key 'k': a string is not UTF-8"),
    "key twice": (Draft([u32("k", 1), u32("k", 1)]), "key 'k': appears twice"),
    "value type 99": (Draft([value("k", 99, bytes(8))]), "key 'k': value type 99"),
    "array of arrays": (Draft([value("k", 9, struct.pack("<IQ", 9, 1) + bytes(64))]), "value type 9"),
    "array of 2^62": (Draft([value("k", 9, struct.pack("<IQ", 10, 2**62))]), "key 'k': file ends"),
    "2^61 strings": (Draft([strings("k", 2**61, b"")]), "key 'k': 2305843009213693952 strings"),
    "huge string in array": (
        Draft([strings("k", 2, struct.pack("<Q", 2**63) + bytes(16))]),
        "key 'k': file ends",
    ),
    "alignment 24": (Draft([ODD_ALIGNMENT]), "key 'general.alignment': 24"),
    "alignment text": (Draft([value("general.alignment", 8, string("x"))]), "is str, not an integer"),
    "10^6 dimensions": (
        Draft(infos=[string("t") + struct.pack("<I", 10**6)]),
        "tensor 't': 1000000 dimensions",
    ),
    "no dimensions": (Draft(infos=[info("t", [])]), "tensor 't': 0 dimensions"),
    "zero rows": (Draft(infos=[info("t", [32, 0])]), r"tensor 't': impossible shape \(0, 32\)"),
    "product wraps": (Draft(infos=[info("t", [2**32, 2**32])]), "tensor 't': needs bytes"),
    "offset beyond": (Draft(infos=[info("t", [1], 0, 2**40)], data=bytes(64)), "tensor 't': needs bytes"),
    "offset wraps": (Draft(infos=[info("t", [1], 0, 2**64 - 32)], data=bytes(64)), "tensor 't': needs bytes"),
    "offset between": (
        Draft(infos=[info("t", [1], 0, 4)], data=bytes(64)),
        "tensor 't': offset 4; 0 is expected",
    ),
    "shared bytes": (
        Draft(infos=[info("a", [9], 0, 0), info("t", [1], 0, 32)], data=bytes(128)),
        "tensor 't': offset 32; 64 is expected, the end of the tensor before it, in steps of 32",
    ),
    "a gap": (
        Draft(infos=[info("a", [8]), info("t", [1], 0, 64)], data=bytes(96)),
        "tensor 't': offset 64; 32 is expected",
    ),
    "bytes of no tensor": (
        Draft(infos=[info("t", [8])], data=bytes(100)),
        "tensor 't': 68 bytes follow this last tensor",
    ),
    "alignment of 2^31": (Draft([u32("general.alignment", 2**31)]), "key 'general.alignment': 2147483648 is"),
    "unknown type": (Draft(infos=[info("t", [1], 77)], data=bytes(64)), "tensor 't': type 77 is not"),
    "type of another kind": (
        Draft(infos=[info("t", [256], 16)]),
        "tensor 't': type IQ2_XXS is not supported",
    ),
    "48 in features": (Draft(infos=[info("t", [48, 2], 8)]), "rows of Q8_0 must be multiples of 32"),
    "128 of q4_k": (Draft(infos=[info("t", [128, 2], 12)]), "rows of Q4_K must be multiples of 256"),
    "tensor twice": (
        Draft(infos=[info("t", [1]), info("t", [1])], data=bytes(64)),
        "tensor 't': appears twice",
    ),
    "line break in a name": (Draft(infos=[info("a\nb", [])]), r"tensor 'a\\nb'"),
    "long name": (Draft(infos=[info("n" * 10_000, [])]), r"nnn'\.\.\.: 0 dim"),
}


@pytest.mark.parametrize(("content", "says"), BAD.values(), ids=BAD.keys())
def test_a_bad_file_is_refused_in_one_line(content: Draft | bytes, says: str, tmp_path: Path) -> None:
    path = write(tmp_path, content)
    tracemalloc.start()
    with pytest.raises(ModelFileError, match=says) as caught:
        read_gguf(path)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    message = str(caught.value)
    assert message.startswith(f"{path}: ") and "\n" not in message and len(message) < len(str(path)) + 250
    assert peak_bytes < 10_000_000


@pytest.mark.parametrize("path", ["missing.gguf", "."])
def test_a_missing_file_and_a_folder_are_refused(path: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="cannot be read"):
        read_gguf(tmp_path / path)


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    whole = GOOD.bytes()
    for length in range(len(whole)):
        with pytest.raises(ModelFileError):
            read_gguf(write(tmp_path, whole[:length]))


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), min_size=1, max_size=8), st.booleans())
def test_a_header_with_changed_bytes_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]], extremes: bool
) -> None:
    content = bytearray(GOOD.bytes())
    for at, byte in changes:
        content[at % len(content)] = (0xFF if byte & 1 else 0) if extremes else byte
    path = write(tmp_path_factory.getbasetemp(), bytes(content))
    tracemalloc.start()
    try:
        file = read_gguf(path)
        for key in file.metadata:
            list(np.atleast_1d(np.array(file.metadata[key])))
    except ModelFileError as error:
        assert "\n" not in str(error)
    finally:
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak_bytes < 10_000_000

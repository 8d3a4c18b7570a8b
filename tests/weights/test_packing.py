"""Packing, compared with `gguf.quants.dequantize`; and native packing with numpy, to the bit."""

import importlib.util
import os
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from unittest import mock

import gguf
import numpy as np
import pytest

from transom.errors import ModelFileError
from transom.ops import pack as layout
from transom.ops.protocol import FloatMatrix, Matrix, PackedMatrix, Precision
from transom.weights.blocks import FORMATS
from transom.weights.builtin import resolve_model
from transom.weights.gguf import BLOCKS, GgufTensor, TensorType, read_gguf
from transom.weights.packing import pack, vector

FLOATS = [kind for kind in TensorType if kind not in FORMATS]
HALVES = {
    TensorType.Q4_0: [0],
    TensorType.Q4_1: [0, 2],
    TensorType.Q5_0: [0],
    TensorType.Q5_1: [0, 2],
    TensorType.Q8_0: [0],
    TensorType.Q4_K: [0, 2],
    TensorType.Q5_K: [0, 2],
    TensorType.Q6_K: [208],
}
"""Positions of float16 numbers in a block: random bytes there could be infinities."""


@pytest.fixture(params=["native", "numpy"], autouse=True)
def twin(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param == "native" and importlib.util.find_spec("transom._native") is None:
        pytest.skip("the extension is not built")
    with mock.patch.dict(os.environ, TRANSOM_NATIVE="1" if request.param == "native" else "0"):
        yield


def tensor(kind: TensorType, out: int, width: int, seed: int = 0) -> GgufTensor:
    """Random bits, with finite numbers of all sizes."""
    random = np.random.default_rng([seed, kind, out, width])
    elements, size = BLOCKS[kind]
    blocks = random.integers(0, 256, (out * width // elements, size), dtype=np.uint8)
    if kind in FORMATS:
        for at in HALVES[kind]:
            blocks[:, at + 1] &= 0xBF
    else:
        blocks[:, -1] &= 0xBF
    return GgufTensor("f", f"t{seed}", kind, (out, width), blocks.reshape(-1))


def oracle(one: GgufTensor) -> np.ndarray:
    kind = gguf.GGMLQuantizationType(one.type)
    return np.ascontiguousarray(gguf.quants.dequantize(one.data.reshape(one.shape[0], -1), kind))


def values(matrix: Matrix) -> np.ndarray:
    """`[out, in]`; the product and the sum are rounded separately, like in the oracle."""
    if isinstance(matrix, FloatMatrix):
        return layout.unpack_float(matrix)
    codes, scales, zero_offsets = layout.unpack(matrix)
    products = np.repeat(scales, matrix.group, axis=1) * codes.astype(np.float32)
    return products if zero_offsets is None else products + np.repeat(zero_offsets, matrix.group, axis=1)


def assert_same_bits(a: np.ndarray, b: np.ndarray) -> None:
    assert (a.dtype, a.shape) == (b.dtype, b.shape)
    assert np.array_equal(a.view(np.uint32), b.view(np.uint32))


def assert_same_numbers(a: np.ndarray, b: np.ndarray) -> None:
    """Equal except for the sign of zero: adding a zero offset of +0 turns -0 into +0."""
    assert a.shape == b.shape and np.array_equal(a, b)


@pytest.mark.parametrize("out", [1, 15, 16, 17, 700])
@pytest.mark.parametrize("kind", TensorType, ids=lambda kind: kind.name)
def test_packed_weights_are_the_file_s_to_the_bit(kind: TensorType, out: int) -> None:
    one = tensor(kind, out, 512)
    assert_same_bits(values(pack([one], Precision.INT8)), oracle(one))


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.name)
def test_padding_has_code_zero_and_scale_zero(kind: TensorType) -> None:
    matrix = pack([tensor(kind, 5, 256)], Precision.INT16)
    assert isinstance(matrix, PackedMatrix)
    assert (matrix.codes[0, :, 5:] == 128).all() and (matrix.scales[0, :, 5:] == 0).all()
    assert matrix.zero_offsets is None or (matrix.zero_offsets[0, :, 5:] == 0).all()
    assert (matrix.out_features, matrix.in_features, matrix.precision) == (5, 256, Precision.INT16)


def test_float_padding_is_zero() -> None:
    matrix = pack([tensor(TensorType.BF16, 3, 64)], Precision.INT8)
    assert isinstance(matrix, FloatMatrix) and (matrix.values[0, :, 3:] == 0).all()


JOINS = {
    "same kind": ([TensorType.Q5_0] * 3, 32, False),
    "q, k of one kind, v of another": ([TensorType.Q5_0, TensorType.Q5_0, TensorType.Q8_0], 32, False),
    "zero_offsets beside none": ([TensorType.Q8_0, TensorType.Q4_K, TensorType.Q5_0], 32, True),
    "groups of 16 and 32": ([TensorType.Q8_0, TensorType.Q6_K], 16, False),
    "all at once": ([TensorType.Q6_K, TensorType.Q4_K, TensorType.Q5_0], 16, True),
}


@pytest.mark.parametrize("outs", [(16, 32, 48), (3, 30, 1), (100, 7, 600)])
@pytest.mark.parametrize(("kinds", "group", "has_zero_offsets"), JOINS.values(), ids=JOINS.keys())
def test_joined_tensors_keep_their_rows_in_order(
    kinds: list[TensorType], group: int, has_zero_offsets: bool, outs: tuple[int, ...]
) -> None:
    parts = [tensor(kind, out, 256, seed) for seed, (kind, out) in enumerate(zip(kinds, outs, strict=False))]
    matrix = pack(parts, Precision.INT8)
    assert isinstance(matrix, PackedMatrix)
    assert (matrix.group, matrix.zero_offsets is not None) == (group, has_zero_offsets)
    assert_same_numbers(values(matrix), np.concatenate([oracle(part) for part in parts]))


@pytest.mark.parametrize("second", [TensorType.F32, TensorType.BF16, TensorType.Q4_K])
def test_a_float_tensor_among_others_makes_a_float_matrix(second: TensorType) -> None:
    parts = [tensor(TensorType.F16, 20, 256), tensor(second, 3, 256, 1)]
    matrix = pack(parts, Precision.INT8)
    assert isinstance(matrix, FloatMatrix)
    assert_same_bits(values(matrix), np.concatenate([oracle(part) for part in parts]))


@pytest.mark.parametrize("kind", FLOATS, ids=lambda kind: kind.name)
def test_a_vector_is_float32_and_the_caller_s_own(kind: TensorType) -> None:
    one = tensor(kind, 1, 96)
    flat = GgufTensor("f", "norm", kind, (96,), one.data)
    assert_same_bits(vector(flat), oracle(one)[0])
    assert vector(flat).flags.writeable and not np.shares_memory(vector(flat), one.data)


def test_shapes_that_do_not_fit_are_refused_by_name() -> None:
    narrow = GgufTensor("f", "t", TensorType.F32, (2, 48), np.zeros(384, np.uint8))
    cube = GgufTensor("f", "t", TensorType.F32, (2, 2, 32), np.zeros(512, np.uint8))
    wrong = {
        "f: tensor 't': impossible shape": lambda: pack([narrow], Precision.INT8),
        "f: tensor 't': shape .*matrix": lambda: pack([cube], Precision.INT8),
        "f: tensor 't1': rows of 64, but 't0' has rows of 32": lambda: pack(
            [tensor(TensorType.Q8_0, 2, 32), tensor(TensorType.Q8_0, 2, 64, 1)], Precision.INT8
        ),
        "f: tensor 't0': shape .*one dimension": lambda: vector(tensor(TensorType.F32, 2, 32)),
        "f: tensor 'q': type Q8_0": lambda: vector(
            GgufTensor("f", "q", TensorType.Q8_0, (32,), np.zeros(34, np.uint8))
        ),
    }
    for says, call in wrong.items():
        with pytest.raises(ModelFileError, match=says):
            call()


@pytest.mark.model
@pytest.mark.parametrize(
    "names",
    [
        ["blk.0.attn_q.weight", "blk.0.attn_k.weight", "blk.0.attn_v.weight"],
        ["blk.5.ffn_gate.weight", "blk.5.ffn_up.weight"],
        ["blk.0.ffn_down.weight"],
        ["blk.5.ffn_down.weight"],
        ["blk.0.attn_output.weight"],
    ],
    ids=lambda names: names[0],
)
def test_the_default_model_s_matrices_are_the_file_s(names: list[str]) -> None:
    file = read_gguf(resolve_model(None))
    parts = [file.tensor(name) for name in names]
    assert_same_numbers(values(pack(parts, Precision.INT8)), np.concatenate([oracle(part) for part in parts]))


@pytest.mark.model
def test_native_and_numpy_packing_agree_on_the_default_models_largest_matrix(twin: None) -> None:
    if os.environ["TRANSOM_NATIVE"] == "0":
        pytest.skip("compared once")
    path: Path = resolve_model(None)
    embedding = read_gguf(path).tensor("token_embd.weight")
    native = pack([embedding], Precision.INT8)
    with mock.patch.dict(os.environ, TRANSOM_NATIVE="0"):
        numpy = pack([embedding], Precision.INT8)
    for entry in fields(native):
        assert np.array_equal(getattr(native, entry.name), getattr(numpy, entry.name)), entry.name


@pytest.mark.parametrize(("kind", "at"), [(kind, at) for kind, places in HALVES.items() for at in places])
def test_a_scale_or_minimum_that_is_not_finite_is_refused_with_its_row(kind: TensorType, at: int) -> None:
    good, bad = tensor(kind, 20, 512), tensor(kind, 7, 512, seed=1)
    blocks = bad.data.reshape(7, -1, BLOCKS[kind][1])
    blocks[5, 1, at : at + 2] = np.frombuffer(np.float16("nan").tobytes(), np.uint8)
    with pytest.raises(
        ModelFileError, match=r"tensor 't1': a (scale|zero offset) of row 5 is nan; it must be"
    ):
        pack([good, bad], Precision.INT8)


@pytest.mark.parametrize("kind", FLOATS)
def test_a_float_that_is_not_finite_is_refused_with_its_row(kind: TensorType) -> None:
    bad = tensor(kind, 40, 64)
    element = bad.data.reshape(40, 64, -1)[33, 60]
    element[:] = 0
    element[-2:] = [0x80, 0x7F] if kind is not TensorType.F16 else [0x00, 0x7C]
    with pytest.raises(ModelFileError, match="tensor 't0': a value of row 33 is inf; it must be finite"):
        pack([bad], Precision.INT8)

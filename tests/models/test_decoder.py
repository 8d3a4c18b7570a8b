"""The decoder: backends agree, and the reference is right by an independent float32 computation."""

import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.engine.schedules import cold_logits
from tests.tiny import vocabulary, write_tiny_gguf

from transom.models.load import load_model
from transom.models.rope import RopeTable
from transom.models.spec import Model, Rope, weights_bytes
from transom.ops.float32 import Float32Ops
from transom.ops.native import NativeOps
from transom.ops.protocol import Matrix, PackedMatrix, Precision
from transom.ops.reference import ReferenceOps
from transom.ops.store import KVType
from transom.weights.gguf import read_gguf

TOKENS = 90


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load_model(read_gguf(write_tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf")))


@pytest.fixture(scope="module")
def tokens() -> list[int]:
    return np.random.default_rng(5).integers(4, len(vocabulary()), TOKENS).tolist()


def test_native_and_numpy_logits_have_the_same_bits(model: Model, tokens: list[int]) -> None:
    native = cold_logits(NativeOps(2), model, tokens, first=1)
    numpy = cold_logits(ReferenceOps(), model, tokens, first=1)
    assert native.tobytes() == numpy.tobytes()


def test_wide_activation_codes_come_within_a_thousandth_of_the_float32_reference(
    model: Model, tokens: list[int]
) -> None:
    wide = cold_logits(ReferenceOps(), with_wide_codes(model), tokens, 1, KVType.FLOAT32)
    exact = cold_logits(Float32Ops(), model, tokens, 1, KVType.FLOAT32)
    assert np.abs(wide - exact).max() < 1e-3 * np.abs(exact).max()


def with_wide_codes(model: Model) -> Model:
    """The same weights with 16-bit activations everywhere: the result is close to float32."""

    def wide(matrix: Matrix) -> Matrix:
        return replace(matrix, precision=Precision.INT16) if isinstance(matrix, PackedMatrix) else matrix

    weights = model.weights
    layers = tuple(
        replace(
            layer,
            qkv=wide(layer.qkv),
            output=wide(layer.output),
            gate_up=wide(layer.gate_up),
            down=wide(layer.down),
        )
        for layer in weights.layers
    )
    return Model(model.spec, replace(weights, layers=layers, head=wide(weights.head)))


def test_the_first_token_reaches_the_last_through_the_full_layer(model: Model, tokens: list[int]) -> None:
    changed = [tokens[0] ^ 1, *tokens[1:]]
    before, after = (cold_logits(Float32Ops(), model, t, first=1) for t in (tokens, changed))
    differs = np.abs(before - after).max(axis=1) > 0
    assert differs.all(), "the full layer carries the first token to the last"


def test_rope_tables_equal_cosines_computed_directly() -> None:
    rope = Rope(base=10_000.0, dim=32, factor=2.0)
    positions = np.array([0, 1, 255, 256, 257, 5000, 32_767], dtype=np.int32)
    table = RopeTable(rope).at(positions)
    angles = positions[:, None] / 2.0 * 10_000.0 ** (-np.arange(0, 32, 2) / 32)
    np.testing.assert_allclose(table[:, 0], np.cos(angles), atol=1e-7)
    np.testing.assert_allclose(table[:, 1], np.sin(angles), atol=1e-7)


def test_weights_shared_by_embedding_and_head_are_counted_once(model: Model) -> None:
    assert model.weights.embedding is model.weights.head
    matrices = [model.weights.embedding]
    for layer in model.weights.layers:
        matrices += [layer.qkv, layer.output, layer.gate_up, layer.down]
    assert weights_bytes(model.weights) == sum(m.codes.nbytes + m.scales.nbytes for m in matrices)  # type: ignore[union-attr]


def test_gemma_has_every_sixth_layer_full(tmp_path: Path) -> None:
    spec = load_model(read_gguf(write_tiny_gguf(tmp_path / "tiny.gguf"))).spec
    assert [layer.attention.window is None for layer in spec.layers] == [False] * 5 + [True]
    assert [layer.index for layer in spec.layers_of(1)] == [0, 1, 2, 3, 4]
    assert {layer.rope.base for layer in spec.layers_of(1)} == {10_000.0}


def test_a_rope_table_grows_with_the_positions_and_keeps_every_bit() -> None:
    """A model file may claim any context. What was asked before, and in which order, changes no rotation."""
    rope = Rope(500_000.0, 64)
    places = np.array([3, 65_535, 65_536, 200_000, 1_000_000], dtype=np.int32)
    tracemalloc.start()
    RopeTable(rope).at(places[:2])
    few = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert few < 1 << 20
    whole = RopeTable(rope).at(places)
    grown = RopeTable(rope)
    for number, place in enumerate(places):
        assert (grown.at(np.array([place], dtype=np.int32)) == whole[number]).all()
    frequencies = 500_000.0 ** (-np.arange(0, 64, 2) / 64)
    angles = places[:, None] * frequencies
    assert np.abs(whole[:, 0] - np.cos(angles)).max() < 1e-7
    assert RopeTable(rope).at(places[:0]).shape == (0, 2, 32)

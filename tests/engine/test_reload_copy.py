"""A live update of the weights reads a private copy: a file that shrinks meanwhile is no danger."""

import os
from pathlib import Path

import numpy as np
import pytest
from tests.models.test_load_errors import Change, rewritten
from tests.tiny import write_tiny_gguf
from tests.tiny_llama import write_tiny_llama

from transom.config import EngineConfig
from transom.engine import reload
from transom.engine.engine import load_engine
from transom.errors import BadRequest
from transom.weights.gguf import read_gguf


def test_a_file_that_is_truncated_while_it_is_read_is_refused_and_the_engine_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_tiny_gguf(tmp_path / "tiny.gguf")
    other = write_tiny_gguf(tmp_path / "other.gguf", seed=1)
    ready, engine = load_engine(EngineConfig(model=str(model), max_total_tokens=1000, threads=1))
    served = engine.model
    pread = os.pread

    def shrinking(descriptor: int, count: int, offset: int) -> bytes:
        os.truncate(other, 20_000)
        return pread(descriptor, count, offset)

    monkeypatch.setattr(reload.os, "pread", shrinking)
    with pytest.raises(BadRequest, match="was truncated while it was read"):
        engine.disk.load(str(other))
    assert engine.model is served and engine.weights() == ready.weights


def test_the_identity_follows_the_weights_and_notices_another_file_at_the_same_path(tmp_path: Path) -> None:
    model = write_tiny_gguf(tmp_path / "tiny.gguf")
    other = write_tiny_gguf(tmp_path / "other.gguf", seed=1)
    ready, engine = load_engine(EngineConfig(model=str(model), max_total_tokens=1000, threads=1))
    engine.disk.load(str(other))
    assert engine.weights() == reload.identity_of(other) != ready.weights == reload.identity_of(model)
    other.replace(model)
    assert reload.identity_of(model) != ready.weights


def test_a_loaded_copy_outlives_its_file(tmp_path: Path) -> None:
    model = write_tiny_gguf(tmp_path / "tiny.gguf")
    other = write_tiny_gguf(tmp_path / "other.gguf", seed=1)
    _, engine = load_engine(EngineConfig(model=str(model), max_total_tokens=1000, threads=1))
    engine.disk.load(str(other))
    os.truncate(other, 0)
    weights = engine.model.weights
    assert repr(weights)  # reads the small arrays; a mapping of the file would end this process with SIGBUS


def test_a_check_reads_vectors_that_lie_behind_the_header(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Llama 3's rope factors may be the last tensor of a file of gigabytes."""
    model = write_tiny_llama(tmp_path / "tiny.gguf", rope_freqs=True)
    file = read_gguf(model)
    header = min(tensor.start for tensor in file.tensors.values())
    assert file.tensors["rope_freqs.weight"].start > header > 0
    _, engine = load_engine(EngineConfig(model=str(model), max_total_tokens=1000, threads=1))
    monkeypatch.setattr(reload, "HEADER_BYTES", header)
    engine.disk.check(str(model))
    with pytest.raises(BadRequest, match="is not of the model that is served"):
        engine.disk.check(str(rewritten_factors(model, tmp_path / "other.gguf")))


def rewritten_factors(source: Path, path: Path) -> Path:
    file = read_gguf(source)
    data = bytearray(source.read_bytes())
    start = file.tensors["rope_freqs.weight"].start
    data[start : start + 4] = np.float32(3).tobytes()
    path.write_bytes(data)
    return path


UNUSABLE: dict[str, tuple[Change, str]] = {
    "a claimed number of layers": (
        lambda values, _: values.update({"gemma3.block_count": 1_000_000}),
        "block_count': is 1000000; the file has tensors of 6 blocks",
    ),
    "an unknown key": (
        lambda values, _: values.update({"gemma3.attention.clamp": 1}),
        "attention.clamp': is 1, and is not supported",
    ),
    "a tensor without a place": (
        lambda _, tensors: tensors.update({"blk.0.attn_q.bias": np.ones(128, np.float32)}),
        "tensor 'blk.0.attn_q.bias': has no place",
    ),
    "NaN in a norm": (
        lambda _, tensors: tensors.update({"output_norm.weight": np.full(64, np.nan, np.float32)}),
        "tensor 'output_norm.weight': element 0 is nan",
    ),
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_a_file_that_cannot_be_served_is_refused_and_the_engine_keeps_its_weights(
    case: str, tmp_path: Path
) -> None:
    model = write_tiny_gguf(tmp_path / "tiny.gguf")
    change, says = UNUSABLE[case]
    other = rewritten(model, tmp_path / "other.gguf", change)
    ready, engine = load_engine(EngineConfig(model=str(model), max_total_tokens=1000, threads=1))
    served = engine.model
    with pytest.raises(BadRequest) as caught:
        engine.disk.load(str(other))
    assert says in caught.value.message and str(other) in caught.value.message
    assert engine.model is served and engine.weights() == ready.weights

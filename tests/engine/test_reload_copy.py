"""A live update of the weights reads a private copy: a file that shrinks meanwhile is no danger."""

import os
from pathlib import Path

import pytest
from tests.tiny import write_tiny_gguf

from transom.config import EngineConfig
from transom.engine import reload
from transom.engine.engine import load_engine
from transom.errors import BadRequest


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

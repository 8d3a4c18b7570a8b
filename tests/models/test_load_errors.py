"""GGUF files that are not a supported model: an error of one line that names file and tensor."""

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from tests.tiny import write_tiny_gguf

from transom.errors import ModelFileError
from transom.models.load import load_model
from transom.weights.gguf import read_gguf

Change = Callable[[dict[str, object], dict[str, np.ndarray]], None]


def rewritten(source: Path, target: Path, change: Change) -> Path:
    """A copy of a GGUF file with metadata values and tensors changed, tensors as float32."""
    reader = gguf.GGUFReader(source)
    values = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    kinds = {key: field.types[0] for key, field in reader.fields.items()}
    tensors = {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in reader.tensors}
    change(values, tensors)
    writer = gguf.GGUFWriter(target, str(values.pop("general.architecture")))
    for key, value in values.items():
        if isinstance(value, list):
            writer.add_array(key, value)
        else:
            guess = gguf.GGUFValueType.UINT32 if type(value) is int else gguf.GGUFValueType.get_type(value)
            writer.add_key_value(key, value, kinds.get(key, guess))
    for name, tensor in tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(tensor, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def without(name: str) -> Change:
    def change(values: dict[str, object], tensors: dict[str, np.ndarray]) -> None:
        assert values.pop(name, None) is not None or tensors.pop(name, None) is not None, name

    return change


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


CASES: dict[str, tuple[Change, str]] = {
    "unknown architecture": (
        lambda values, _: values.update({"general.architecture": "nonesuch"}),
        "architecture 'nonesuch' is not supported",
    ),
    "missing tensor": (without("blk.3.attn_k.weight"), "blk.3.attn_k.weight"),
    "missing norm": (without("output_norm.weight"), "output_norm.weight"),
    "wrong shape": (
        lambda _, tensors: tensors.update({"blk.0.attn_q.weight": tensors["blk.0.attn_q.weight"][:-1]}),
        "blk.0.attn_q.weight",
    ),
    "matrix where a norm is expected": (
        lambda _, tensors: tensors.update({"output_norm.weight": np.ones((2, 64), np.float32)}),
        "output_norm.weight",
    ),
    "vector where the embedding is expected": (
        lambda _, tensors: tensors.update({"token_embd.weight": np.ones(64, np.float32)}),
        "token_embd.weight",
    ),
    "no window": (without("gemma3.attention.sliding_window"), "sliding_window"),
    "window of nothing": (
        lambda values, _: values.update({"gemma3.attention.sliding_window": 0}),
        "sliding_window': is 0; it must be 1 to",
    ),
    "heads that do not divide": (
        lambda values, _: values.update({"gemma3.attention.head_count_kv": 3}),
        "head_count_kv': is 3; it must divide 4",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_an_unusable_model_file_is_named_in_one_line(tiny: Path, tmp_path: Path, case: str) -> None:
    change, names = CASES[case]
    path = rewritten(tiny, tmp_path / "odd.gguf", change)
    with pytest.raises(ModelFileError) as caught:
        load_model(read_gguf(path))
    message = str(caught.value)
    assert names in message and str(path) in message and "\n" not in message, message


def test_float_weights_make_a_model_too(tiny: Path, tmp_path: Path) -> None:
    model = load_model(read_gguf(rewritten(tiny, tmp_path / "float.gguf", lambda values, tensors: None)))
    assert model.spec.dim == 64

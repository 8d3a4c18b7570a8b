"""A file is read whole or refused: tensors and keys without a use in the family, and sizes that disagree."""

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from tests.models.test_load_errors import Change, rewritten
from tests.tiny import write_tiny_gguf
from tests.tiny_llama import HEAD_DIM, write_tiny_llama

from transom.errors import ModelFileError
from transom.models.load import load_model, read_spec
from transom.weights.gguf import read_gguf

Write = Callable[[Path], Path]
FAMILIES: dict[str, Write] = {"gemma3": write_tiny_gguf, "llama": write_tiny_llama}
MISREAD = {
    key.removeprefix("{arch}.")
    for key in vars(gguf.Keys.Attention).values()
    if isinstance(key, str) and key.startswith("{arch}.attention.")
} | {
    key.removeprefix("{arch}.")
    for group in (gguf.Keys.LLM, gguf.Keys.Rope, gguf.Keys.SSM)
    for key in vars(group).values()
    if isinstance(key, str) and key.startswith("{arch}.")
}
"""Every key of an architecture that the format's own package knows."""
SCALING_ONLY = {"rope.scaling.original_context_length", "rope.scaling.finetuned"}


def tensor(name: str, *shape: int) -> Change:
    return lambda _, tensors: tensors.update({name: np.ones(shape, np.float32)})


def key(name: str, value: object) -> Change:
    return lambda values, _: values.update({name: value})


def spoilt(name: str, row: int, value: float = np.nan) -> Change:
    def change(_: dict[str, object], tensors: dict[str, np.ndarray]) -> None:
        tensors[name] = tensors[name].copy()
        tensors[name][row, ...] = value

    return change


def rows(more: int) -> Change:
    """An embedding with more or fewer rows than the tokenizer has pieces."""

    def change(_: dict[str, object], tensors: dict[str, np.ndarray]) -> None:
        tensors["token_embd.weight"] = np.resize(
            tensors["token_embd.weight"], (len(tensors["token_embd.weight"]) + more, 64)
        )

    return change


@pytest.fixture(scope="module", params=FAMILIES)
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return FAMILIES[request.param](tmp_path_factory.mktemp("whole") / f"{request.param}.gguf")


def refusal(source: Path, folder: Path, change: Change) -> str:
    path = rewritten(source, folder / "changed.gguf", change)
    with pytest.raises(ModelFileError) as caught:
        load_model(read_gguf(path))
    message = str(caught.value)
    assert message.startswith(f"{path}: ") and "\n" not in message, message
    return message.removeprefix(f"{path}: ")


UNREAD = {
    "blk.0.attn_q.bias": (64,),
    "blk.1.attn_v.bias": (64,),
    "blk.0.ffn_down.bias": (64,),
    "blk.0.attn_sinks.weight": (4,),
    "output.bias": (64,),
    "output_norm.bias": (64,),
    "token_types.weight": (2, 64),
    "cls.weight": (2, 64),
    "of another program": (3,),
}


@pytest.mark.parametrize("name", UNREAD)
def test_a_tensor_without_a_place_is_refused_by_name(source: Path, tmp_path: Path, name: str) -> None:
    message = refusal(source, tmp_path, tensor(name, *UNREAD[name]))
    assert message == f"tensor '{name}': has no place in this architecture"


def test_further_tensors_without_a_place_are_counted(source: Path, tmp_path: Path) -> None:
    def change(_: dict[str, object], tensors: dict[str, np.ndarray]) -> None:
        tensors.update({f"blk.1.attn_{name}.bias": np.ones(64, np.float32) for name in "qkv"})

    assert refusal(source, tmp_path, change).endswith("architecture (and 2 more)")


def test_a_tensor_of_another_family_is_refused(tmp_path: Path) -> None:
    gemma, llama = write_tiny_gguf(tmp_path / "g.gguf"), write_tiny_llama(tmp_path / "l.gguf")
    assert "'rope_freqs.weight'" in refusal(gemma, tmp_path, tensor("rope_freqs.weight", HEAD_DIM // 2))
    assert "attn_q_norm.weight'" in refusal(llama, tmp_path, tensor("blk.0.attn_q_norm.weight", HEAD_DIM))


def test_every_key_of_the_format_is_read_or_refused_by_name(source: Path, tmp_path: Path) -> None:
    """77 is the value of no key in these files, so a key that is read changes the spec or is refused."""
    plain = read_spec(read_gguf(source))
    for name in sorted(MISREAD - SCALING_ONLY):
        full = f"{source.stem}.{name}"
        path = rewritten(source, tmp_path / "key.gguf", key(full, 77))
        try:
            changed = read_spec(read_gguf(path))
        except ModelFileError as error:
            assert full in str(error), error
        else:
            assert changed != plain, f"{full} is 77 and changes nothing"


CASES: dict[str, tuple[Change, str]] = {
    "bidirectional": (key("A.attention.causal", False), "causal': is False; only True is supported"),
    "soft caps": (key("A.final_logit_softcapping", 30.0), "softcapping': is 30.0; only 0.0 is supported"),
    "score scale": (key("A.attention.scale", 0.5), "attention.scale': is 0.5; only 0.17"),
    "value width": (key("A.attention.value_length", 64), "value_length': is 64; only 32 is supported"),
    "yarn": (key("A.rope.scaling.type", "yarn"), "scaling.type': 'yarn' is not supported"),
    "MLP": (key("A.feed_forward_length", 128), "is 128; only 96 is supported, the rows of 'blk.0.ffn_gate"),
    "vocabulary": (key("A.vocab_size", 5), "is 5; only "),
    "unknown": (key("A.invented", "x"), "invented': is 'x', and is not supported"),
    "shard": (key("split.count", 2), "split.count': the file is one of 2 shards"),
    "adapter": (key("general.type", "adapter"), "general.type': 'adapter' is not supported"),
    "fewer blocks": (tensor("blk.6.attn_norm.weight", 64), "block_count': is "),
    "five rows too few": (rows(-5), "tokens': has "),
    "a NaN in a norm": (
        spoilt("blk.1.ffn_norm.weight", 7),
        "ffn_norm.weight': element 7 is nan; all must be",
    ),
    "an infinity in a norm": (spoilt("output_norm.weight", 0, np.inf), "element 0 is inf; all must be"),
    "a NaN in a matrix": (
        spoilt("blk.1.attn_v.weight", 5),
        "attn_v.weight': a value of row 5 is nan; it must",
    ),
    "a NaN in the head": (spoilt("token_embd.weight", -1), "token_embd.weight': a value of row 2"),
    "no eps": (
        key("A.attention.layer_norm_rms_epsilon", 0.0),
        "epsilon': is 0.0; it must be finite and above",
    ),
    "eps NaN": (key("A.attention.layer_norm_rms_epsilon", np.nan), "epsilon': is nan; it must be finite"),
    "rope base": (key("A.rope.freq_base", np.inf), "freq_base': is inf; it must be finite and above 0"),
    "rope factor": (key("A.rope.scaling.factor", 0.0), "factor': is 0.0; it must be finite and above 0"),
    "no heads": (key("A.attention.head_count", 0), "head_count': is 0; it must be 1 to"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_key_with_another_meaning_is_refused(source: Path, tmp_path: Path, case: str) -> None:
    change, says = CASES[case]

    def of_family(values: dict[str, object], tensors: dict[str, np.ndarray]) -> None:
        change(values, tensors)
        for name in [name for name in values if name.startswith("A.")]:
            values[name.replace("A.", f"{source.stem}.")] = values.pop(name)

    assert says in refusal(source, tmp_path, of_family)


def test_keys_that_state_what_is_served_are_accepted(source: Path, tmp_path: Path) -> None:
    """Converters differ in what they write. The split of one shard and notes of tools are harmless."""
    name = source.stem
    stated: dict[str, object] = {
        f"{name}.attention.causal": True,
        f"{name}.attention.scale": 32**-0.5,
        f"{name}.attention.value_length": 32,
        f"{name}.rope.dimension_count": 32,
        f"{name}.expert_count": 0,
        f"{name}.final_logit_softcapping": 0.0,
        f"{name}.rope.scaling.type": "none",
        f"{name}.rope.scaling.original_context_length": 1024,
        "split.count": 0,
        "general.type": "model",
        "quantize.imatrix.chunks_count": 5,
        "some.tool.version": "1",
    }
    path = rewritten(source, tmp_path / "stated.gguf", lambda values, _: values.update(stated))
    assert read_spec(read_gguf(path)) == read_spec(read_gguf(source))


@pytest.mark.parametrize(("kind", "served"), [("linear", 4.0), ("none", 1.0), (None, 4.0)])
def test_a_scaling_factor_counts_for_linear_scaling_only(
    source: Path, tmp_path: Path, kind: str | None, served: float
) -> None:
    def change(values: dict[str, object], _: dict[str, np.ndarray]) -> None:
        values[f"{source.stem}.rope.scaling.factor"] = 4.0
        if kind:
            values[f"{source.stem}.rope.scaling.type"] = kind

    spec = read_spec(read_gguf(rewritten(source, tmp_path / "scaled.gguf", change)))
    assert spec.layers_of(0)[0].rope.factor == served


def test_window_layers_take_their_own_rope_base_and_the_usual_pattern(tmp_path: Path) -> None:
    source = write_tiny_gguf(tmp_path / "tiny.gguf")

    def change(values: dict[str, object], _: dict[str, np.ndarray]) -> None:
        values["gemma3.rope.freq_base_swa"] = 20_000.0
        values["gemma3.attention.sliding_window_pattern"] = [True] * 5 + [False]

    spec = read_spec(read_gguf(rewritten(source, tmp_path / "base.gguf", change)))
    assert [layer.rope.base for layer in spec.layers] == [20_000.0] * 5 + [1_000_000.0]
    for pattern in (2, [True] * 6, [True] * 4 + [False] * 2):
        message = refusal(source, tmp_path, key("gemma3.attention.sliding_window_pattern", pattern))
        assert "sliding_window_pattern" in message

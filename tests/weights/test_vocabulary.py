"""Reading vocabularies, from small model files that the tests write."""

from pathlib import Path
from typing import Any

import gguf
import pytest

from transom.errors import ModelFileError
from transom.text.tokenizer import Tokenizer
from transom.text.vocabulary import ByteLevel
from transom.weights.gguf import read_gguf
from transom.weights.vocabulary import read_vocabulary

PIECES = ["<pad>", "<eos>", "<bos>", "<unk>", "<0x00>", "<end_of_turn>", "a", "b", "ab", "▁", "  "]
GOOD: dict[str, Any] = {
    "model": "llama",
    "tokens": PIECES,
    "scores": [0.0] * 6 + [-1.0, -2.0, -3.0, -4.0, 0.0],
    "token_type": [3, 3, 3, 3, 6, 3, 1, 1, 1, 1, 4],
    "bos_token_id": 2,
    "eos_token_id": 1,
    "unknown_token_id": 3,
    "add_space_prefix": False,
}


BYTE_LEVEL: dict[str, Any] = {
    "model": "gpt2",
    "pre": "smollm",
    "tokens": ["<|end|>", "a", "b", "Ġ", "Ġa", "Ġab"],
    "token_type": [3, 1, 1, 1, 1, 1],
    "scores": None,
    "merges": ["Ġ a", "Ġa b"],
    "bos_token_id": 0,
    "eos_token_id": 0,
    "unknown_token_id": None,
    "add_space_prefix": None,
}


def write(folder: Path, changes: dict[str, Any], *, architecture: str = "gemma3", template: str = "") -> Path:
    path = folder / "model.gguf"
    writer = gguf.GGUFWriter(path, architecture)
    for name, value in {**GOOD, **changes}.items():
        key = f"tokenizer.ggml.{name}"
        match value:
            case None:
                pass
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_uint32(key, value)
            case str():
                writer.add_string(key, value)
            case list():
                writer.add_array(key, value)
    if template:
        writer.add_chat_template(template)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def read(folder: Path, **changes: Any) -> Tokenizer:
    return Tokenizer(read_vocabulary(read_gguf(write(folder, changes))))


def test_a_small_vocabulary_encodes_and_decodes(tmp_path: Path) -> None:
    tokenizer = read(tmp_path)
    assert tokenizer.encode("abba  b ").tolist() == [2, 8, 7, 6, 10, 7, 9]
    assert tokenizer.decode([2, 8, 10, 9, 4, 5]) == "ab   \0"
    assert tokenizer.encode("a\0é").tolist() == [2, 6, 4, 3]


def test_stop_ids_come_from_the_file_and_from_the_names_of_tokens(tmp_path: Path) -> None:
    assert read(tmp_path).stop_ids == {1, 5}
    assert read(tmp_path, eot_token_id=7, eom_token_id=8).stop_ids == {1, 5, 7, 8}


LLAMA_3: dict[str, Any] = {
    **BYTE_LEVEL,
    "pre": "llama-bpe",
    "tokens": [
        "<|begin_of_text|>",
        "a",
        "b",
        "<|end_of_text|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|start_header_id|>",
        "ab",
    ],
    "token_type": [3, 1, 1, 3, 3, 3, 3, 1],
    "merges": ["a b"],
    "bos_token_id": 0,
    "eos_token_id": 3,
}


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_a_llama_3_file_adds_bos_and_ends_turns_in_any_architecture(
    architecture: str, tmp_path: Path
) -> None:
    """Llama 3's files name <|end_of_text|> only, and leave add_bos_token out."""
    tokenizer = Tokenizer(read_vocabulary(read_gguf(write(tmp_path, LLAMA_3, architecture=architecture))))
    assert tokenizer.encode("abb").tolist() == [0, 7, 2]
    assert tokenizer.stop_ids == {3, 4, 5}
    assert read(tmp_path, **{**LLAMA_3, "add_bos_token": False}).encode("abb").tolist() == [7, 2]


@pytest.mark.parametrize(
    "name", ["<|im_end|>", "<|endoftext|>", "<|end|>", "<|eot_id|>", "<end_of_turn>", "<EOT>"]
)
def test_a_control_token_that_ends_turns_by_its_name_ends_them_in_every_file(
    name: str, tmp_path: Path
) -> None:
    changes = {**BYTE_LEVEL, "tokens": [name, "a", "b", "Ġ", "Ġa", "Ġab"], "eos_token_id": 1}
    assert read(tmp_path, **changes).stop_ids == {0, 1}


@pytest.mark.parametrize(
    ("name", "same"),
    [
        ("llama3", "llama-bpe"),
        ("llama-v3", "llama-bpe"),
        ("falcon3", "llama-bpe"),
        ("deepseek-r1-qwen", "qwen2"),
        ("stablelm2", "qwen2"),
        ("starcoder", "smollm"),
        ("olmo", "gpt-2"),
        ("phi-2", "gpt-2"),
    ],
)
def test_names_of_the_same_split_are_known(name: str, same: str, tmp_path: Path) -> None:
    spelled = [
        read_vocabulary(read_gguf(write(tmp_path, {**BYTE_LEVEL, "pre": pre}))) for pre in (name, same)
    ]
    first, second = (vocabulary.spelling for vocabulary in spelled)
    assert isinstance(first, ByteLevel) and isinstance(second, ByteLevel)
    assert first.cut == second.cut and spelled[0].adds_bos == spelled[1].adds_bos


def test_a_normal_piece_spelled_like_an_end_of_turn_is_no_stop_token(tmp_path: Path) -> None:
    assert read(tmp_path, token_type=[3, 3, 3, 3, 6, 1, 1, 1, 1, 1, 4]).stop_ids == {1}


def test_bos_is_added_unless_the_file_says_no_or_has_none(tmp_path: Path) -> None:
    assert read(tmp_path).encode("a").tolist() == [2, 6]
    assert read(tmp_path, add_bos_token=True).encode("a").tolist() == [2, 6]
    assert read(tmp_path, add_bos_token=False).encode("a").tolist() == [6]
    assert read(tmp_path, bos_token_id=None).encode("a").tolist() == [6]


def test_keys_that_change_no_token_are_accepted(tmp_path: Path) -> None:
    harmless = {"padding_token_id": 0, "add_eos_token": False, "mask_token_id": 4, "pre": "default"}
    assert read(tmp_path, **harmless).encode("a").tolist() == [2, 6]


def test_the_chat_template_of_the_file_is_read(tmp_path: Path) -> None:
    assert read_vocabulary(read_gguf(write(tmp_path, {}))).chat_template is None
    assert read_vocabulary(read_gguf(write(tmp_path, {}, template="{{ x }}"))).chat_template == "{{ x }}"


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "another kind": ({"model": "bert"}, "model': 'bert' is not supported"),
    "space prefix": ({"add_space_prefix": True}, "add_space_prefix': .* not supported"),
    "space prefix by default": ({"add_space_prefix": None}, "add_space_prefix': .* not supported"),
    "no tokens": ({"tokens": None}, "tokens': is missing"),
    "no scores": ({"scores": None}, "scores': is missing"),
    "short scores": ({"scores": [0.0]}, "scores': 1 entries for 11 tokens"),
    "a score of NaN": (
        {"scores": [0.0] * 10 + [float("nan")]},
        "scores': the score of token 10 is not finite",
    ),
    "short kinds": ({"token_type": [1]}, "token_type': 1 entries for 11 tokens"),
    "another type": ({"token_type": [3] * 10 + [7]}, "token_type': token 10 has type 7; types are 1 to 6"),
    "same twice": ({"tokens": ["a", *PIECES[1:]]}, "tokens': two tokens are the same"),
    "endless token": ({"tokens": ["a" * 2000, *PIECES[1:]]}, "tokens': a token of 2000"),
    "no byte": ({"tokens": [*PIECES[:4], "<0xZZ>", *PIECES[5:]]}, "tokens': token 4 is not a byte: '<0xZZ>'"),
    "bos beyond": ({"bos_token_id": 11}, "bos_token_id': 11 is not one of 11"),
    "eot beyond": ({"eot_token_id": 11}, "eot_token_id': 11 is not one of 11"),
    "no bytes, no unknown": ({"unknown_token_id": None}, "unknown_token_id': is missing, and so are"),
    "end added": ({"add_eos_token": True}, "add_eos_token': is True; only False is supported"),
    "spaces removed": ({"remove_extra_whitespaces": True}, "remove_extra_whitespaces': is True"),
    "another normal form": ({"precompiled_charsmap": [1]}, "precompiled_charsmap': is not supported"),
    "bos a string": ({"bos_token_id": "x"}, "bos_token_id': is str, not an integer"),
}


def test_a_byte_level_vocabulary_encodes_and_decodes_and_adds_no_bos_by_default(tmp_path: Path) -> None:
    tokenizer = read(tmp_path, **BYTE_LEVEL)
    assert tokenizer.encode("a ab a").tolist() == [1, 5, 4]
    assert tokenizer.decode([1, 5, 4, 0]) == "a ab a"
    assert read(tmp_path, **{**BYTE_LEVEL, "add_bos_token": True}).encode("a").tolist() == [0, 1]


BAD |= {
    f"bytes: {name}": ({**BYTE_LEVEL, **changes}, says)
    for name, (changes, says) in {
        "another cut": ({"pre": "nonesuch"}, "pre': 'nonesuch' is not supported"),
        "no merges": ({"merges": None}, "merges': is missing"),
        "merge of one": ({"merges": ["Ġa"]}, "merges': entry 0 does not merge two tokens into one: 'Ġa'"),
        "merge of no token": (
            {"merges": ["Ġ a", "b b"]},
            "merges': entry 1 does not merge two tokens into one: 'b b'",
        ),
        "no bytes": (
            {"tokens": ["<|end|>", "a", "b", " ", "Ġa", "Ġab"]},
            "token 3 is not made of byte characters: ' '",
        ),
    }.items()
}


@pytest.mark.parametrize(("changes", "says"), BAD.values(), ids=BAD.keys())
def test_an_unusable_vocabulary_is_refused_by_key(changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    path = write(tmp_path, changes)
    with pytest.raises(ModelFileError, match=says) as caught:
        read_vocabulary(read_gguf(path))
    assert str(caught.value).startswith(f"{path}: key 'tokenizer.ggml.") and "\n" not in str(caught.value)

"""Exported tokenizers, loaded with the `tokenizers` library like other tools do."""

import json
from pathlib import Path

import pytest
import tokenizers
from tests.cli.test_serve import one_line, transom
from tests.tiny import write_tiny_gguf
from tests.tiny_llama import write_tiny_llama

from transom.text.tokenizer import Tokenizer
from transom.weights.export import export_tokenizer
from transom.weights.gguf import GgufFile, read_gguf
from transom.weights.vocabulary import read_vocabulary

TEXTS = ("the art is in the hat", "  two  spaces\n", "äöü 日本 👧", "a<eos>b <|end|> c", "", "12 34")


@pytest.fixture(params=[write_tiny_gguf, write_tiny_llama], ids=["pieces", "bytes"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> GgufFile:
    return read_gguf(request.param(tmp_path / "tiny.gguf"))


def test_ids_and_text_are_those_of_the_server(file: GgufFile, tmp_path: Path) -> None:
    export_tokenizer(file, tmp_path / "tok")
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tok" / "tokenizer.json"))
    ours = Tokenizer(read_vocabulary(file))
    for text in TEXTS:
        ids = theirs.encode(text).ids
        assert ids == ours.encode(text).tolist(), text
        assert theirs.decode(ids) == ours.decode(ids), text
        assert theirs.encode(text, add_special_tokens=False).ids == ours.encode(text, bos=False).tolist()


def test_the_configuration_has_the_keys_that_tools_read(file: GgufFile, tmp_path: Path) -> None:
    paths = export_tokenizer(file, tmp_path / "new" / "tok")
    assert [path.name for path in paths] == ["tokenizer.json", "tokenizer_config.json", "config.json"]
    words, numbers = (json.loads(path.read_text()) for path in paths[1:])
    vocabulary = read_vocabulary(file)
    assert words["eos_token"] == vocabulary.pieces[numbers["eos_token_id"][0]]
    assert words["model_max_length"] == numbers["max_position_embeddings"] > 0
    assert numbers["vocab_size"] == len(vocabulary.pieces)


def test_the_command_writes_the_files_and_fails_in_one_line(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "tiny.gguf")
    good = transom("export-tokenizer", str(tmp_path / "tok"), "--model", str(path))
    assert good.returncode == 0 and len(good.stdout.split()) == 3, good
    taken = one_line(transom("export-tokenizer", str(path), "--model", str(path)), 1)
    assert "cannot be written" in taken

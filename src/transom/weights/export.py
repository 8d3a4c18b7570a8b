"""Exports a model file's tokenizer to the files that Hugging Face's libraries read, for offline tools."""

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, processors

from transom.errors import ConfigError
from transom.text.chat import GEMMA_TEMPLATE
from transom.text.spelling import SPACE, spelling_of
from transom.text.vocabulary import ByteLevel, PieceKind, Vocabulary
from transom.weights.gguf import GgufFile
from transom.weights.vocabulary import read_vocabulary

MODEL_TYPES = {"gemma3": "gemma3_text", "llama": "llama"}
"""From an architecture in a model file to the `model_type` of transformers."""


def export_tokenizer(file: GgufFile, folder: Path) -> list[Path]:
    """Write tokenizer.json, tokenizer_config.json and config.json; return their paths.

    The exported tokenizer encodes to the same ids as `Tokenizer.encode`, with one exception: a "▁" in the
    text stays a "▁" there, and is a space here. ModelFileError, ConfigError.
    """
    vocabulary = read_vocabulary(file)
    files = {
        "tokenizer.json": json.loads(whole_tokenizer(vocabulary).to_str()),
        "tokenizer_config.json": _tokenizer_config(file, vocabulary),
        "config.json": _config(file, vocabulary),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / name).write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n")
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written: {error.strerror}") from error
    return [folder / name for name in files]


def whole_tokenizer(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    """The tokenizer with control tokens, the begin-of-sequence token and a decoder."""
    whole = spelling_of(vocabulary).encoder
    control = vocabulary.ids_of(PieceKind.CONTROL) + vocabulary.ids_of(PieceKind.UNKNOWN)
    whole.add_special_tokens(
        [AddedToken(vocabulary.pieces[i], normalized=False, special=True) for i in control]
    )
    if vocabulary.adds_bos and vocabulary.bos is not None:
        bos = vocabulary.pieces[vocabulary.bos]
        whole.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, vocabulary.bos)]
        )
    whole.decoder = _decoder(vocabulary)
    return whole


def _decoder(vocabulary: Vocabulary) -> decoders.Decoder:
    if isinstance(vocabulary.spelling, ByteLevel):
        return decoders.ByteLevel()
    return decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])


def _tokenizer_config(file: GgufFile, vocabulary: Vocabulary) -> dict[str, Any]:
    def piece(token: int | None) -> str | None:
        return None if token is None else vocabulary.pieces[token]

    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": _context(file),
        "add_bos_token": vocabulary.adds_bos,
        "clean_up_tokenization_spaces": False,
        "bos_token": piece(vocabulary.bos),
        "eos_token": piece(vocabulary.eos),
        "pad_token": piece(vocabulary.eos),
        "unk_token": piece(vocabulary.unknown),
        "chat_template": _chat_template(vocabulary),
    }


def _chat_template(vocabulary: Vocabulary) -> str | None:
    if vocabulary.chat_template is None and "<start_of_turn>" in vocabulary.pieces:
        return GEMMA_TEMPLATE
    return vocabulary.chat_template


def _config(file: GgufFile, vocabulary: Vocabulary) -> dict[str, Any]:
    architecture = file.metadata.text("general.architecture")
    return {
        "model_type": MODEL_TYPES.get(architecture, architecture),
        "vocab_size": len(vocabulary.pieces),
        "max_position_embeddings": _context(file),
        "hidden_size": file.metadata.integer(f"{architecture}.embedding_length"),
        "num_hidden_layers": file.metadata.integer(f"{architecture}.block_count"),
        "num_attention_heads": file.metadata.integer(f"{architecture}.attention.head_count"),
        "bos_token_id": vocabulary.bos,
        "eos_token_id": sorted(vocabulary.stop_ids),
    }


def _context(file: GgufFile) -> int:
    return file.metadata.integer(f"{file.metadata.text('general.architecture')}.context_length")

"""Reads the vocabulary from the metadata of a model file."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from transom.text.spelling import BYTE_OF
from transom.text.vocabulary import ByteLevel, Cut, PieceKind, SentencePiece, Vocabulary
from transom.weights.gguf import GgufFile
from transom.weights.metadata import Metadata, shown

Kinds = NDArray[np.int32]
"""The `PieceKind` of every piece."""

PIECE_CHARACTERS_MAX = 1024
"""Finding merges takes time that grows with the square of a piece's length. Real pieces stay below 200."""

_TURN_ENDS = frozenset(
    (
        *("<eos>", "<end_of_turn>"),  # Gemma
        *("<|end_of_text|>", "<|eot_id|>", "<|eom_id|>"),  # Llama 3; Granite has the first too
        *("<|endoftext|>", "<|im_end|>"),  # ChatML: Qwen, SmolLM and many fine-tuned models
        *("<|end|>", "<|return|>", "<|call|>"),  # Phi; the last two are of OpenAI's harmony format
        *(
            "<EOT>",
            "_<EOT>",
            "[EOT]",
            "<end_of_utterance>",
            "<｜end▁of▁sentence｜>",
        ),  # DeepSeek's is the last
    )
)
"""Control tokens that end an answer in every family. Files name one or two of them, and not always the one
that the chat template makes the model write. The list is llama.cpp's, with Gemma's <eos>."""

_CUTS: Mapping[str, Cut] = {
    name: cut
    for cut, names in {
        Cut.GPT2: "gpt-2 phi-2 mpt olmo jais trillion granite-docling gigachat mellum",
        Cut.SMOLLM: "smollm starcoder refact command-r codeshell exaone minerva-7b",
        Cut.LLAMA3: "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2",
        Cut.QWEN2: "qwen2 deepseek-r1-qwen stablelm2 hunyuan kormo",
    }.items()
    for name in names.split()
}
"""Values of `tokenizer.ggml.pre` that mean the same expressions in llama.cpp. A converter chooses the name by
the model that it recognizes."""


def read_vocabulary(file: GgufFile) -> Vocabulary:
    """ModelFileError if a key is missing or inconsistent, or the kind of tokenizer is not supported."""
    metadata = file.metadata
    pieces = list(metadata.strings("tokenizer.ggml.tokens"))
    _check_pieces(metadata, pieces)
    kinds = _kinds(metadata, len(pieces))
    bos = _token(metadata, "bos_token_id", len(pieces))
    spelling = _spelling(metadata, pieces, kinds)
    vocabulary = Vocabulary(
        pieces=pieces,
        kinds=kinds,
        bos=bos,
        eos=_token(metadata, "eos_token_id", len(pieces)),
        unknown=_token(metadata, "unknown_token_id", len(pieces)),
        adds_bos=metadata.flag("tokenizer.ggml.add_bos_token", _adds_bos(spelling, bos)),
        stop_ids=_stop_ids(metadata, pieces, kinds == PieceKind.CONTROL),
        chat_template=metadata.text("tokenizer.chat_template", "") or None,
        spelling=spelling,
    )
    _require_read(metadata)
    return vocabulary


_OFF = ("add_eos_token", "add_sep_token", "remove_extra_whitespaces", "add_space_prefix")
"""Flags that change the tokens of a text, and are supported only if they are off."""

_HARMLESS = frozenset(
    f"tokenizer.ggml.{name}"
    # Tokens that only other programs need, and settings of the other spelling.
    for name in (
        "pre",
        "scores",
        "merges",
        "unknown_token_id",
        "token_type_count",
        *(f"{name}_token_id" for name in ("padding", "seperator", "separator", "cls", "mask")),
        *(f"{name}_token_id" for name in ("prefix", "suffix", "middle")),
        *(f"fim_{name}_token_id" for name in ("pre", "suf", "mid", "pad", "rep", "sep")),
    )
)


def _require_read(metadata: Metadata) -> None:
    """ModelFileError names a key of the tokenizer that has a meaning and was not read."""
    for name in _OFF:
        key = f"tokenizer.ggml.{name}"
        if metadata.flag(key, False):
            raise metadata.error(key, "is True; only False is supported")
    for key in metadata.unread():
        # Outside of tokenizer.ggml.* there are only further templates and copies for other programs.
        if key.startswith("tokenizer.ggml.") and key not in _HARMLESS:
            raise metadata.error(key, "is not supported")


def _kinds(metadata: Metadata, count: int) -> Kinds:
    key = "tokenizer.ggml.token_type"
    kinds = metadata.integers(key)
    _check_length(metadata, "token_type", len(kinds), count)
    strange = ~np.isin(kinds, list(PieceKind))
    if strange.any():
        token = _first(strange)
        raise metadata.error(key, f"token {token} has type {kinds[token]}; types are 1 to 6")
    return kinds.astype(np.int32)


def _adds_bos(spelling: SentencePiece | ByteLevel, bos: int | None) -> bool:
    """The default of llama.cpp for files that do not say: Llama 3's files leave the key out."""
    return bos is not None and (isinstance(spelling, SentencePiece) or spelling.cut == Cut.LLAMA3)


def _spelling(metadata: Metadata, pieces: list[str], kinds: Kinds) -> SentencePiece | ByteLevel:
    match metadata.text("tokenizer.ggml.model"):
        case "llama":
            return _sentencepiece(metadata, pieces, kinds)
        case "gpt2":
            return _byte_level(metadata, pieces, kinds)
        case kind:
            raise metadata.error(
                "tokenizer.ggml.model", f"{shown(kind)} is not supported; supported are 'llama' and 'gpt2'"
            )


def _check_length(metadata: Metadata, name: str, length: int, pieces: int) -> None:
    if length != pieces:
        raise metadata.error(f"tokenizer.ggml.{name}", f"{length} entries for {pieces} tokens")


# ---------------------------------------------------------------- SentencePiece


def _sentencepiece(metadata: Metadata, pieces: list[str], kinds: Kinds) -> SentencePiece:
    if metadata.flag("tokenizer.ggml.add_space_prefix", True):
        raise metadata.error(
            "tokenizer.ggml.add_space_prefix", "adding a space before the text is not supported"
        )
    scores = metadata.floats("tokenizer.ggml.scores")
    _check_length(metadata, "scores", len(scores), len(pieces))
    if not np.isfinite(scores).all():  # merges are sorted by score
        raise metadata.error(
            "tokenizer.ggml.scores", f"the score of token {_first(~np.isfinite(scores))} is not finite"
        )
    _check_bytes(metadata, pieces, kinds == PieceKind.BYTE)
    unknown = _token(metadata, "unknown_token_id", len(pieces))
    if unknown is None and np.count_nonzero(kinds == PieceKind.BYTE) < 256:
        raise metadata.error(
            "tokenizer.ggml.unknown_token_id", "is missing, and so are tokens for some bytes"
        )
    return SentencePiece(scores)


# ---------------------------------------------------------------- byte-level, as in GPT-2


def _byte_level(metadata: Metadata, pieces: list[str], kinds: Kinds) -> ByteLevel:
    key = "tokenizer.ggml.pre"
    name = metadata.text(key, Cut.GPT2)
    if name not in _CUTS:
        raise metadata.error(key, f"{shown(name)} is not supported; supported are {', '.join(_CUTS)}")
    _check_spelled(metadata, pieces, kinds)
    return ByteLevel(_CUTS[name], _merges(metadata, set(pieces)))


def _check_spelled(metadata: Metadata, pieces: list[str], kinds: Kinds) -> None:
    known = set(BYTE_OF)
    for i in np.flatnonzero(kinds == PieceKind.NORMAL).tolist():
        if not known.issuperset(pieces[i]):
            raise metadata.error(
                "tokenizer.ggml.tokens", f"token {i} is not made of byte characters: {shown(pieces[i])}"
            )


def _merges(metadata: Metadata, pieces: set[str]) -> list[tuple[str, str]]:
    key = "tokenizer.ggml.merges"
    found = []
    for number, line in enumerate(metadata.strings(key)):
        left, space, right = line.partition(" ")
        if not space or not {left, right, left + right} <= pieces:
            raise metadata.error(key, f"entry {number} does not merge two tokens into one: {shown(line)}")
        found.append((left, right))
    return found


# ---------------------------------------------------------------- common checks


def _first(where: np.ndarray) -> int:
    return int(np.flatnonzero(where)[0])


def _check_pieces(metadata: Metadata, pieces: list[str]) -> None:
    key = "tokenizer.ggml.tokens"
    if not pieces:
        raise metadata.error(key, "is empty")
    # Ids are looked up by piece, so two equal pieces would make one of the ids unreachable.
    if len(set(pieces)) < len(pieces):
        raise metadata.error(key, "two tokens are the same")
    longest = max(map(len, pieces))
    if longest > PIECE_CHARACTERS_MAX:
        raise metadata.error(
            key, f"a token of {longest} characters; at most {PIECE_CHARACTERS_MAX} are allowed"
        )


def _check_bytes(metadata: Metadata, pieces: list[str], is_byte: np.ndarray) -> None:
    expected = {f"<0x{byte:02X}>" for byte in range(256)}
    for i in np.flatnonzero(is_byte).tolist():
        if pieces[i] not in expected:
            raise metadata.error("tokenizer.ggml.tokens", f"token {i} is not a byte: {shown(pieces[i])}")


def _token(metadata: Metadata, name: str, count: int) -> int | None:
    key = f"tokenizer.ggml.{name}"
    if key not in metadata:
        return None
    token = metadata.integer(key)
    if not 0 <= token < count:
        raise metadata.error(key, f"{token} is not one of {count} tokens")
    return token


def _stop_ids(metadata: Metadata, pieces: list[str], is_control: np.ndarray) -> frozenset[int]:
    named = (_token(metadata, f"{name}_token_id", len(pieces)) for name in ("eos", "eot", "eom"))
    usual = (i for i in np.flatnonzero(is_control).tolist() if pieces[i] in _TURN_ENDS)
    return frozenset(usual) | {token for token in named if token is not None}

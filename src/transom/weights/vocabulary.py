"""The tokenizer's part of a model file."""

from collections.abc import Mapping

import numpy as np

from transom.text.vocabulary import PieceKind, Vocabulary
from transom.weights.gguf import GgufFile
from transom.weights.metadata import Metadata, shown

PIECE_CHARACTERS_MAX = 1024
"""Work grows with the square of a piece's length; real ones stay below 200."""

_TURN_ENDS: Mapping[str, tuple[str, ...]] = {"gemma3": ("<eos>", "<end_of_turn>")}
"""Per architecture, control tokens that end an answer, whether or not the file says so."""


def read_vocabulary(file: GgufFile) -> Vocabulary:
    """Raises `ModelFileError` for what is missing, inconsistent or of another kind of tokenizer."""
    metadata = file.metadata
    _check_kind(metadata)
    pieces = list(metadata.strings("tokenizer.ggml.tokens"))
    scores = metadata.floats("tokenizer.ggml.scores")
    kinds = metadata.integers("tokenizer.ggml.token_type").astype(np.int32)
    _check_pieces(metadata, pieces)
    for key, length in (("scores", len(scores)), ("token_type", len(kinds))):
        if length != len(pieces):
            raise metadata.error(f"tokenizer.ggml.{key}", f"{length} entries for {len(pieces)} tokens")
    _check_bytes(metadata, pieces, kinds == PieceKind.BYTE)
    bos = _token(metadata, "bos_token_id", len(pieces))
    unknown = _token(metadata, "unknown_token_id", len(pieces))
    if unknown is None and np.count_nonzero(kinds == PieceKind.BYTE) < 256:
        raise metadata.error(
            "tokenizer.ggml.unknown_token_id", "is missing, and so are tokens for some bytes"
        )
    return Vocabulary(
        pieces=pieces,
        scores=scores,
        kinds=kinds,
        bos=bos,
        eos=_token(metadata, "eos_token_id", len(pieces)),
        unknown=unknown,
        adds_bos=metadata.flag("tokenizer.ggml.add_bos_token", bos is not None),
        stop_ids=_stop_ids(metadata, pieces, kinds == PieceKind.CONTROL),
        chat_template=metadata.text("tokenizer.chat_template", "") or None,
    )


def _check_kind(metadata: Metadata) -> None:
    kind = metadata.text("tokenizer.ggml.model")
    if kind != "llama":
        raise metadata.error("tokenizer.ggml.model", f"{shown(kind)} is not supported ('llama' is)")
    if metadata.flag("tokenizer.ggml.add_space_prefix", True):
        raise metadata.error("tokenizer.ggml.add_space_prefix", "a space before all text is not supported")


def _check_pieces(metadata: Metadata, pieces: list[str]) -> None:
    key = "tokenizer.ggml.tokens"
    if not pieces:
        raise metadata.error(key, "is empty")
    if len(set(pieces)) < len(pieces):
        raise metadata.error(key, "two tokens are the same")
    longest = max(map(len, pieces))
    if longest > PIECE_CHARACTERS_MAX:
        raise metadata.error(key, f"a token of {longest} characters")


def _check_bytes(metadata: Metadata, pieces: list[str], is_byte: np.ndarray) -> None:
    expected = {f"<0x{byte:02X}>" for byte in range(256)}
    for i in np.flatnonzero(is_byte).tolist():
        if pieces[i] not in expected:
            raise metadata.error("tokenizer.ggml.tokens", f"token {i} is no byte: {shown(pieces[i])}")


def _token(metadata: Metadata, name: str, count: int) -> int | None:
    key = f"tokenizer.ggml.{name}"
    if key not in metadata:
        return None
    token = metadata.integer(key)
    if not 0 <= token < count:
        raise metadata.error(key, f"{token} is not one of {count} tokens")
    return token


def _stop_ids(metadata: Metadata, pieces: list[str], is_control: np.ndarray) -> frozenset[int]:
    named = (_token(metadata, name, len(pieces)) for name in ("eos_token_id", "eot_token_id"))
    ends = _TURN_ENDS.get(metadata.text("general.architecture", ""), ())
    usual = (i for i in np.flatnonzero(is_control).tolist() if pieces[i] in ends)
    return frozenset(usual) | {token for token in named if token is not None}

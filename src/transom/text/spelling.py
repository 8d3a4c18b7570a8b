"""How the pieces of a vocabulary spell text: as in SentencePiece or as in GPT-2. Built on `tokenizers`."""

from typing import Protocol

import tokenizers
from tokenizers import AddedToken, models, normalizers, pre_tokenizers

from transom.text.merges import merges
from transom.text.vocabulary import ByteLevel, Cut, PieceKind, SentencePiece, Vocabulary

SPACE = "▁"
"""SentencePiece writes this character in place of a space."""


class Spelling(Protocol):
    """Encodes text, and spells pieces as bytes. Immutable, and safe to use from several threads."""

    @property
    def encoder(self) -> tokenizers.Tokenizer:
        """Encodes text that `prepare` has converted. Control tokens in it do not count."""
        ...

    def prepare(self, text: str) -> str:
        """The text as `encoder` expects it."""
        ...

    def piece_bytes(self, piece: str, kind: PieceKind) -> bytes:
        """The bytes that a piece stands for in text; of a control token, its name."""
        ...


def spelling_of(vocabulary: Vocabulary) -> Spelling:
    match vocabulary.spelling:
        case SentencePiece() as spelling:
            return SentencePieceSpelling(vocabulary, spelling)
        case ByteLevel() as spelling:
            return ByteLevelSpelling(vocabulary, spelling)


def all_piece_bytes(vocabulary: Vocabulary) -> list[bytes]:
    """`piece_bytes` of every piece. Builds no encoder, which takes seconds for a large vocabulary."""
    byte_level = isinstance(vocabulary.spelling, ByteLevel)
    spell = _byte_level_bytes if byte_level else _sentencepiece_bytes
    kinds = map(PieceKind, vocabulary.kinds.tolist())
    return [spell(piece, kind) for piece, kind in zip(vocabulary.pieces, kinds, strict=True)]


def _sentencepiece_bytes(piece: str, kind: PieceKind) -> bytes:
    if kind == PieceKind.BYTE:
        # The piece is "<0x41>", for example.
        return bytes([int(piece[3:5], 16)])
    return piece.replace(SPACE, " ").encode()


def _byte_level_bytes(piece: str, kind: PieceKind) -> bytes:
    if kind != PieceKind.NORMAL:
        return piece.encode()
    return bytes(BYTE_OF[character] for character in piece)


class SentencePieceSpelling:
    """Follows SentencePiece, as llama.cpp does.

    The usual conversions to `tokenizers` differ from it in two points: they contain merges that SentencePiece
    never makes, and they split long runs of spaces differently.
    """

    def __init__(self, vocabulary: Vocabulary, spelling: SentencePiece) -> None:
        unknown = vocabulary.unknown
        model = models.BPE(
            _ids(vocabulary),
            merges(vocabulary, spelling.scores),
            unk_token=None if unknown is None else vocabulary.pieces[unknown],
            fuse_unk=True,
            byte_fallback=True,
            # SentencePiece does not split text into words, so the cache would store whole texts: the first
            # ten thousand below 256 bytes, for the life of the process.
            cache_capacity=0,
        )
        self.encoder = tokenizers.Tokenizer(model)
        self.encoder.normalizer = normalizers.Replace(" ", SPACE)
        _add_user_defined(self.encoder, vocabulary)

    def prepare(self, text: str) -> str:
        """SentencePiece does not distinguish a typed "▁" from a space, so neither does this."""
        return text.replace(SPACE, " ")

    def piece_bytes(self, piece: str, kind: PieceKind) -> bytes:
        return _sentencepiece_bytes(piece, kind)


class ByteLevelSpelling:
    """Drops bytes without a piece, as llama.cpp does. SmolLM2 lacks 21 bytes, which hardly occur in text."""

    def __init__(self, vocabulary: Vocabulary, spelling: ByteLevel) -> None:
        # Llama 3 uses a word that is itself a piece directly, without applying the merges.
        whole = spelling.cut == Cut.LLAMA3
        self.encoder = tokenizers.Tokenizer(
            models.BPE(_ids(vocabulary), spelling.merges, ignore_merges=whole)
        )
        self.encoder.pre_tokenizer = pre_tokenizers.Sequence(
            [*_CUTS[spelling.cut](), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
        _add_user_defined(self.encoder, vocabulary)

    def prepare(self, text: str) -> str:
        return text

    def piece_bytes(self, piece: str, kind: PieceKind) -> bytes:
        return _byte_level_bytes(piece, kind)


def _ids(vocabulary: Vocabulary) -> dict[str, int]:
    return {piece: i for i, piece in enumerate(vocabulary.pieces)}


def _add_user_defined(encoder: tokenizers.Tokenizer, vocabulary: Vocabulary) -> None:
    """User-defined pieces are matched in the original text, before any other step."""
    user_defined = [vocabulary.pieces[i] for i in vocabulary.ids_of(PieceKind.USER_DEFINED)]
    encoder.add_tokens([AddedToken(piece, normalized=False, special=False) for piece in user_defined])


# ---------------------------------------------------------------- bytes as characters


def _characters() -> dict[int, str]:
    """GPT-2's table: printable Latin-1 bytes stand for themselves, the other bytes for U+0100 upwards."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    unprintable = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {
        byte: chr(256 + rank) for rank, byte in enumerate(unprintable)
    }


CHARACTER_OF = _characters()
BYTE_OF = {character: byte for byte, character in CHARACTER_OF.items()}


# ---------------------------------------------------------------- splitting into words

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def _split(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")


_CUTS = {
    Cut.GPT2: lambda: [_split(_GPT2)],
    Cut.SMOLLM: lambda: [_split(r"\p{N}"), _split(_GPT2)],
    Cut.LLAMA3: lambda: [_split(_LLAMA3)],
    Cut.QWEN2: lambda: [_split(_QWEN2)],
}

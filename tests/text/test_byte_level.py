"""Byte-level BPE, against a scanner and a merger written from its definition with nothing but unicodedata."""

import itertools
import random
import unicodedata
from collections.abc import Iterator

import numpy as np
import pytest

from transom.text.spelling import BYTE_OF, CHARACTER_OF
from transom.text.tokenizer import Tokenizer
from transom.text.vocabulary import ByteLevel, Cut, PieceKind, Vocabulary

TEXTS = (
    "Hello world, it's 2024!  Two  spaces\n\n\tx",
    "we'll they've I'M don't 'quoted'  'S",
    "日本語のテキスト ½ é ÀÉ ß \u00a0nbsp\u2003em",
    "a1b22c333 4 55  666\r\n\r\n  end   ",
    "emoji 👩‍👩‍👧 and e\u0301 combined; x=y+1;  // comment\n",
    " leading and trailing ",
    "\n \n  \n",
    "...!!! ???\n---\n",
    "",
)
ALPHABET = "ab Z'st 1٣½\n\r\t.,é日\u00a0👧\u0301"


# ---------------------------------------------------------------- the oracle


def is_letter(c: str) -> bool:
    return unicodedata.category(c).startswith("L")


def is_number(c: str) -> bool:
    return unicodedata.category(c).startswith("N")


def is_other(c: str) -> bool:
    return not (is_letter(c) or is_number(c) or c.isspace())


def run(text: str, at: int, holds: object, most: int = 1 << 30) -> int:
    """The end of the longest run from `at` in which `holds` is true for every character."""
    end = at
    while end < len(text) and end - at < most and holds(text[end]):  # type: ignore[operator]
        end += 1
    return end


def contraction(text: str, at: int, fold: bool) -> int:
    for tail in ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d"):
        found = text[at : at + len(tail)]
        if (found.lower() if fold else found) == tail:
            return at + len(tail)
    return at


def spaces(text: str, at: int) -> int:
    """Blanks, but for the last one if something follows it."""
    end = run(text, at, str.isspace)
    return end if end == len(text) or end - at == 1 else end - 1


def gpt2_end(text: str, at: int) -> int:
    if (end := contraction(text, at, fold=False)) > at:
        return end
    word = at + (text[at] == " ")
    for holds in (is_letter, is_number, is_other):
        if (end := run(text, word, holds)) > word:
            return end
    return spaces(text, at)


def newer_end(text: str, at: int, digits: int) -> int:
    """Llama 3 and Qwen 2."""
    if (end := contraction(text, at, fold=True)) > at:
        return end
    before = text[at] not in "\r\n" and not is_letter(text[at]) and not is_number(text[at])
    if (end := run(text, at + before, is_letter)) > at + before:
        return end
    if (end := run(text, at, is_number, digits)) > at:
        return end
    word = at + (text[at] == " ")
    if (end := run(text, word, is_other)) > word:
        return run(text, end, lambda c: c in "\r\n")
    blank = run(text, at, str.isspace)
    breaks = max((i + 1 for i in range(at, blank) if text[i] in "\r\n"), default=at)
    return breaks if breaks > at else spaces(text, at)


def smollm(text: str) -> Iterator[str]:
    """Splits off each digit first, then applies GPT-2's rule to the text between digits."""
    at = 0
    while at < len(text):
        end = at + 1 if is_number(text[at]) else run(text, at, lambda c: not is_number(c))
        yield from pieces_of(text[at:end], gpt2_end)
        at = end


def pieces_of(text: str, end_of: object) -> Iterator[str]:
    at = 0
    while at < len(text):
        end = end_of(text, at)  # type: ignore[operator]
        yield text[at:end]
        at = end


def cut(text: str, how: Cut) -> list[str]:
    match how:
        case Cut.GPT2:
            return list(pieces_of(text, gpt2_end))
        case Cut.SMOLLM:
            return list(smollm(text))
        case Cut.LLAMA3:
            return list(pieces_of(text, lambda t, i: newer_end(t, i, 3)))
        case Cut.QWEN2:
            return list(pieces_of(text, lambda t, i: newer_end(t, i, 1)))


def merged(word: str, vocabulary: Vocabulary) -> list[str]:
    """Merges the pair that comes first in the list of merges, leftmost first, until no pair can be merged."""
    assert isinstance(vocabulary.spelling, ByteLevel)
    if vocabulary.spelling.cut == Cut.LLAMA3 and word in vocabulary.pieces:
        return [word]
    rank = {pair: i for i, pair in enumerate(vocabulary.spelling.merges)}
    parts = list(word)
    while True:
        found = [(rank[pair], i) for i, pair in enumerate(itertools.pairwise(parts)) if pair in rank]
        if not found:
            return parts
        _, i = min(found)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]


def expected(text: str, vocabulary: Vocabulary) -> list[str]:
    assert isinstance(vocabulary.spelling, ByteLevel)
    words = ["".join(CHARACTER_OF[b] for b in part.encode()) for part in cut(text, vocabulary.spelling.cut)]
    return [piece for word in words for piece in merged(word, vocabulary)]


# ---------------------------------------------------------------- the tests


def vocabulary(how: Cut, **changes: object) -> Vocabulary:
    """Merges drawn from the texts themselves, so that many apply."""
    rng = random.Random(7)
    pieces = ["<|end|>", *CHARACTER_OF.values()]
    merges: list[tuple[str, str]] = []
    for _ in range(400):
        word = "".join(CHARACTER_OF[b] for b in rng.choice(TEXTS[:-1]).encode())
        at = rng.randrange(len(word))
        left, right = word[at : at + rng.randint(1, 2)], word[at + 1 : at + 2]
        if left in pieces and right in pieces and left + right not in pieces:
            pieces.append(left + right)
            merges.append((left, right))
    values: dict[str, object] = {
        "pieces": pieces,
        "kinds": np.array([PieceKind.CONTROL] + [PieceKind.NORMAL] * (len(pieces) - 1), dtype=np.int32),
        "bos": None,
        "eos": 0,
        "unknown": None,
        "adds_bos": False,
        "stop_ids": frozenset({0}),
        "chat_template": None,
        "spelling": ByteLevel(how, merges),
    }
    return Vocabulary(**{**values, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("how", Cut)
def test_text_is_split_and_merged_as_defined_and_decodes_to_itself(how: Cut) -> None:
    known = vocabulary(how)
    tokenizer = Tokenizer(known)
    rng = random.Random(11)
    drawn = ["".join(rng.choices(ALPHABET, k=rng.randint(1, 24))) for _ in range(300)]
    for text in (*TEXTS, *drawn):
        ids = tokenizer.encode(text)
        assert [known.pieces[i] for i in ids] == expected(text, known), text
        assert tokenizer.decode(ids) == text


def test_control_tokens_count_in_prompts_and_are_omitted_from_text() -> None:
    tokenizer = Tokenizer(vocabulary(Cut.GPT2))
    ids = tokenizer.encode("a<|end|>b")
    assert ids.tolist()[1] == 0
    assert (tokenizer.decode(ids), tokenizer.decode(ids, skip_special=False)) == ("ab", "a<|end|>b")


def test_a_byte_that_no_piece_spells_is_left_out() -> None:
    known = vocabulary(Cut.SMOLLM)
    kinds = known.kinds.copy()
    missing = known.pieces.index(CHARACTER_OF[4])
    pieces = list(known.pieces)
    pieces[missing] = "<|unused|>"
    kinds[missing] = PieceKind.CONTROL
    tokenizer = Tokenizer(vocabulary(Cut.SMOLLM, pieces=pieces, kinds=kinds))
    assert tokenizer.decode(tokenizer.encode("a\x04b")) == "ab"


def test_every_byte_has_one_character_and_every_character_one_byte() -> None:
    assert len(CHARACTER_OF) == len(BYTE_OF) == 256
    assert all(character.isprintable() for character in BYTE_OF)

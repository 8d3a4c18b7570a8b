"""Random texts of a grammar, without a model: each byte is drawn among the bytes that the grammar allows."""

import random
from collections.abc import Iterator

from llguidance import LLMatcher, LLTokenizer

BYTES = LLTokenizer("byte")
TEXT_BYTES_MAX = 4000


def random_text(grammar: str, rng: random.Random) -> str:
    return bytes(_walk(grammar, rng)).decode()


def accepts(grammar: str, text: str) -> bool:
    """Whether the whole text is one of the grammar's."""
    matcher = LLMatcher(BYTES, grammar)
    return bool(matcher.consume_tokens(list(text.encode())) and matcher.is_accepting())


def _walk(grammar: str, rng: random.Random) -> Iterator[int]:
    matcher = LLMatcher(BYTES, grammar)
    assert not matcher.is_error(), matcher.get_error()
    for _ in range(TEXT_BYTES_MAX):
        mask = matcher.compute_bitmask()
        allowed = [byte for byte in range(256) if mask[byte // 8] >> byte % 8 & 1]
        if matcher.is_accepting() and (not allowed or rng.random() < 0.5):
            return
        # Quotation marks and closing brackets are likely, so that texts end.
        ends = [byte for byte in allowed if chr(byte) in '"]}']
        printable = [byte for byte in allowed if 0x20 <= byte < 0x7F]
        byte = rng.choice(ends if ends and rng.random() < 0.3 else printable or allowed)
        assert matcher.consume_token(byte)
        yield byte
    raise AssertionError("the text has not ended")

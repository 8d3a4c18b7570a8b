"""Incremental detokenizing, on a vocabulary made of bytes, characters and words."""

from hypothesis import given
from hypothesis import strategies as st

from transom.text.detokenize import Detokenizer, decode

WORDS = [b" the", b"a", "é".encode(), "漢字".encode(), "👩‍🚀".encode(), b"", b"\n", "\ufffd".encode()]
IDS = st.integers(0, 255 + len(WORDS))
LEADS = st.sampled_from([0xC3, 0xE2, 0xE6, 0xED, 0xF0, 0xF4, 0xFF, 0x80, 0x82, 0x9F, 0xA0, 0xC0])


def piece_bytes(token: int) -> bytes:
    return bytes([token]) if token < 256 else WORDS[token - 256]


def feed_all(ids: list[int]) -> list[str]:
    stream = Detokenizer(piece_bytes)
    return [*(stream.feed(token) for token in ids), stream.finish()]


@given(st.lists(IDS | LEADS, max_size=60))
def test_the_texts_of_a_stream_together_are_the_text_of_the_whole(ids: list[int]) -> None:
    assert "".join(feed_all(ids)) == decode(ids, piece_bytes)


@given(st.lists(IDS | LEADS, max_size=60))
def test_the_text_so_far_is_always_a_prefix_of_the_final_text(ids: list[int]) -> None:
    whole = decode(ids, piece_bytes)
    sent = ""
    for text in feed_all(ids):
        sent += text
        assert whole.startswith(sent)


@given(st.text(max_size=20))
def test_valid_text_in_bytes_never_shows_a_replacement_character(text: str) -> None:
    ids = list(text.encode())
    texts = feed_all(ids)
    assert "".join(texts) == text and texts[-1] == ""
    assert all(("\ufffd" in part) <= ("\ufffd" in text) for part in texts)


def test_a_character_comes_out_with_its_last_byte() -> None:
    assert feed_all(list("👍".encode())) == ["", "", "", "👍", ""]


def test_half_a_character_at_the_end_becomes_one_replacement() -> None:
    assert feed_all(list("👍".encode()[:3])) == ["", "", "", "\ufffd"]


def test_a_broken_character_does_not_take_the_next_with_it() -> None:
    assert feed_all([0xE6, 0xBC, ord("x")]) == ["", "", "\ufffdx", ""]

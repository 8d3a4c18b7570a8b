"""Words stay whole on a screen, however the text is cut into pieces."""

import re
import textwrap
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transom.cli.chat_app.wrap import Wrapper


def shown(pieces: Sequence[str], width: int) -> list[str]:
    """Lines of a screen that interprets the wrapper's output: text, new lines, cursor moves and erasing."""
    wrapper, lines, column = Wrapper(width), [""], 0
    for token in re.findall(r"\x1b\[\d+D|\x1b\[K|\n|.", "".join(map(wrapper.add, pieces))):
        if token.endswith("D") and token.startswith("\x1b"):
            column -= int(token[2:-1])
        elif token == "\x1b[K":
            lines[-1] = lines[-1][:column]
        elif token == "\n":
            lines.append("")
            column = 0
        else:
            lines[-1] = lines[-1][:column] + token + lines[-1][column + 1 :]
            column += 1
        assert 0 <= column < width, (token, column)
    return lines


@given(
    words=st.lists(st.text("abc[]", min_size=1, max_size=12), min_size=1, max_size=40),
    width=st.integers(14, 30),
    cuts=st.integers(1, 5),
)
def test_lines_are_those_of_textwrap(words: list[str], width: int, cuts: int) -> None:
    text = " ".join(words)
    pieces = [text[start : start + cuts] for start in range(0, len(text), cuts)]
    found = [line.rstrip() for line in shown(pieces, width)]
    assert found == textwrap.wrap(text, width - 1, break_on_hyphens=False)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("abcdefghijkl", ["abcdefg", "hijkl"]),  # longer than a line: cut
        ("ab cdefghijklmn", ["ab ", "cdefghi", "jklmn"]),
        ("ab\n\ncd", ["ab", "", "cd"]),
        ("  indented code", ["  ", "indente", "d code"]),
    ],
)
def test_text_without_word_breaks_loses_nothing(text: str, lines: list[str]) -> None:
    assert shown([text], 8) == lines


def test_a_line_may_end_between_wide_characters() -> None:
    written = Wrapper(8).add("日本語の文章です")
    assert written == "日本語\nの文章\nです"

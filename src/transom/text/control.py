"""Finds control tokens written as text, and disarms them in chat messages.

In a prompt for completion, a control token that is written out counts as the token, as in llama.cpp and
transformers. In a chat message it must not: a user could forge the turn of another role. Before a message is
rendered, a mark is therefore inserted between the characters of every such literal. The tokenizer then finds
only the template's own control tokens, and removes the marks.
"""

import re
from collections.abc import Mapping

from transom.errors import BadRequest

_MARKS = [chr(code) for code in range(0xFDD0, 0xFDF0)]
"""Unicode noncharacters: reserved for internal use of programs, never part of text."""

START = 4
"""First characters by which literals are found; what follows is compared with the literals."""


class ControlTokens:
    """Finds literals of control tokens in text: the leftmost, and the longest at that position.

    Literals of one character are ignored: no mark fits inside them.
    """

    __slots__ = ("_ids", "_lengths", "_start")

    def __init__(self, ids: Mapping[str, int]) -> None:
        self._ids = {literal: i for literal, i in ids.items() if len(literal) > 1}
        self._lengths: dict[str, list[int]] = {}
        """By the first characters of literals, START or all of them: their lengths, longest first."""
        for length in sorted({len(literal) for literal in self._ids}, reverse=True):
            for start in {literal[:START] for literal in self._ids if len(literal) == length}:
                self._lengths.setdefault(start, []).append(length)
        # Most texts contain no control token. A search for starts of literals skips them at the speed of
        # `re`, also a text that repeats the first character of all literals.
        starts = "|".join(re.escape(start) for start in sorted(self._lengths, key=len, reverse=True))
        self._start = re.compile(starts or r"(?!)")

    def __contains__(self, literal: str) -> bool:
        return literal in self._ids

    def id_of(self, literal: str) -> int | None:
        return self._ids.get(literal)

    def split(self, text: str) -> list[str | int]:
        """The text between control tokens, and the ids of the control tokens, in order."""
        parts: list[str | int] = []
        start = 0
        for at, end in self._find(text):
            if at > start:
                parts.append(text[start:at])
            parts.append(self._ids[text[at:end]])
            start = end
        if start < len(text):
            parts.append(text[start:])
        return parts

    def disarm(self, text: str, mark: str) -> str:
        """The text with the mark after every character of a control token."""
        pieces = []
        start = 0
        for at, end in self._find(text):
            # The mark after the last character keeps the literal from joining with text that follows it.
            pieces += [text[start:at], mark.join(text[at:end]), mark]
            start = end
        return "".join([*pieces, text[start:]])

    def _find(self, text: str) -> list[tuple[int, int]]:
        found = []
        at = self._next(text, 0)
        while at is not None:
            end = self._end(text, at)
            if end is not None:
                found.append((at, end))
            # Literals do not overlap: the search continues behind the one that was found.
            at = self._next(text, at + 1 if end is None else end)
        return found

    def _next(self, text: str, start: int) -> int | None:
        match = self._start.search(text, start)
        return None if match is None else match.start()

    def _end(self, text: str, at: int) -> int | None:
        # Longest first: one literal may be a prefix of another.
        for size in range(START, 1, -1):
            for length in self._lengths.get(text[at : at + size], ()):
                if text[at : at + length] in self._ids:
                    return at + length
        return None


def free_mark(text: str) -> str:
    """A mark that does not occur in the text. `BadRequest` if the text contains every possible mark."""
    for mark in _MARKS:
        if mark not in text:
            return mark
    raise BadRequest("the text holds every noncharacter from U+FDD0 to U+FDEF", param="messages")

"""English text for prompts, drawn with a seed from the documentation that every Python contains."""

import re
from functools import cache
from pydoc_data.topics import topics
from random import Random

PARAGRAPH_CHARACTERS_MIN = 120
PLAIN_SHARE_MIN = 0.9
"""Least share of letters and plain punctuation. Grammars and tables take twice the tokens per character."""


@cache
def prose() -> str:
    """About 210,000 characters of prose, in paragraphs. No paragraph occurs twice."""
    paragraphs = (" ".join(text.split()) for text in _everything().split("\n\n"))
    return "\n\n".join(dict.fromkeys(text for text in paragraphs if _is_prose(text)))


def _everything() -> str:
    return "\n\n".join(topics[name] for name in sorted(topics))


def _is_prose(text: str) -> bool:
    plain = len(re.findall("[A-Za-z .,]", text))
    return len(text) >= PARAGRAPH_CHARACTERS_MIN and plain >= PLAIN_SHARE_MIN * len(text)


@cache
def _vocabulary() -> tuple[str, ...]:
    """About 3,400 words and parts of names."""
    return tuple(sorted(set(re.findall("[a-z]{3,12}", _everything()))))


def passage(random: Random, characters: int) -> str:
    """Whole words from a random place of the prose, `characters` long or less than a word shorter."""
    if characters == 0:
        return ""
    start = random.randrange(len(prose()) - characters - 40)
    start = prose().index(" ", start) + 1
    return prose()[start : start + characters].rpartition(" ")[0]


def random_words(random: Random, count: int) -> str:
    """Words in random order, so that no cache holds them and no two prompts share a prefix."""
    return " ".join(random.choices(_vocabulary(), k=count))

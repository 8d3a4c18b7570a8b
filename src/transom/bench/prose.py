"""English that every Python has, its language's own help, and what is drawn from it by a seed."""

import re
from functools import cache
from pydoc_data.topics import topics
from random import Random

PARAGRAPH_CHARACTERS_MIN = 120
PLAIN_SHARE_MIN = 0.9
"""Of characters that are letters or stand between them: grammars and tables take twice the tokens."""


@cache
def prose() -> str:
    """About 210,000 characters in paragraphs, none of them twice."""
    paragraphs = (" ".join(text.split()) for text in _everything().split("\n\n"))
    return "\n\n".join(dict.fromkeys(text for text in paragraphs if _is_prose(text)))


def _everything() -> str:
    return "\n\n".join(topics[name] for name in sorted(topics))


def _is_prose(text: str) -> bool:
    plain = len(re.findall("[A-Za-z .,]", text))
    return len(text) >= PARAGRAPH_CHARACTERS_MIN and plain >= PLAIN_SHARE_MIN * len(text)


@cache
def _vocabulary() -> tuple[str, ...]:
    """Words and parts of names: 3,400."""
    return tuple(sorted(set(re.findall("[a-z]{3,12}", _everything()))))


def passage(chance: Random, characters: int) -> str:
    """Whole words of some place in it, at most so many characters and a word less."""
    if characters == 0:
        return ""
    start = chance.randrange(len(prose()) - characters - 40)
    start = prose().index(" ", start) + 1
    return prose()[start : start + characters].rpartition(" ")[0]


def random_words(chance: Random, count: int) -> str:
    """Words of it in no order: nobody has seen them before, nor shares a beginning with them."""
    return " ".join(chance.choices(_vocabulary(), k=count))

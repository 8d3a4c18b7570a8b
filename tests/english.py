"""English text that every Python has: the language's own help."""

import random
import re
from functools import cache
from pydoc_data.topics import topics


@cache
def english() -> str:
    """About 450,000 characters of prose, runs of blanks made one."""
    return re.sub(r"[ \t]+", " ", "\n\n".join(topics[name] for name in sorted(topics)))


def passage(seed: int, characters: int) -> str:
    """Some place in it."""
    start = random.Random(seed).randrange(0, len(english()) - characters)
    return english()[start : start + characters]


def random_words(seed: int, count: int) -> str:
    """Words of it in no order."""
    return " ".join(random.Random(seed).choices(_words(), k=count))


@cache
def _words() -> list[str]:
    return sorted(set(re.findall(r"[a-z]{3,12}", english())))

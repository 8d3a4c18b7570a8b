"""English text for prompts, taken from the help that comes with every Python. Tests download no text."""

import random
import re
from functools import cache
from pydoc_data.topics import topics


@cache
def english() -> str:
    """About 450,000 characters of prose, with runs of blanks collapsed to one."""
    return re.sub(r"[ \t]+", " ", "\n\n".join(topics[name] for name in sorted(topics)))


def passage(seed: int, characters: int) -> str:
    """A passage of this length from a place that `seed` selects."""
    start = random.Random(seed).randrange(0, len(english()) - characters)
    return english()[start : start + characters]


def random_words(seed: int, count: int) -> str:
    """Words of the text in random order. Two seeds share no long prefix."""
    return " ".join(random.Random(seed).choices(_words(), k=count))


@cache
def _words() -> list[str]:
    return sorted(set(re.findall(r"[a-z]{3,12}", english())))

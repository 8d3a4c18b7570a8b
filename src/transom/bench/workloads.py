"""Workloads of `transom bench serve`: closed loops. Their prompts depend only on the name and the seed."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pydoc_data.topics import topics
from random import Random

from transom.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Workload:
    """Conversations of several turns. Each of the `clients` runs one turn at a time, in queue order.

    A prompt consists of a common prefix of `shared_characters` characters of prose, and `words` random words.
    Each later turn adds the answer and further words, in the form of a dialogue.
    """

    name: str
    about: str
    clients: int
    output_tokens: int
    shared_characters: int = 0
    words: int = 0
    conversations: int = 1
    turns: int = 1

    @property
    def requests(self) -> int:
        return self.conversations * self.turns


@dataclass(frozen=True, slots=True)
class Prompts:
    """By conversation, the text that each turn adds. Every first turn begins with `shared`."""

    shared: str
    conversations: tuple[tuple[str, ...], ...]

    @property
    def digest(self) -> str:
        """Identifies the prompts. They depend on the version of Python too, not only on the seed."""
        return hashlib.sha256(repr(self.conversations).encode()).hexdigest()[:16]


def make_prompts(workload: Workload, seed: int) -> Prompts:
    """The prompts of a workload and a seed. Prompts of different workloads share no prefix."""
    random = Random(f"{workload.name} {seed}")
    shared = passage(random, workload.shared_characters)
    messages = [
        [random_words(random, workload.words) for _ in range(workload.turns)]
        for _ in range(workload.conversations)
    ]
    prompts: tuple[tuple[str, ...], ...]
    if workload.turns == 1:
        prompts = tuple((_joined(shared, turns[0]),) for turns in messages)
    else:
        prompts = tuple(_dialogue(shared, turns) for turns in messages)
    return Prompts(shared, prompts)


def _dialogue(system: str, messages: Sequence[str]) -> tuple[str, ...]:
    turns = [f"User: {words}\nModel:" for words in messages]
    return (_joined(system, turns[0]), *[f"\n\n{turn}" for turn in turns[1:]])


def _joined(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part)


_W2 = {"output_tokens": 64, "words": 256, "conversations": 32}
_W4 = {"clients": 4, "output_tokens": 64, "words": 43, "conversations": 8, "turns": 4}

WORKLOADS: Mapping[str, Workload] = {
    workload.name: workload
    for workload in (
        Workload("w1", "one prompt of about 512 tokens, alone", 1, 128, shared_characters=2_400),
        Workload("w2c8", "32 prompts of 256 random words, nothing in common, 8 at once", 8, **_W2),
        Workload("w2c16", "the same with other prompts, 16 at once", 16, **_W2),
        Workload(
            "w3",
            "32 prompts with about 1,500 tokens in common, 8 at once",
            clients=8,
            output_tokens=64,
            shared_characters=7_060,
            words=36,
            conversations=32,
        ),
        Workload("w4", "8 conversations of 4 turns, 4 at once", **_W4),
        Workload(
            "w4s",
            "the same under a system prompt of about 1,000 tokens",
            shared_characters=4_700,
            **_W4,
        ),
    )
}
"""Lengths assume the tokenizer of Gemma 3: 0.21 tokens per character of prose, 1.31 per random word."""


def chosen(names: Sequence[str], known: Mapping[str, Workload] = WORKLOADS) -> list[Workload]:
    """The named workloads, in this order; without names, all. Raises ConfigError for an unknown name."""
    for name in names:
        if name not in known:
            raise ConfigError(f"--workloads has {name!r}; it must be of {', '.join(known)}")
    return [known[name] for name in names or known]


# ---------------------------------------------------------------- English text

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

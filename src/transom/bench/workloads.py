"""What clients ask in `transom bench serve`: closed loops, whose prompts are a function of name and seed."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from transom.bench.prose import passage, random_words
from transom.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Workload:
    """Conversations of some turns; so many clients take one turn each at a time, first come, first served.

    A prompt has `shared_characters` of prose, the same for all, then `words` drawn at random. Later turns add
    the answer and words of their own, as said in a dialogue.
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
    """Of each conversation what each turn adds; every first turn begins with `shared`."""

    shared: str
    conversations: tuple[tuple[str, ...], ...]

    @property
    def digest(self) -> str:
        """The same for the same prompts: the text they are made of depends on the version of Python."""
        return hashlib.sha256(repr(self.conversations).encode()).hexdigest()[:16]


def make_prompts(workload: Workload, seed: int) -> Prompts:
    """The same for the same workload and seed; different workloads have nothing in common."""
    chance = Random(f"{workload.name} {seed}")
    shared = passage(chance, workload.shared_characters)
    said = [
        [random_words(chance, workload.words) for _ in range(workload.turns)]
        for _ in range(workload.conversations)
    ]
    prompts: tuple[tuple[str, ...], ...]
    if workload.turns == 1:
        prompts = tuple((_joined(shared, turns[0]),) for turns in said)
    else:
        prompts = tuple(_dialogue(shared, turns) for turns in said)
    return Prompts(shared, prompts)


def _dialogue(system: str, said: Sequence[str]) -> tuple[str, ...]:
    turns = [f"User: {words}\nModel:" for words in said]
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
"""Lengths were chosen with the tokenizer of Gemma 3: 0.21 tokens a character of prose, 1.31 a random word."""


def chosen(names: Sequence[str], known: Mapping[str, Workload] = WORKLOADS) -> list[Workload]:
    """In the order asked; without a name, all. Raises ConfigError for an unknown one."""
    for name in names:
        if name not in known:
            raise ConfigError(f"--workloads has {name!r}; it must be of {', '.join(known)}")
    return [known[name] for name in names or known]

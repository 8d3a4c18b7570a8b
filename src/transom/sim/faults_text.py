"""The model of the world of faults: the next token is a function of all before it, and of nothing else."""

from collections.abc import Sequence

MODULUS = 2**31 - 1
VOCABULARY = 6
"""So few that prompts and texts of strangers meet, and part within a page."""


def output(prompt: Sequence[int], count: int, stop_ids: frozenset[int]) -> tuple[int, ...]:
    """What a request alone in the world says: `count` tokens, or up to the first of `stop_ids`."""
    digest = 1
    for token in prompt:
        digest = _after(digest, token)
    said: list[int] = []
    while len(said) < count:
        said.append((digest >> 7) % VOCABULARY)
        if said[-1] in stop_ids:
            break
        digest = _after(digest, said[-1])
    return tuple(said)


def _after(digest: int, token: int) -> int:
    return (digest * 48271 + token + 11) % MODULUS

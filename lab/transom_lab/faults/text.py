"""The model of the world of faults: a token is a function of all before it, and of a seed."""

from collections.abc import Sequence

from transom.values import Alternative, SampledToken

MODULUS = 2**31 - 1
VOCABULARY = 6
"""So few that prompts and texts of strangers meet, and part within a page."""


def output(prompt: Sequence[int], count: int, stop_ids: frozenset[int], seed: int = 0) -> tuple[int, ...]:
    """What a request alone in the world says: `count` tokens, or up to the first of `stop_ids`."""
    digest = 1
    for token in prompt:
        digest = _after(digest, token)
    said: list[int] = []
    while len(said) < count:
        said.append(((digest >> 7) + seed) % VOCABULARY)
        if said[-1] in stop_ids:
            break
        digest = _after(digest, said[-1])
    return tuple(said)


def choice(token: int, position: int, top: int) -> SampledToken:
    """`token` at `position`, which the logprobs tell, so that no other can be mistaken for it."""
    return SampledToken(
        token, -float(position), tuple(Alternative(rank, -position - rank) for rank in range(top))
    )


def _after(digest: int, token: int) -> int:
    return (digest * 48271 + token + 11) % MODULUS

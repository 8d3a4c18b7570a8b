"""Philox4x32-10, a counter-based random generator: no state, the number for (seed, position) is a function.

Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)

Words = tuple[int, int, int, int]


def philox(counter: Words, key: tuple[int, int]) -> Words:
    """Four 32-bit words, a pure function of counter and key, which are 32-bit words, too."""
    a, b, c, d = counter
    low, high = key
    for _ in range(10):
        first, second = _MULTIPLIERS[0] * a, _MULTIPLIERS[1] * c
        a, b, c, d = (second >> 32) ^ b ^ low, second & _MASK, (first >> 32) ^ d ^ high, first & _MASK
        low, high = (low + _WEYL[0]) & _MASK, (high + _WEYL[1]) & _MASK
    return a, b, c, d


def uniform(seed: int, position: int) -> float:
    """The number in [0, 1) that samples the token at `position`. The seed is taken modulo 2**64."""
    key = (seed & _MASK, (seed >> 32) & _MASK)
    return philox((position & _MASK, 0, 0, 0), key)[0] / 2.0**32

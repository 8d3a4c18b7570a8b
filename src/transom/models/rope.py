"""Cosines and sines of rotary position embeddings, from small tables."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from transom.models.spec import Rope
from transom.ops.protocol import F32, I32

_STRIDE = 256
"""Positions of the low table. About the square root of usual contexts, which keeps both tables small."""


class RopeTable:
    """Rotations of positions [0, positions), from two small float64 tables.

    position = 256 * high + low, and by the addition theorem cos(high + low) = cos high * cos low - sin high *
    sin low. The error is about 1e-16 before the one rounding to float32, and the tables are about a hundred
    times smaller than one of all positions.
    """

    def __init__(self, rope: Rope, positions: int) -> None:
        pairs = np.arange(0, rope.dim, 2, dtype=np.float64)
        frequencies = rope.base ** (-pairs / rope.dim) / rope.factor
        if rope.factors:
            frequencies /= np.array(rope.factors, dtype=np.float64)
        self._low = _turn(np.arange(_STRIDE), frequencies)
        self._high = _turn(np.arange(0, positions + _STRIDE, _STRIDE), frequencies)

    def at(self, positions: I32) -> F32:
        """float32 `[tokens, 2, dim / 2]`: cosines, then sines."""
        cos_high, sin_high = self._high[:, positions // _STRIDE]
        cos_low, sin_low = self._low[:, positions % _STRIDE]
        out = np.empty((len(positions), 2, cos_low.shape[1]), dtype=np.float32)
        out[:, 0] = cos_high * cos_low - sin_high * sin_low
        out[:, 1] = sin_high * cos_low + cos_high * sin_low
        return out


def _turn(positions: NDArray[np.int64], frequencies: NDArray[np.float64]) -> NDArray[np.float64]:
    angles = positions[:, None].astype(np.float64) * frequencies
    return np.stack([np.cos(angles), np.sin(angles)])


# A model has one or two kinds of rope; the cache serves every step.
@lru_cache(maxsize=8)
def rope_table(rope: Rope, positions: int) -> RopeTable:
    return RopeTable(rope, positions)

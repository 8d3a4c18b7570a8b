"""Cosines and sines of rotary position embeddings, from small tables."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from transom.models.spec import Rope
from transom.ops.protocol import F32, I32

_STRIDE = 256
"""Positions of the low table. About the square root of usual contexts, which keeps both tables small."""
_BLOCK = 256
"""Rows by which the high table grows: 65,536 positions, more than most requests reach."""


class RopeTable:
    """Rotations of positions, from two small float64 tables.

    position = 256 * high + low, and by the addition theorem cos(high + low) = cos high * cos low - sin high *
    sin low. The error is about 1e-16 before the one rounding to float32, and the tables are about a hundred
    times smaller than one of all positions.

    Mutable: the high table grows with the positions that are asked for, not with the context, which a model
    file merely claims. It grows in blocks of one size, so that no bit depends on when it grew.
    """

    def __init__(self, rope: Rope) -> None:
        pairs = np.arange(0, rope.dim, 2, dtype=np.float64)
        frequencies = rope.base ** (-pairs / rope.dim) / rope.factor
        if rope.factors:
            frequencies /= np.array(rope.factors, dtype=np.float64)
        self._frequencies = frequencies
        self._low = _turn(np.arange(_STRIDE), frequencies)
        self._high = self._block(0)

    def at(self, positions: I32) -> F32:
        """float32 `[tokens, 2, dim / 2]`: cosines, then sines."""
        while positions.max(initial=0) >= self._high.shape[1] * _STRIDE:
            self._high = np.concatenate([self._high, self._block(self._high.shape[1])], axis=1)
        cos_high, sin_high = self._high[:, positions // _STRIDE]
        cos_low, sin_low = self._low[:, positions % _STRIDE]
        out = np.empty((len(positions), 2, cos_low.shape[1]), dtype=np.float32)
        out[:, 0] = cos_high * cos_low - sin_high * sin_low
        out[:, 1] = sin_high * cos_low + cos_high * sin_low
        return out

    def _block(self, row: int) -> NDArray[np.float64]:
        return _turn(np.arange(row, row + _BLOCK) * _STRIDE, self._frequencies)


def _turn(positions: NDArray[np.int64], frequencies: NDArray[np.float64]) -> NDArray[np.float64]:
    angles = positions[:, None].astype(np.float64) * frequencies
    return np.stack([np.cos(angles), np.sin(angles)])


# A model has one or two kinds of rope; the cache serves every step.
@lru_cache(maxsize=8)
def rope_table(rope: Rope) -> RopeTable:
    return RopeTable(rope)

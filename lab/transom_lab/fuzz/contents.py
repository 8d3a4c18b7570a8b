"""What the slots of every page hold, as a runner would have stored it: by digest.

The digest of a slot stands for (namespace, all tokens up to and including its own, position, component). A
read that meets any other digest is stale or somebody else's KV.
"""

from functools import cache
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from transom.kv.cache import Namespace
from transom.steps import PageCopy
from transom.values import Tokens

Digests = NDArray[np.uint64]

TOKENS_MAX = 4096
NOTHING = 0


@cache
def _multipliers() -> Digests:
    """One odd number per position."""
    drawn = np.random.default_rng(24318).integers(0, 1 << 63, TOKENS_MAX, dtype=np.uint64)
    return drawn * np.uint64(2) + np.uint64(1)


def prefix_digests(namespace: Namespace, tokens: Tokens) -> Digests:
    """One per token, of all tokens up to it: sums, so that a run of them is one operation."""
    assert len(tokens) <= TOKENS_MAX, len(tokens)
    terms = (tokens.astype(np.uint64) + np.uint64(1)) * _multipliers()[: len(tokens)]
    return np.cumsum(terms, dtype=np.uint64) + np.uint64(_seed(namespace))


@cache
def _seed(namespace: Namespace) -> int:
    return crc32(repr(namespace).encode()) * 0x9E3779B97F4A7C15 % (1 << 64)


def of_component(digests: Digests, component: int) -> Digests:
    """The same tokens, as `component` keeps them."""
    return digests ^ np.uint64((component + 1) * 0x2545F4914F6CDD1D % (1 << 64))


class Contents:
    """Owns what is stored, one flat run of slots per component. Mutable."""

    __slots__ = ("_page_size", "_slots")

    def __init__(self, pages: tuple[int, ...], page_size: int) -> None:
        self._page_size = page_size
        self._slots: tuple[Digests, ...] = tuple(
            np.full((count + 1) * page_size, NOTHING, dtype=np.uint64) for count in pages
        )

    def store(self, component: int, row: NDArray[np.int32], start: int, digests: Digests) -> None:
        """Positions from `start` on, through a row of page ids. Asserts that there are pages."""
        slots = self._places(row, start, start + len(digests))
        assert slots.min(initial=self._page_size) >= self._page_size, ("stored into the null page", row)
        self._slots[component][slots] = of_component(digests, component)

    def read(self, component: int, row: NDArray[np.int32], start: int, end: int) -> Digests:
        """Positions [start, end); of entries that are 0, nothing."""
        found: Digests = self._slots[component][self._places(row, start, end)]
        return found

    def state(self, component: int, pages: NDArray[np.int32]) -> Digests:
        """Of a component whose pages are one slot each: what `pages` hold."""
        found: Digests = self._slots[component][pages.astype(np.int64) * self._page_size]
        return found

    def change_state(self, component: int, page: int, digest: np.uint64) -> None:
        assert page > 0, (component, page)
        self._slots[component][page * self._page_size] = digest

    def copy(self, copy: PageCopy) -> None:
        size, slots = self._page_size, self._slots[copy.component]
        source, target = copy.source * size, copy.target * size
        slots[target : target + copy.tokens] = slots[source : source + copy.tokens]

    def forget(self, component: int, pages: NDArray[np.int64]) -> None:
        """Nothing is stored in `pages` any more."""
        self._slots[component].reshape(-1, self._page_size)[pages] = NOTHING

    def saved(self) -> tuple[Digests, ...]:
        """A copy of all of it, for `restore`."""
        return tuple([slots.copy() for slots in self._slots])

    def restore(self, saved: tuple[Digests, ...]) -> None:
        for slots, before in zip(self._slots, saved, strict=True):
            slots[:] = before

    def _places(self, row: NDArray[np.int32], start: int, end: int) -> NDArray[np.int64]:
        positions = np.arange(start, end)
        places: NDArray[np.int64] = row[positions // self._page_size] * np.int64(self._page_size)
        places += positions % self._page_size
        return places

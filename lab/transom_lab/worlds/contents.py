"""The contents of every page slot, as a digest, so that a read of stale or foreign KV is noticed.

The digest in a slot stands for (namespace, all tokens up to and including the slot's own, position, layer).
A key depends on exactly these, so two slots have one digest only if a model would have stored one key.
"""

from functools import cache
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from transom.kv.cache import CacheLayout, Namespace
from transom.steps import PageCopy
from transom.values import Tokens

Digests = NDArray[np.uint64]
PageIds = NDArray[np.integer]

TOKENS_MAX = 8192
EMPTY = np.uint64(0)
GARBAGE = np.uint64(0xBAD)
INEXACT = np.uint64(0x5DEECE66D1CE4E5B)
"""XORed into the digest of a key that was computed from keys that were missing or inexact themselves."""


@cache
def _multipliers() -> Digests:
    """One odd number per position."""
    drawn = np.random.default_rng(24318).integers(0, 1 << 63, TOKENS_MAX, dtype=np.uint64)
    return drawn * np.uint64(2) + np.uint64(1)


def prefix_digests(namespace: Namespace, tokens: Tokens) -> Digests:
    """One digest per token, of all tokens up to it."""
    assert len(tokens) <= TOKENS_MAX, len(tokens)
    # A sum over positions, not a chain: one cumsum then covers a whole prompt.
    terms = (tokens.astype(np.uint64) + np.uint64(1)) * _multipliers()[: len(tokens)]
    return np.cumsum(terms, dtype=np.uint64) + np.uint64(_seed(namespace))


@cache
def _seed(namespace: Namespace) -> int:
    return crc32(repr(namespace).encode()) * 0x9E3779B97F4A7C15 % (1 << 64)


def of_layer(digests: Digests, layer: int) -> Digests:
    """The digests of the same tokens as `layer` stores them."""
    return digests ^ np.uint64((layer + 1) * 0x2545F4914F6CDD1D % (1 << 64))


class PageContents:
    """Owns the digest in every slot, one flat array per layer. Mutable.

    The layers of one component share its page numbers. A layout without layers has one layer per component.
    """

    __slots__ = ("_page_size", "_slots", "layers")

    def __init__(self, layout: CacheLayout) -> None:
        self.layers = layout.layers or tuple(range(len(layout.components)))
        """The component of each layer."""
        self._page_size = layout.page_size
        self._slots: tuple[Digests, ...] = tuple(
            np.full((layout.pages[component] + 1) * layout.page_size, EMPTY) for component in self.layers
        )

    def store(self, layer: int, row: PageIds, start: int, digests: Digests) -> None:
        """Writes positions from `start` on, through a row of page ids."""
        slots = self._places(row, start, start + len(digests))
        assert slots.min(initial=self._page_size) >= self._page_size, ("stored into the null page", row)
        self._slots[layer][slots] = digests

    def read(self, layer: int, row: PageIds, start: int, end: int) -> Digests:
        """Positions [start, end). Entries of the row that are 0 read the null page, which is empty."""
        found: Digests = self._slots[layer][self._places(row, start, end)]
        return found

    def state(self, layer: int, pages: PageIds) -> Digests:
        """The states in `pages`. A page of a recurrent component has one slot."""
        found: Digests = self._slots[layer][pages.astype(np.int64) * self._page_size]
        return found

    def set_state(self, layer: int, page: int, digest: np.uint64) -> None:
        assert page > 0, (layer, page)
        self._slots[layer][page * self._page_size] = digest

    def pages(self, component: int, pages: PageIds) -> Digests:
        """The slots of `pages` in the last layer of a component, [pages, page_size]."""
        found: Digests = self._slots[self._of(component)[-1]].reshape(-1, self._page_size)[pages]
        return found

    def copy(self, copy: PageCopy) -> None:
        size = self._page_size
        source, target = copy.source * size, copy.target * size
        for layer in self._of(copy.component):
            slots = self._slots[layer]
            slots[target : target + copy.tokens] = slots[source : source + copy.tokens]

    def clear(self, component: int, pages: PageIds) -> None:
        """Empties `pages` in every layer of the component."""
        for layer in self._of(component):
            self._slots[layer].reshape(-1, self._page_size)[pages] = EMPTY

    def saved(self) -> tuple[Digests, ...]:
        """A copy of every slot, for `restore`."""
        return tuple([slots.copy() for slots in self._slots])

    def restore(self, saved: tuple[Digests, ...]) -> None:
        for slots, before in zip(self._slots, saved, strict=True):
            slots[:] = before

    def _of(self, component: int) -> list[int]:
        return [layer for layer, each in enumerate(self.layers) if each == component]

    def _places(self, row: PageIds, start: int, end: int) -> NDArray[np.int64]:
        positions = np.arange(start, end)
        places: NDArray[np.int64] = row[positions // self._page_size] * np.int64(self._page_size)
        places += positions % self._page_size
        return places

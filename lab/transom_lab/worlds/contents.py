"""A model of digests: a key is a digest of its prefix and of every key that earlier layers read for it.

`prefix_digests` stands for the embedding: the namespace and all tokens up to and including the position. Each
layer then mixes in what its attention reads (`after_layer`), so one wrong, stale or missing key changes every
value after it, as in a model. `Chain` computes the same values from tokens alone, without pages or rows.
"""

from dataclasses import dataclass
from functools import cache
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from transom.kv.cache import CacheLayout, Namespace
from transom.kv.component_specs import ComponentSpec
from transom.steps import PageCopy
from transom.values import Tokens
from transom_lab.worlds.mixes import first_key, is_state, keeps_everything

Digests = NDArray[np.uint64]
PageIds = NDArray[np.integer]

TOKENS_MAX = 8192
EMPTY = np.uint64(0)
GARBAGE = np.uint64(0xBAD)


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


def of_layer(hidden: Digests, layer: int) -> Digests:
    """The keys that `layer` stores for tokens that enter it with these digests."""
    return hidden ^ np.uint64((layer + 1) * 0x2545F4914F6CDD1D % (1 << 64))


def totals(keys: Digests, start: int) -> Digests:
    """Sums of mixed keys from position `start` on, [keys + 1]. A difference of two is the sum over a range.

    A key counts with its position, so that two keys in each other's place are noticed.
    """
    sums = np.zeros(len(keys) + 1, np.uint64)
    np.cumsum(_mixed(keys) * _multipliers()[start : start + len(keys)], out=sums[1:])
    return sums


def after_layer(hidden: Digests, read: Digests) -> Digests:
    """The digests after a layer, from those before it and the sum of the keys that each token read."""
    return _mixed(hidden * np.uint64(0xD6E8FEB86659FD93) + read)


def _mixed(digests: Digests) -> Digests:
    """A bijection that spreads every bit. 0, an empty slot, does not stay 0."""
    mixed = (digests ^ (digests >> np.uint64(32))) * np.uint64(0x9FB21C651E98DF25) + np.uint64(
        0x632BE59BD9B4E019
    )
    return mixed ^ (mixed >> np.uint64(29))


@dataclass(frozen=True, slots=True)
class Model:
    """The component of every layer, and the context that decides which of them keep everything."""

    kinds: tuple[ComponentSpec, ...]
    layers: tuple[int, ...]
    context: int

    @classmethod
    def of(cls, layout: CacheLayout) -> "Model":
        """A layout without layers has one layer per component."""
        layers = layout.layers or tuple(range(len(layout.components)))
        return cls(layout.components, layers, layout.context)

    def firsts(self, layer: int, start: int, end: int) -> NDArray[np.int64]:
        """The first position that each query of [start, end) reads in a layer."""
        kind = self.kinds[self.layers[layer]]
        return np.array([first_key(kind, query) for query in range(start, end)], np.int64)


@dataclass(frozen=True, slots=True)
class Repair:
    """Where a repair starts to compute, and up to which token the full keys are resident."""

    start: int
    full_until: int


@dataclass(frozen=True, slots=True)
class Chain:
    """What a request must compute, from its tokens alone.

    entering  per layer, and last after all layers: the digest of each token, [layers + 1, tokens]
    keys      the keys that each layer holds, [layers, tokens]. For a state: the state after each token
    """

    entering: tuple[Digests, ...]
    keys: tuple[Digests, ...]


def chain_of(model: Model, embedded: Digests, repair: tuple[Repair, Chain] | None = None) -> Chain:
    """Computes every token in one pass. A repair lacks window keys before its start; it has the cold chain.

    Its tokens from `start` on differ from those of a cold run until their windows hold exact keys again.
    """
    count = len(embedded)
    entering, stored = [embedded], []
    start = repair[0].start if repair is not None else 0
    for layer, component in enumerate(model.layers):
        kind, hidden = model.kinds[component], entering[-1]
        keys = of_layer(hidden, layer)
        if is_state(kind):
            sums = totals(keys, 0)
            stored.append(sums[1:])
            entering.append(after_layer(hidden, sums[1:]))
            continue
        first = model.firsts(layer, 0, count)
        if repair is not None:
            if keeps_everything(kind, model.context):
                # Resident full keys are those of a cold run, and a repair does not write them.
                keys = np.concatenate(
                    [repair[1].keys[layer][: repair[0].full_until], keys[repair[0].full_until :]]
                )
            else:
                first = np.maximum(first, start)
        sums = totals(keys, 0)
        after = after_layer(hidden, sums[1:] - sums[first.clip(max=np.arange(count))])
        if repair is not None:
            after[:start] = repair[1].entering[layer + 1][:start]
        stored.append(keys)
        entering.append(after)
    return Chain(tuple(entering), tuple(stored))


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

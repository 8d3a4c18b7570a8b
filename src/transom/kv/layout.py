"""How much memory there is and how it is cut: frozen facts, and the one formula that sizes a request."""

from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from transom.errors import ConfigError
from transom.kv.components import Grid, first_needed, is_rooted, reads_before
from transom.values import ComponentSpec


class PrefixCaching(Enum):
    """OFF is the reports' ChunkCache: a namespace per request, pages given back at reference 0."""

    ON = "on"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """Pools and rows of one cache.

    pages   usable pages per component, ids 1..n
    rows    holdings at once
    context most tokens of one row
    layers  the component of every layer of the model, in order, each with keys and values of its own: what
            repair is computed from. Without layers none is offered.
    """

    components: tuple[ComponentSpec, ...]
    pages: tuple[int, ...]
    page_size: int
    rows: int
    context: int
    prefix_caching: PrefixCaching = PrefixCaching.ON
    layers: tuple[int, ...] = ()

    def grids(self) -> tuple[Grid, ...]:
        """One per component: what `needed` means in pages."""
        return tuple(
            Grid(
                component,
                self.page_size,
                is_rooted(component, self.context),
                reads_before(component, self.context),
            )
            for component in self.components
        )


def pages_alone(component: ComponentSpec, page_size: int, tokens: int, chunk: int) -> int:
    """The most pages of `component` that one request of `tokens` tokens ever holds, in chunks of `chunk`.

    Before a step it holds [keep(computed), end), end = min(computed + chunk, tokens). Grows with both.
    """
    assert tokens >= 1 and chunk >= 1, (tokens, chunk)
    return _most(_kept_from(component, page_size, tokens), page_size, tokens, chunk)


@lru_cache(maxsize=256)
def longest_alone(layout: CacheLayout, chunk: int) -> int:
    """The longest request, in tokens and at most `context`, that fits with the whole cache to itself."""
    kept = [_kept_from(component, layout.page_size, layout.context) for component in layout.components]

    def fits(tokens: int) -> bool:
        held = (_most(pages, layout.page_size, tokens, chunk) for pages in kept)
        return all(most <= pages for most, pages in zip(held, layout.pages, strict=True))

    low, high = 0, layout.context
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def _kept_from(component: ComponentSpec, page_size: int, tokens: int) -> NDArray[np.int64]:
    """Per page: the first page still kept while `computed` lies in it."""
    grid = Grid(component, page_size)
    return np.array([grid.keep(start) for start in range(0, tokens, page_size)], dtype=np.int64)


def _most(kept_from: NDArray[np.int64], page_size: int, tokens: int, chunk: int) -> int:
    """Of the positions in one page the last is the worst: it reaches furthest and keeps the same."""
    pages = -(-tokens // page_size)
    computed = np.minimum(np.arange(pages) * page_size + page_size - 1, tokens - 1)
    end = -(-np.minimum(computed + chunk, tokens) // page_size)
    return int((end - kept_from[:pages]).max())


def require_workable(layout: CacheLayout) -> None:
    """Raise ConfigError, naming the minimum, unless a request can run token by token.

    A pool that keeps everything bounds the length of a request. One that slides must not: it needs room for
    what any request keeps that the others let grow that long.
    """
    _require_sane(layout)
    longest = layout.context
    for component, pages in zip(layout.components, layout.pages, strict=True):
        if is_rooted(component, layout.context):
            longest = min(longest, pages * layout.page_size)
    for component, pages in zip(layout.components, layout.pages, strict=True):
        least = 1 if longest < 1 else pages_alone(component, layout.page_size, longest, 1)
        if pages < least:
            raise ConfigError(
                f"{component.name}: {pages} pages of {layout.page_size} tokens cannot hold one request; "
                f"at least {least} are needed"
            )


def _require_sane(layout: CacheLayout) -> None:
    if not layout.components or len(layout.components) != len(layout.pages):
        raise ConfigError(f"{len(layout.components)} components, {len(layout.pages)} page counts")
    for name, value in (("page_size", layout.page_size), ("rows", layout.rows), ("context", layout.context)):
        if value < 1:
            raise ConfigError(f"{name} is {value}; at least 1 is needed")
    for component in layout.components:
        first_needed(component, layout.context)
    if layout.layers and set(layout.layers) != set(range(len(layout.components))):
        raise ConfigError(
            f"layers of components {sorted(set(layout.layers))}; there are {len(layout.components)}"
        )

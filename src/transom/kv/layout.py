"""How much memory there is and how it is cut: frozen facts, and the one formula that sizes a request."""

from dataclasses import dataclass
from enum import Enum

from transom.errors import ConfigError
from transom.kv.components import Grid, first_needed, is_rooted
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
    """

    components: tuple[ComponentSpec, ...]
    pages: tuple[int, ...]
    page_size: int
    rows: int
    context: int
    prefix_caching: PrefixCaching = PrefixCaching.ON

    def grids(self) -> tuple[Grid, ...]:
        """One per component: what `needed` means in pages."""
        return tuple(
            Grid(component, self.page_size, is_rooted(component, self.context)) for component in self.components
        )


def pages_alone(component: ComponentSpec, page_size: int, tokens: int, chunk: int) -> int:
    """The most pages of `component` that one request of `tokens` tokens ever holds, in chunks of `chunk`.

    Before a step it holds [keep(computed), end), end = min(computed + chunk, tokens). Among positions of one
    page the last is the worst, so one look per page is enough. Grows with `tokens` and with `chunk`.
    """
    assert tokens >= 1 and chunk >= 1, (tokens, chunk)
    grid = Grid(component, page_size, rooted=False)
    last_of_each_page = range(page_size - 1, tokens + page_size - 1, page_size)
    return max(
        grid.ceil(min(computed + chunk, tokens)) - grid.keep(computed)
        for computed in (min(last, tokens - 1) for last in last_of_each_page)
    )


def longest_alone(layout: CacheLayout, chunk: int) -> int:
    """The longest request, in tokens and at most `context`, that fits with the whole cache to itself."""
    low, high = 0, layout.context
    while low < high:
        middle = (low + high + 1) // 2
        if _fits(layout, middle, chunk):
            low = middle
        else:
            high = middle - 1
    return low


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


def _fits(layout: CacheLayout, tokens: int, chunk: int) -> bool:
    return all(
        pages_alone(component, layout.page_size, tokens, chunk) <= pages
        for component, pages in zip(layout.components, layout.pages, strict=True)
    )

"""The layout of a cache: its memory and how it is divided; and the formula for the memory of one request.

Startup checks, admission limits and `longest_alone` all use the same formula, `PageRule.held_by_page`.
"""

from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

import numpy as np

from transom.errors import ConfigError
from transom.kv.component_specs import ComponentSpec
from transom.kv.eviction_policy import CachePolicy
from transom.kv.page_rules import PageRule, page_rule


class PrefixCaching(Enum):
    """OFF puts each request into a namespace of its own; its pages are freed at reference 0.

    SGLang calls this ChunkCache.
    """

    ON = "on"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """Pools and rows of one cache.

    pages      pages per component, ids 1..n; with a budget only ids, which cost no memory until touched
    rows       most holdings at a time
    context    most tokens of one holding
    budget     bytes that all pools share; without it, every pool has fixed memory of its own
    page_bytes with a budget: bytes of a page, per component
    policy     the eviction policy
    pin_tokens most tokens that may be pinned at a time
    layers     the component of every layer of the model, in order, each with keys and values of its own.
               Repairs are computed from it; without layers, no repair is offered
    """

    components: tuple[ComponentSpec, ...]
    pages: tuple[int, ...]
    page_size: int
    rows: int
    context: int
    prefix_caching: PrefixCaching = PrefixCaching.ON
    budget: int | None = None
    page_bytes: tuple[int, ...] = ()
    policy: CachePolicy = CachePolicy.VALUE
    pin_tokens: int = 1 << 16
    layers: tuple[int, ...] = ()

    def rules(self) -> tuple[PageRule, ...]:
        """The page rule of each component."""
        return tuple(page_rule(component, self.page_size, self.context) for component in self.components)


def address_space(budget: int, page_bytes: tuple[int, ...]) -> tuple[int, ...]:
    """Page ids per component when all share `budget` bytes: enough for each component to take all of it."""
    assert budget >= 0 and min(page_bytes) > 0, (budget, page_bytes)
    return tuple(budget // size for size in page_bytes)


# ---------------------------------------------------------------- memory of one request


def pages_alone(component: ComponentSpec, page_size: int, tokens: int, chunk: int) -> int:
    """The most pages of `component` that one request of `tokens` tokens ever holds, computed in chunks.

    Before a step it holds [keep(computed), end) with end = min(computed + chunk, tokens). Monotonic in both.
    """
    return int(page_rule(component, page_size, tokens).held_by_page(tokens, chunk).max())


def bytes_alone(layout: CacheLayout, tokens: int, chunk: int) -> int:
    """The most bytes that one request ever holds in all pools together. The layout must have a budget."""
    return _most_bytes(layout, layout.rules(), tokens, chunk)


@lru_cache(maxsize=256)
def longest_alone(layout: CacheLayout, chunk: int) -> int:
    """The longest request, in tokens and at most `context`, that fits into an empty cache."""
    rules = layout.rules()
    # Pages held grow with the length of a request, so bisection finds the last length that fits.
    low, high = 0, layout.context  # 0 tokens fit into any cache
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if _fits(layout, rules, middle, chunk) else (low, middle - 1)
    assert low == high, (low, high)
    return low


def _fits(layout: CacheLayout, rules: tuple[PageRule, ...], tokens: int, chunk: int) -> bool:
    if layout.budget is not None:
        return _most_bytes(layout, rules, tokens, chunk) <= layout.budget
    held = (int(rule.held_by_page(tokens, chunk).max()) for rule in rules)
    return all(most <= pages for most, pages in zip(held, layout.pages, strict=True))


def _most_bytes(layout: CacheLayout, rules: tuple[PageRule, ...], tokens: int, chunk: int) -> int:
    """The most bytes held at one time. Sums first: components may peak at different times."""
    sizes = zip(rules, layout.page_bytes, strict=True)
    return int(np.sum([rule.held_by_page(tokens, chunk) * size for rule, size in sizes], axis=0).max())


# ---------------------------------------------------------------- the least memory of a cache


def require_workable(layout: CacheLayout) -> None:
    """Raises ConfigError, naming the minimum, unless a request can run token by token.

    Pools that keep everything bound the length of requests. Pools that slide must not: each must hold the
    pages that a request of that length keeps. With a budget, the budget alone bounds the length.
    """
    _require_sane(layout)
    if layout.budget is not None:
        _require_budget(layout, layout.budget)
        return
    # First the bound on lengths from pools that keep everything, then the need of each pool at that length.
    # At least one page: an empty pool is refused below.
    bounds = [rule.whole(max(1, pages)) for rule, pages in zip(layout.rules(), layout.pages, strict=True)]
    longest = min([layout.context, *filter(None, bounds)])
    for component, pages in zip(layout.components, layout.pages, strict=True):
        least = pages_alone(component, layout.page_size, longest, 1)
        if pages < least:
            raise ConfigError(
                f"{component.name}: {pages} pages of {layout.page_size} tokens cannot hold one request; "
                f"at least {least} are needed"
            )


def _require_budget(layout: CacheLayout, budget: int) -> None:
    least = bytes_alone(layout, min(2, layout.context), 1)
    if budget < least:
        raise ConfigError(
            f"a KV budget of {budget} bytes cannot hold one request; at least {least} are needed"
        )


def _require_sane(layout: CacheLayout) -> None:
    if not layout.components or len(layout.components) != len(layout.pages):
        raise ConfigError(f"{len(layout.components)} components, {len(layout.pages)} page counts")
    for name, value in (("page_size", layout.page_size), ("rows", layout.rows), ("context", layout.context)):
        if value < 1:
            raise ConfigError(f"{name} is {value}; at least 1 is needed")
    if layout.budget is not None and len(layout.page_bytes) != len(layout.components):
        raise ConfigError(f"{len(layout.components)} components, {len(layout.page_bytes)} page sizes")
    assert layout.budget is None or layout.pages == address_space(layout.budget, layout.page_bytes), layout
    if layout.layers and set(layout.layers) != set(range(len(layout.components))):
        raise ConfigError(
            f"layers name components {sorted(set(layout.layers))}, but there are {len(layout.components)}"
        )

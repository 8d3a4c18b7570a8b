"""Sizes the KV pools: from the configuration to pages per component and the served context."""

from dataclasses import dataclass, replace

from transom.config import EngineConfig
from transom.errors import ConfigError
from transom.kv.component_specs import ComponentSpec
from transom.kv.eviction_policy import CachePolicy
from transom.kv.layout import CacheLayout, PrefixCaching, address_space, bytes_alone, longest_alone
from transom.kv.page_rules import slots_held
from transom.models.spec import ModelSpec
from transom.ops.store import KVType, PageShape

TOKENS_DEFAULT = 32_768
"""Full-attention tokens that the pools hold by default."""
WINDOWS_KEPT = 24
"""Windows, of running requests and cached prefixes, that a sliding pool holds if no ratio is configured."""


@dataclass(frozen=True, slots=True)
class Sizing:
    """The size of the pools. `shapes` and `layout.pages` have one entry per component."""

    layout: CacheLayout
    shapes: tuple[PageShape, ...]

    @property
    def bytes(self) -> tuple[int, ...]:
        """Bytes of each component. With a shared budget, its maximum."""
        return tuple(n * shape.page_bytes for n, shape in zip(self.layout.pages, self.shapes, strict=True))


def size_pools(spec: ModelSpec, config: EngineConfig) -> Sizing:
    """The pools for a model. Raises ConfigError, which names the minimum, if no request could run."""
    shapes = spec.page_shapes(config.page_size, KVType(config.kv_dtype))
    sizes = tuple(shape.page_bytes for shape in shapes)
    pages = _fixed_pages(spec, config, shapes)
    budget = None
    if config.swa_full_tokens_ratio is None:
        # The pools share one budget of bytes, as large as the fixed pools would be; each one's page numbers
        # cover the case that it gets all of the budget.
        budget = config.kv_bytes or sum(n * size for n, size in zip(pages, sizes, strict=True))
        pages = address_space(budget, sizes)
    caching = PrefixCaching.OFF if config.disable_radix_cache else PrefixCaching.ON
    layout = CacheLayout(
        components=spec.components,
        pages=pages,
        page_size=config.page_size,
        rows=config.max_running_requests,
        context=spec.context,
        prefix_caching=caching,
        budget=budget,
        page_bytes=sizes,
        policy=CachePolicy(config.cache_policy),
        layers=tuple(layer.component for layer in spec.layers),
    )
    context = longest_alone(layout, chunk=1)
    # The shortest useful request has one token of prompt and one of output.
    if context < 2:
        raise ConfigError(_too_small(layout))
    return Sizing(replace(layout, context=context), shapes)


def _too_small(layout: CacheLayout) -> str:
    have = ", ".join(f"{c.name} {n}" for c, n in zip(layout.components, layout.pages, strict=True))
    if layout.budget is not None:
        least = bytes_alone(layout, 2, 1)
        return (
            f"a KV budget of {layout.budget} bytes cannot hold a request of two tokens, which needs {least}; "
            "raise --kv-bytes or --max-total-tokens"
        )
    return (
        f"the KV pools ({have} pages of {layout.page_size} tokens) cannot hold a request of two tokens; "
        "raise --kv-bytes or --max-total-tokens"
    )


def _fixed_pages(spec: ModelSpec, config: EngineConfig, shapes: tuple[PageShape, ...]) -> tuple[int, ...]:
    """Pages per component, for pools of fixed sizes."""
    tokens = config.max_total_tokens or min(TOKENS_DEFAULT, spec.context)
    if config.kv_bytes is not None:
        tokens = _tokens_within(spec, config, shapes, config.kv_bytes)
    return _pages_holding(spec, config, tokens)


def _pages_holding(spec: ModelSpec, config: EngineConfig, tokens: int) -> tuple[int, ...]:
    """Pages per component if a full-attention pool holds `tokens`."""
    return tuple(_pool_tokens(c, config, tokens) // config.page_size for c in spec.components)


def _pool_tokens(component: ComponentSpec, config: EngineConfig, tokens: int) -> int:
    """Tokens that the pool of `component` holds if a full-attention pool holds `tokens`."""
    kept, computing = (
        slots_held(component, config.page_size, tokens, chunk) for chunk in (0, config.chunked_prefill_size)
    )
    if kept > tokens:
        return tokens  # a request keeps everything
    if config.swa_full_tokens_ratio is not None:
        return int(tokens * config.swa_full_tokens_ratio)
    # Until a chunk has been computed, its positions are held beside the window. There is room for two chunks.
    return min(tokens, (WINDOWS_KEPT - 2) * kept + 2 * computing)


def _tokens_within(spec: ModelSpec, config: EngineConfig, shapes: tuple[PageShape, ...], budget: int) -> int:
    """The most tokens that fit `budget` bytes. Bisection works: bytes never shrink as tokens grow."""
    low, high = 0, spec.context * config.max_running_requests
    while low < high:
        middle = (low + high + 1) // 2
        pages = _pages_holding(spec, config, middle)
        if sum(n * shape.page_bytes for n, shape in zip(pages, shapes, strict=True)) <= budget:
            low = middle
        else:
            high = middle - 1
    return low

"""Immutable snapshots of a cache, and the counters behind them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ComponentStats:
    """Pages of one component now; capacity = free + referenced + unreferenced + private. Counters only grow."""

    name: str
    capacity: int
    free: int
    referenced: int
    unreferenced: int
    private: int
    reclaimed: int
    holes_filled: int
    duplicates_returned: int


@dataclass(frozen=True, slots=True)
class CacheStats:
    components: tuple[ComponentStats, ...]
    page_size: int
    rows_used: int
    epoch: int
    admitted: int
    hits: int
    hit_tokens: int
    pages_copied: int

"""From what was found in the tree to what is offered, and to the holding that takes the offer."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from transom.kv.components import PageRule
from transom.kv.holding import Holding, Namespace, Offer
from transom.kv.match import Hit, best_hit, repaired, with_full_pages
from transom.kv.pool import PagePool
from transom.kv.tree import as_key
from transom.values import RequestId, Tokens

if TYPE_CHECKING:
    from transom.kv.cache import HybridCache


def ways(
    cache: "HybridCache", namespace: Namespace, tokens: Tokens, latest: int | None = None
) -> Iterator[Offer]:
    """All ways to begin, the fewest tokens to compute first. To be used before the tree changes.

    All compute the token at `latest`, exactly, if that is before the last one.
    """
    last = len(tokens) - 1
    key = as_key(tokens, last if latest is None else min(last, latest))
    hit = best_hit(cache.tree, cache.grids, namespace, key)
    repair = repaired(hit, cache.grids, cache.layout.layers)
    if repair:
        yield offer_of(repair, cache.grids, cache.pools)
    if latest is not None and latest < last:
        hit = with_full_pages(cache.tree, cache.grids, namespace, as_key(tokens, last), hit)
    if hit.begin.full_until:
        yield offer_of(hit, cache.grids, cache.pools)
    yield cache.cold()


def offer_of(hit: Hit, grids: tuple[PageRule, ...], pools: tuple[PagePool, ...]) -> Offer:
    """What admission at `hit` would take and reference, by component."""
    pins = []
    for component, (grid, pool) in enumerate(zip(grids, pools, strict=True)):
        pages, source = hit.read(component, grid), hit.source(component, grid)
        pins.append(pool.unreferenced(pages) + (pool.unreferenced([source]) if source else 0))
    return Offer(hit.begin, tuple([hit.takes(grid) for grid in grids]), tuple(pins))


def holding_of(
    hit: Hit, grids: tuple[PageRule, ...], request: RequestId, namespace: Namespace, row: int
) -> Holding:
    """The holding of a request that begins at `hit`: not seated yet, nothing referenced."""
    start = hit.begin.start
    return Holding(
        request=request,
        row=row,
        namespace=namespace,
        start=start,
        computed=start,
        allocated=start,
        published=grids[0].floor(start),
        kept=tuple([hit.kept(grid) for grid in grids]),
        exact=tuple([hit.exact(component, grid) for component, grid in enumerate(grids)]),
        full_until=hit.begin.full_until,
        clip=hit.begin.clip,
    )

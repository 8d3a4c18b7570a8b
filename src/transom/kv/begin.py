"""From what was found in the tree to what is offered, and to the holding that takes the offer."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from transom.kv.holding import Holding, Namespace, Offer
from transom.kv.match import Hit, Share, best_hit, repaired, with_full_pages
from transom.kv.page_rules import PageRule
from transom.kv.pool import PagePool, as_pages
from transom.kv.radix_tree import as_key
from transom.values import RequestId, Tokens

if TYPE_CHECKING:
    from transom.kv.cache import HybridCache


def ways(
    cache: "HybridCache", namespace: Namespace, tokens: Tokens, latest: int | None = None
) -> Iterator[Offer]:
    """All ways to begin, the fewest tokens to compute first. To be used before the tree changes.

    All compute the token at `latest`, exactly, if that is before the last one.
    """
    last = max(0, len(tokens) - 1)
    key = as_key(tokens, last if latest is None else min(last, latest))
    hit = best_hit(cache.tree, cache.rules, namespace, key)
    repair = repaired(hit, cache.rules, cache.layout.layers)
    if repair:
        yield offer_of(repair, cache.rules, cache.pools)
    if latest is not None and latest < last:
        hit = with_full_pages(cache.tree, cache.rules, namespace, as_key(tokens, last), hit)
    if hit.begin.full_until:
        yield offer_of(hit, cache.rules, cache.pools)
    yield cache.cold()


def offer_of(hit: Hit, rules: tuple[PageRule, ...], pools: tuple[PagePool, ...]) -> Offer:
    """What admission at `hit` would take and reference, by component."""
    takes, pins = [], []
    for pool, share in zip(pools, hit.shares(rules), strict=True):
        assert share.takes >= 0 and share.source >= 0, (hit, share)
        takes.append(share.takes)
        source = pool.unreferenced(as_pages([share.source])) if share.source else 0
        pins.append(pool.unreferenced(share.pages) + source)
    return Offer(hit.begin, tuple(takes), tuple(pins))


def holding_of(
    hit: Hit,
    shares: list[Share],
    rules: tuple[PageRule, ...],
    request: RequestId,
    namespace: Namespace,
    row: int,
) -> Holding:
    """The holding of a request that begins at `hit`: not seated yet, nothing referenced."""
    begin = hit.begin
    assert len(shares) == len(rules), (shares, rules)
    kept, _, _, _, exact = zip(*shares, strict=True)
    return Holding(
        request=request,
        row=row,
        namespace=namespace,
        start=begin.start,
        computed=begin.start,
        allocated=begin.start,
        published=rules[0].floor(begin.start),
        kept=kept,
        exact=exact,
        full_until=begin.full_until,
        clip=begin.clip,
    )

"""A second request at the place of a first: whole pages are shared, only what is written to is copied."""

from typing import TYPE_CHECKING

from transom.kv.holding import Holding, Pending
from transom.steps import PageCopy
from transom.values import RequestId

if TYPE_CHECKING:
    from transom.kv.cache import HybridCache


def private_entries(cache: "HybridCache", holding: Holding) -> list[list[int]]:
    """Per component: entries of the row that are the request's own and hold something it has computed."""
    found = []
    for component, rule in enumerate(cache.rules):
        first = max(holding.shared(rule), holding.kept[component])
        last = rule.entries(holding.computed)
        entries = cache.rows[component].read(holding.row, min(first, last), last).tolist()
        found.append([min(first, last) + place for place, page in enumerate(entries) if page])
    return found


def begin_fork(cache: "HybridCache", holding: Holding, request: RequestId, tokens: int) -> Holding:
    """The child's holding: not seated yet, nothing referenced."""
    return Holding(
        request=request,
        row=cache.holdings.index(None),
        namespace=holding.namespace,
        start=holding.start,
        computed=holding.computed,
        allocated=holding.computed,
        published=holding.published,
        kept=holding.kept,
        prompt=tokens,
        priority=holding.priority,
        exact=holding.exact,
        full_until=holding.full_until,
        clip=holding.clip,
    )


def share(cache: "HybridCache", holding: Holding, child: Holding) -> None:
    """The child's row names the pages of the tree that the first one's does."""
    assert child.row != holding.row and child.namespace == holding.namespace, (holding, child)
    for component, rule in enumerate(cache.rules):
        kept, end = holding.kept[component], holding.shared(rule)
        if kept < end:
            entries = cache.rows[component].read(holding.row, kept, end)
            cache.pools[component].reference(entries[entries != 0])
            cache.rows[component].write(child.row, kept, entries)


def copy_of(cache: "HybridCache", holding: Holding, child: Holding, component: int, entry: int) -> Pending:
    """The child has a page at `entry`; the first one's is to be copied into it."""
    source = int(cache.rows[component].table[holding.row, entry])
    target = int(cache.rows[component].table[child.row, entry])
    assert source and target, (holding, component, entry)
    size = cache.layout.page_size
    slots = min(size, holding.computed - entry * size) if cache.rules[component].by_reference else 1
    return Pending(child, PageCopy(component, source, target, slots), pin=0, reads=holding)

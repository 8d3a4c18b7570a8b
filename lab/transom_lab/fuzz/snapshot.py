"""Everything a cache knows, as a value: what was rolled back must equal what was."""

from dataclasses import fields
from typing import Any

from transom.kv.cache import Holding, HybridCache
from transom.kv.check import inside
from transom.kv.holding import Pending
from transom.kv.pool import PagePool
from transom_lab.fuzz.residency import nodes


def snapshot(cache: HybridCache) -> dict[str, Any]:
    """Comparable, by topic. Not of the contents of pages: the cache knows none."""
    names = {id(node): (space, prefix) for space, prefix, node in nodes(cache)}
    return {
        "pools": [_pool(pool) for pool in inside(cache).pools],
        "rows": [rows.table.tolist() for rows in inside(cache).tables],
        "tree": {
            (space, prefix): (
                [p.tolist() for p in node.pages],
                node.resident,
                sorted(node.children),
                node.sorted_children,
                node.pinned,
            )
            for space, prefix, node in nodes(cache)
        },
        "roots": {
            space: (sorted(root.children), list(root.sorted_children))
            for space, root in inside(cache).tree.roots.items()
        },
        "orders": [[names[id(node)] for node in order.items()] for order in inside(cache).tree.queues],
        "holdings": [None if holding is None else _holding(holding) for holding in inside(cache).holdings],
        "pending": [_pending(cache, pending) for pending in inside(cache).pending],
        "discards": cache.pending_discards(),
        "pins": inside(cache).pins.pins,
        "told": (inside(cache).log.next, inside(cache).log.step, inside(cache).log.epoch),
        "epoch": cache.epoch,
        "counts": (inside(cache).counters.traffic, inside(cache).counters.admissions),
    }


def same(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Topic by topic, so that a difference is readable."""
    assert before.keys() == after.keys()
    for name, value in before.items():
        assert value == after[name], (name, value, after[name])


def _pool(pool: PagePool) -> tuple[Any, ...]:
    references = pool.references(range(pool.capacity + 1)).tolist()
    free, untouched = pool.free_pages().tolist(), pool.untouched_pages().tolist()
    return free, untouched, pool.owners().tolist(), references, pool.free, pool.tree, pool.idle


def _pending(cache: HybridCache, pending: Pending) -> tuple[Any, ...]:
    readers = [holding and holding.row for holding in (pending.holding, pending.reads)]
    return pending.copy, pending.pin, pending.snapshot_of, *readers


def _holding(holding: Holding) -> tuple[Any, ...]:
    return tuple(getattr(holding, field.name) for field in fields(holding))

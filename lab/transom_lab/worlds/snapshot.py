"""The whole state of a cache as a value, to compare before and after a transaction that is rolled back."""

from dataclasses import fields
from typing import Any

from transom.kv.cache import Holding, HybridCache
from transom.kv.check import inside
from transom.kv.holding import Pending
from transom.kv.pool import PagePool
from transom_lab.worlds.residency import nodes


def snapshot(cache: HybridCache) -> dict[str, Any]:
    """The state by topic, comparable. Page contents are not part of it: the cache does not know them."""
    parts = inside(cache)
    names = {id(node): (space, prefix) for space, prefix, node in nodes(cache)}
    return {
        "pools": [_pool(pool) for pool in parts.pools],
        "rows": [rows.table.tolist() for rows in parts.tables],
        "tree": {
            (space, prefix): (
                [p.tolist() for p in node.pages],
                node.resident,
                [child.key for child in node.children],
                node.pinned,
            )
            for space, prefix, node in nodes(cache)
        },
        "roots": {space: [child.key for child in root.children] for space, root in parts.tree.roots.items()},
        "orders": [[names[id(node)] for node in order.items()] for order in parts.tree.queues],
        "holdings": [None if holding is None else _holding(holding) for holding in parts.holdings],
        "pending": [_pending(cache, pending) for pending in parts.pending],
        "discards": cache.pending_discards(),
        "pins": parts.pins.pins,
        "journal": (parts.log.next, parts.log.step, parts.log.epoch),
        "epoch": cache.epoch,
        "counts": (parts.counters.traffic, parts.counters.admissions),
    }


def same(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Asserts equality topic by topic, so that the message names the difference."""
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

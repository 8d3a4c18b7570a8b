"""Snapshots of recurrent states: pages of the tree, copied from and to the private pages of requests.

A state changes with every token, so rows never share one. When a request publishes at a cut, the tree gets a
page, and a copy is noted that runs before the request computes further. If the request ends first, its own
page becomes the snapshot. Until the copy has run, no row references the page: it may be evicted like any
other, and then the copy is forgotten.

Only components of kind `State` have snapshots, and no model family uses one yet; the fuzzer does.
"""

from dataclasses import dataclass, replace

from transom.kv.holding import Holding, Pending
from transom.kv.node import TOKEN_BYTES, Node, Path
from transom.kv.page_rules import PageRule
from transom.kv.page_table import PageTable
from transom.kv.pool import as_pages, owner_of
from transom.kv.radix_tree import RadixTree
from transom.steps import PageCopy


@dataclass(frozen=True, slots=True)
class SnapshotKeeper:
    """Keeps and withdraws snapshots. Owns nothing; changes tree, pools and page tables of one cache."""

    tree: RadixTree
    rows: tuple[PageTable, ...]
    rules: tuple[PageRule, ...]

    def wanted(self, holding: Holding, key: bytes) -> list[int]:
        """Components that keep a snapshot after exactly `key` and have no snapshot there yet."""
        cuts = [
            component
            for component, rule in enumerate(self.rules)
            if rule.keeps(holding.computed) and len(key) == holding.computed * TOKEN_BYTES
        ]
        if not cuts:
            return cuts
        # A path that ends earlier has no snapshot there; `publish` will extend it.
        path = self.tree.walk(holding.namespace, key)
        whole = path.pages * self.tree.page_bytes == len(key)
        return [c for c in cuts if not whole or not path.residency(c)[-1]]

    def keep(self, holding: Holding, path: Path, component: int, key: bytes) -> Pending:
        """Allocates a page at the end of `path` and returns the pending copy into it. A page must be free."""
        assert path.pages * self.tree.page_bytes == len(key), (path.pages, len(key))
        node, index = _last_page(path)
        pool, row = self.tree.pools[component], holding.row
        page = pool.allocate(1, owner_of(row))
        pool.adopt(page, owner_of(row))
        pool.unreference(page)  # `adopt` counts a reader, and the row reads its own state
        self.tree.fill(node, component, [index], page)
        copy = PageCopy(component, int(self.rows[component].table[row, 0]), int(page[0]), 1)
        return Pending(holding, copy, pin=0, snapshot_of=key)

    def without_evicted(self, pending: tuple[Pending, ...]) -> tuple[Pending, ...]:
        """`pending` without the snapshots that lost their page before it was written."""
        return tuple(
            [
                p
                for p in pending
                if p.snapshot_of is None or self.tree.pools[p.copy.component].is_of_tree(p.copy.target)
            ]
        )

    def withdraw(self, pending: tuple[Pending, ...]) -> None:
        """Evicts the pages of snapshots that will never be written. No row reads them."""
        for each in pending:
            assert each.snapshot_of is not None, each
            node, index = _last_page(self.tree.walk(each.holding.namespace, each.snapshot_of))
            assert node.pages[each.copy.component][index] == each.copy.target, (node, index, each)
            self.tree.evict_pages(node, each.copy.component, [index])
            self.tree.trim(node)

    def keep_own_pages(self, holding: Holding, pending: tuple[Pending, ...]) -> tuple[Pending, ...]:
        """As `holding` ends, puts its own page in place of each snapshot not copied yet.

        Returns the copies that are pending then.
        """
        for each in pending:
            if each.snapshot_of is not None and each.holding is holding:
                pending = self._keep_own_page(each, pending)
        return pending

    def _keep_own_page(self, pending: Pending, all_pending: tuple[Pending, ...]) -> tuple[Pending, ...]:
        """Makes the row's own page the snapshot and frees the target of the copy.

        Other pending copies that read the target now read the row's page. Returns the pending copies.
        """
        component, row, copy = pending.copy.component, pending.holding.row, pending.copy
        assert pending.snapshot_of is not None and self.rows[component].table[row, 0] == copy.source, pending
        pool = self.tree.pools[component]
        path = self.tree.walk(pending.holding.namespace, pending.snapshot_of)
        node, index = _last_page(path)
        assert node.page(component, index) == copy.target, (node, index, copy)
        source, target = as_pages([copy.source]), as_pages([copy.target])
        # Hits that were offered on the snapshot before it was written copy from its target.
        left = [p for p in all_pending if p is not pending]
        moved = [p for p in left if p.copy.component == component and p.pin == copy.target]
        for _ in moved:
            pool.unreference(target)
        self.tree.evict_pages(node, component, [index])
        self.rows[component].clear(row, 0, 1)
        pool.adopt(source, owner_of(row))
        pool.unreference(source)
        for _ in moved:
            pool.reference(source)
        self.tree.fill(node, component, [index], source)
        return tuple(_reading(p, copy.source) if p in moved else p for p in left)


def _last_page(path: Path) -> tuple[Node, int]:
    """The node and index of the last page of `path`."""
    assert path.pages > 0, path
    return path.end, path.within - 1


def _reading(pending: Pending, source: int) -> Pending:
    """The same copy from another page of the tree."""
    return replace(pending, copy=replace(pending.copy, source=source), pin=source)

"""Snapshots of states: kept at cuts as pages of the tree, copied from and to the requests' own pages.

A state changes with every token, so it is never shared. Publishing at a cut takes a page for the tree and
notes a copy, which runs before the request computes on; a request that ends before gives its own page. Until
it has run nobody holds the page: it may be taken back like any other, and then nothing is copied.
"""

from dataclasses import dataclass, replace

from transom.kv.holding import Holding, Pending
from transom.kv.page_rules import PageRule
from transom.kv.page_table import PageTable
from transom.kv.pool import as_pages, owner_of
from transom.kv.radix_tree import Node, Path, PrefixTree
from transom.steps import PageCopy


@dataclass(frozen=True, slots=True)
class SnapshotKeeper:
    """Where snapshots come from and go to."""

    tree: PrefixTree
    rows: tuple[PageTable, ...]
    rules: tuple[PageRule, ...]

    def wanted(self, holding: Holding, key: bytes) -> list[int]:
        """Components that keep a snapshot after exactly `key`, and have none there."""
        cuts = [
            component
            for component, rule in enumerate(self.rules)
            if rule.keeps(holding.computed)
            and len(key) == rule.floor(holding.computed) * self.tree.page_bytes
        ]
        if not cuts:
            return cuts
        path = self.tree.walk(holding.namespace, key)
        whole = path.pages * self.tree.page_bytes == len(key)
        return [c for c in cuts if not whole or not path.residency(c)[-1]]

    def keep(self, holding: Holding, path: Path, component: int, key: bytes) -> Pending:
        """A page at the end of `path`, into which the request's state is to be copied. One must be free."""
        assert path.pages * self.tree.page_bytes == len(key), (path.pages, len(key))
        node, index = _place(path)
        pool, row = self.tree.pools[component], holding.row
        page = pool.take(1, owner_of(row))
        pool.adopt(page, owner_of(row))
        pool.unreference(page)
        self.tree.fill(node, component, [index], page)
        copy = PageCopy(component, int(self.rows[component].table[row, 0]), int(page[0]), 1)
        return Pending(holding, copy, pin=0, snapshot_of=key)

    def written(self, pending: tuple[Pending, ...]) -> tuple[Pending, ...]:
        """Without snapshots whose page was taken back before they were written: nothing waits for them."""
        return tuple(
            [
                p
                for p in pending
                if p.snapshot_of is None or self.tree.pools[p.copy.component].is_of_tree(p.copy.target)
            ]
        )

    def withdraw(self, pending: tuple[Pending, ...]) -> None:
        """The pages into which states are to be copied go back, and leave holes. Nobody reads them."""
        for each in pending:
            assert each.snapshot_of is not None, each
            node, index = _place(self.tree.walk(each.holding.namespace, each.snapshot_of))
            assert node.pages[each.copy.component][index] == each.copy.target, (node, index, each)
            self.tree.evict_pages(node, each.copy.component, [index])
            self.tree.trim(node)

    def left_by(self, holding: Holding, pending: tuple[Pending, ...]) -> tuple[Pending, ...]:
        """As `holding` ends: its own page takes the place of each copy not made yet. What is pending then."""
        for each in pending:
            if each.snapshot_of is not None and each.holding is holding:
                pending = self._leave(each, pending)
        return pending

    def _leave(self, pending: Pending, all_pending: tuple[Pending, ...]) -> tuple[Pending, ...]:
        """Its own page becomes the snapshot, the copy's target goes back.

        Whoever was to copy from the target copies from that page. Returns what is pending then.
        """
        component, row, copy = pending.copy.component, pending.holding.row, pending.copy
        assert pending.snapshot_of is not None and self.rows[component].table[row, 0] == copy.source, pending
        pool = self.tree.pools[component]
        path = self.tree.walk(pending.holding.namespace, pending.snapshot_of)
        node, index = _place(path)
        assert node.page(component, index) == copy.target, (node, index, copy)
        source, target = as_pages([copy.source]), as_pages([copy.target])
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


def _place(path: Path) -> tuple[Node, int]:
    """Where the last page of the path lies."""
    assert path.pages > 0, path
    return path.end, path.within - 1


def _reading(pending: Pending, source: int) -> Pending:
    return replace(pending, copy=replace(pending.copy, source=source), pin=source)

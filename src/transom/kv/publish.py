"""Giving computed whole pages to the tree: fill holes, never replace.

Along the path of the request's tokens the tree takes a page only where it has a hole. Everywhere else the
request's page is a duplicate: it goes back to the pool and the row names the tree's page instead. Whatever
a row names before `published` it has referenced, so nothing it reads can be freed or changed.
"""

from dataclasses import dataclass

import numpy as np

from transom.kv.components import PageRule
from transom.kv.holding import Holding
from transom.kv.pool import Pages, owner_of, present
from transom.kv.rows import RowTable
from transom.kv.stats import Counters
from transom.kv.tree import Node, Path, PrefixTree


@dataclass(frozen=True, slots=True)
class Publisher:
    """One publication: where to, from which rows."""

    tree: PrefixTree
    rows: tuple[RowTable, ...]
    grids: tuple[PageRule, ...]
    counters: Counters
    holding: Holding

    def run(self, key: bytes, whole: int) -> Path:
        """`key` is the first `whole` pages of tokens. All of them become the tree's; never needs a page.

        Returns their path. Its end may have no page yet: let `trim` follow.
        """
        assert len(key) == whole * self.tree.page_bytes, (len(key), whole)
        path = self.tree.walk(self.holding.namespace, key)
        for node, start in zip(path.nodes, path.starts, strict=True):
            self._merge(node, start, min(start + node.size, path.pages))
        if path.pages < whole:
            self._append(path, key, whole)
        return path

    def _append(self, path: Path, key: bytes, whole: int) -> None:
        """The rest of the key, which the tree has nothing of."""
        if not path.nodes:
            path.end = self.tree.root(self.holding.namespace)
        elif path.within < path.end.size:
            path.cut_last(self.tree.split(path.end, path.within))
        pages = tuple([self._adopted(component, path.pages, whole) for component in range(len(self.rows))])
        is_boundary = path.pages == self.grids[0].floor(self.holding.prompt)
        extend = self.tree.grow if is_boundary else self.tree.lengthen
        node = extend(path.end, key[path.pages * self.tree.page_bytes :], pages)
        if node is path.end:
            path.lengthen(whole - path.pages)
        else:
            path.follow(node, node.size)

    def _adopted(self, component: int, start: int, end: int) -> Pages:
        """The row's pages [start, end), now the tree's; 0 where the row has slid, or has none to share."""
        if not self.grids[component].by_reference:
            return np.zeros(end - start, dtype=np.int64)
        pages = self.rows[component].read(self.holding.row, start, end)
        shared = self.holding.shared(self.grids[component])
        assert shared <= start or not pages[: shared - start].any(), (self.holding, component, pages)
        self._adopt(component, present(pages))
        return pages

    def _merge(self, node: Node, start: int, end: int) -> None:
        """Pages [start, end) of the path, which lie in `node`."""
        for component, grid in enumerate(self.grids):
            first = max(start, self.holding.shared(grid))
            if not grid.by_reference or first >= end:
                continue
            ours = self.rows[component].read(self.holding.row, first, end)
            theirs = node.pages[component][first - start : end - start]
            fresh = np.flatnonzero((ours != 0) & (theirs == 0))
            if len(fresh):
                self._adopt(component, ours[fresh])
                self.tree.fill(node, component, fresh + (first - start), ours[fresh])
                self.counters.add(component, holes_filled=len(fresh))
            self._return_duplicates(component, first, ours, theirs)

    def _return_duplicates(self, component: int, first: int, ours: Pages, theirs: Pages) -> None:
        assert len(ours) == len(theirs), (ours, theirs)
        both = (ours != 0) & (theirs != 0)
        if not both.any():
            return
        pool = self.tree.pools[component]
        pool.reference(theirs[both])
        pool.give(ours[both], owner_of(self.holding.row))
        self.rows[component].write(self.holding.row, first, np.where(both, theirs, ours))
        self.counters.add(component, duplicates_returned=int(np.count_nonzero(both)))

    def _adopt(self, component: int, pages: Pages) -> None:
        self.tree.pools[component].adopt(pages, owner_of(self.holding.row))

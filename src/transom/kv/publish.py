"""Publishing: inserts computed whole pages into the radix tree. Fills holes, never replaces a page.

Along the path of the request's tokens, the tree takes a page only where it has a hole. Everywhere else the
request's page is a duplicate: it is freed, and the row names the tree's page instead. Replacing the page of
the tree would change pages that other rows read. The row references every page that it names before
`published`, so these pages cannot be evicted under it.
"""

import numpy as np

from transom.kv.holding import Holding
from transom.kv.node import Node, Path
from transom.kv.page_rules import PageRule
from transom.kv.page_table import PageTable
from transom.kv.pool import Pages, Run, owner_of, pages_of, present
from transom.kv.radix_tree import RadixTree
from transom.kv.stats import Counters


class Publisher:
    """Inserts pages of rows into the tree. Owns nothing; changes tree, pools and page tables of one cache."""

    __slots__ = ("_counters", "_rows", "_rules", "_tree")

    def __init__(
        self, tree: RadixTree, rows: tuple[PageTable, ...], rules: tuple[PageRule, ...], counters: Counters
    ) -> None:
        assert len(rows) == len(rules) == len(tree.pools), (rows, rules)
        self._tree = tree
        self._rows = rows
        self._rules = rules
        self._counters = counters

    def publish(self, holding: Holding, key: bytes, whole: int) -> Path:
        """Publishes the first `whole` pages. `key` has their tokens. Allocates nothing.

        Returns their path. Its end may have no page yet (a snapshot may follow), so the caller calls `trim`.
        """
        assert len(key) == whole * self._tree.page_bytes, (len(key), whole)
        path = self._tree.walk(holding.namespace, key)
        for node, start in zip(path.nodes, path.starts, strict=True):
            # Earlier nodes were merged by earlier calls, and the row references their pages since then.
            if start + node.size > holding.published:
                self._merge(holding, node, start, min(start + node.size, path.pages))
        if path.pages < whole:
            self._append(holding, path, key, whole)
        return path

    def _append(self, holding: Holding, path: Path, key: bytes, whole: int) -> None:
        """Adds the rest of the key, of which the tree has nothing."""
        assert path.pages < whole, (path.pages, whole)
        if not path.nodes:
            path.end = self._tree.root(holding.namespace)
        elif path.within < path.end.size:  # the tokens differ inside the last node
            path.cut_last(self._tree.split(path.end, path.within))
        runs = tuple([self._adopted(holding, c, path.pages, whole) for c in range(len(self._rows))])
        # The end of a prompt stays the end of a node: another request with the same prompt may hit there.
        # Elsewhere a leaf grows in place as its request generates.
        is_boundary = path.pages == holding.prompt // self._rules[0].page_size
        extend = self._tree.grow if is_boundary else self._tree.lengthen
        node = extend(path.end, key[path.pages * self._tree.page_bytes :], runs)
        if node is path.end:
            path.lengthen(whole - path.pages)
        else:
            path.follow(node)

    def _adopted(self, holding: Holding, component: int, start: int, end: int) -> Run:
        """Moves the row's pages [start, end) into the tree; 0 where the row has slid, and for states."""
        rule = self._rules[component]
        pages = rule.pages(self._rows[component], holding.row, start, end)
        shared = rule.shared(holding)
        # The tree lacks these positions, so the row cannot name pages of the tree there, only slid entries.
        assert shared <= start or not pages[: shared - start].any(), (holding, component, pages)
        self._tree.pools[component].adopt(present(pages), owner_of(holding.row))
        return pages.tobytes()

    def _merge(self, holding: Holding, node: Node, start: int, end: int) -> None:
        """Merges the row's pages [start, end) into `node`: fills its holes, frees duplicates."""
        assert start == node.start and end <= start + node.size, (start, end, node)
        for component, rule in enumerate(self._rules):
            first = max(start, rule.shared(holding))
            if first >= end:
                continue
            ours = rule.pages(self._rows[component], holding.row, first, end)
            theirs = pages_of(node.run(component))[first - start : end - start]
            # 0 in `ours`: the window has slid past, so the row has nothing to fill the hole with.
            fresh = np.flatnonzero((ours != 0) & (theirs == 0))
            if len(fresh):
                self._tree.pools[component].adopt(ours[fresh], owner_of(holding.row))
                self._tree.fill(node, component, fresh + (first - start), ours[fresh])
                self._counters.add(component, holes_filled=len(fresh))
            self._return_duplicates(holding, component, first, ours, theirs)

    def _return_duplicates(
        self, holding: Holding, component: int, first: int, ours: Pages, theirs: Pages
    ) -> None:
        """Where both have a page, the row references the tree's, and its own is freed."""
        assert len(ours) == len(theirs), (ours, theirs)
        both = (ours != 0) & (theirs != 0)
        if not both.any():
            return
        pool = self._tree.pools[component]
        # Referenced before anything is freed: the row reads one of the two pages at every moment.
        pool.reference(theirs[both])
        pool.free_private(ours[both], owner_of(holding.row))
        self._rows[component].write(holding.row, first, np.where(both, theirs, ours))
        self._counters.add(component, duplicates_returned=int(np.count_nonzero(both)))

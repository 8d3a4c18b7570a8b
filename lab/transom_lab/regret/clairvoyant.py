"""The clairvoyant policy at work: between requests, whatever the plan has no use for leaves the real tree."""

import numpy as np

from transom.kv.cache import HybridCache, Namespace
from transom.kv.check import inside
from transom.kv.eviction import Freed
from transom.kv.node import Node, as_key
from transom.kv.pool import without_holes
from transom.values import Tokens
from transom_lab.regret.bound import Problem
from transom_lab.regret.pages import Ints
from transom_lab.regret.plan import kept_for


class Clairvoyant:
    """Owns what is wanted, by id of a page. Mutable: it goes along with the requests.

    A page is wanted if the next request to need it, by the plan, finds it rather than computes it. What is
    not wanted goes once the next request might be short of memory.
    """

    def __init__(self, problem: Problem, chosen: Ints) -> None:
        kept = kept_for(problem, chosen)
        self._problem = problem
        self._kept = (kept.full, *kept.windows)
        self._windows = [c for c, rule in enumerate(problem.kind.rules) if not rule.keeps_all]
        self._wanted = [np.zeros(len(problem.forest), dtype=bool) for _ in self._kept]
        self._next = _next_passing(problem)
        self._ids: dict[tuple[int, bytes], Ints] = {}
        self._plenty = True
        self._number = 0

    def begins(self, number: int) -> None:
        """What becomes of each page it passes is known by who passes it next."""
        passed = self._problem.paths[number].pages
        self._number = number
        for wanted, kept in zip(self._wanted, self._kept, strict=True):
            wanted[passed] = np.append(kept, False)[self._next[number]]

    def computed(self, cache: HybridCache, namespace: Namespace, tokens: Tokens) -> None:
        if self._plenty:
            return
        path = inside(cache).tree.walk(namespace, as_key(tokens, len(tokens)))
        above = -1
        with cache.transaction():
            for node in path.nodes:
                pages = self._pages(above, node.key)
                self._prune_windows(cache, node, pages)
                above = int(pages[-1])

    def ended(self, cache: HybridCache) -> None:
        self._plenty = self._has_plenty(cache)
        if self._plenty:
            return
        freed = Freed(inside(cache).tree)
        with cache.transaction():
            for node, pages in reversed(self._nodes(cache)):
                self._prune_windows(cache, node, pages)
                self._prune_tail(cache, node, pages, freed)
            freed.release()

    def _has_plenty(self, cache: HybridCache) -> bool:
        """Whether the next request finds room for all it will compute, and for what it copies."""
        after = self._problem.paths[self._number + 1 : self._number + 2]
        layout = cache.layout
        pages = sum(-(-path.length // layout.page_size) + 1 for path in after)
        return (
            layout.budget is None
            or inside(cache).budget.in_use() + pages * sum(layout.page_bytes) <= layout.budget
        )

    def _nodes(self, cache: HybridCache) -> list[tuple[Node, Ints]]:
        """All nodes with the ids of their pages, parents first."""
        found: list[tuple[Node, Ints]] = []
        ahead = [(node, -1) for root in inside(cache).tree.roots.values() for node in root.children.values()]
        while ahead:
            node, above = ahead.pop()
            found.append((node, self._pages(above, node.key)))
            above = int(found[-1][1][-1])
            ahead += [(child, above) for child in node.children.values()]
        return found

    def _pages(self, above: int, key: bytes) -> Ints:
        pages = self._ids.get((above, key))
        if pages is None:
            pages = self._ids[(above, key)] = self._problem.forest.find(above, key)
        return pages

    def _prune_windows(self, cache: HybridCache, node: Node, pages: Ints) -> None:
        for component, wanted in zip(self._windows, self._wanted[1:], strict=True):
            idle = np.frombuffer(
                inside(cache).pools[component].idle_among(node.runs[component]), dtype=np.bool_
            )
            unwanted = np.flatnonzero(idle & ~wanted[pages])
            if len(unwanted):
                inside(cache).tree.evict_pages(node, component, unwanted)

    def _prune_tail(self, cache: HybridCache, node: Node, pages: Ints, freed: Freed) -> None:
        keep = 1 + max(np.flatnonzero(self._wanted[0][pages]).tolist(), default=-1)
        if not node.children and keep < node.size:
            for component, run in enumerate(inside(cache).tree.cut(node, node.size - keep)):
                if there := without_holes(run):
                    freed.add(component, there)
        else:
            inside(cache).tree.trim(node)


def _next_passing(problem: Problem) -> list[Ints]:
    """By request, for each page of its path: who may find it next, a number in `Pages`; -1 for nobody."""
    pages, result = problem.pages, []
    next_found = np.full(len(problem.forest), -1)
    for number in range(len(problem.paths) - 1, -1, -1):
        path = problem.paths[number]
        result.append(next_found[path.pages])
        found = np.arange(pages.begins[number], pages.begins[number + 1])
        next_found[path.pages[: path.known]] = found
    return result[::-1]

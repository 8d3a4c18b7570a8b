"""A feasible policy that knows the whole trace: a plan, and its execution on the real cache.

The bound may be too high; the clairvoyant policy shows how much can really be found, because its tokens are
counted on the real cache. So the best possible policy lies between the two. Three steps:

1. At the prices of the bound, take the best option of each request. Together these need too much memory.
2. Repair the plan: in the slot that exceeds the memory most, the request that loses the fewest tokens per
   unit of memory takes a lesser option, until all slots fit. Then give requests their best option back where
   it fits.
3. Replay the trace on the real cache and, between requests, evict pages that the plan does not find again.

The plan keeps a page only until the last reuse that finds it, so pages without a further use leave first.
"""

from dataclasses import dataclass

import numpy as np

from transom.kv.cache import HybridCache, Namespace
from transom.kv.check import inside
from transom.kv.eviction import Freed
from transom.kv.node import Node, as_key
from transom.values import Tokens
from transom_lab.regret.bound import Bound, Dual, Prices
from transom_lab.regret.problem import (
    END,
    FULLEST,
    SLOTS,
    Bools,
    Floats,
    Ints,
    Problem,
    covered,
    memory_by_slot,
)

RELIEF_MIN = 1e-9
"""Fractions of the memory; less is rounding."""


@dataclass(frozen=True, slots=True)
class Kept:
    """By reuse: whether the page is kept for it. Full pages, and the pages of each sliding component."""

    full: Bools
    windows: tuple[Bools, ...]


def kept_by(problem: Problem, chosen: Ints) -> Kept:
    """The pages that must be kept for the `chosen` options, one of each request, and no more."""
    reuses, options = problem.reuses, problem.options.subset(chosen)
    computed = covered(len(reuses), options.computed, reuses.begins[1:])
    windows = []
    for window in options.window_planned.T:
        # The appended entry is read at index -1, by pages that have no next reuse.
        kept = np.append(covered(len(reuses), window, options.full), False)
        # Backwards: a page that a later request finds and this one does not compute must be kept here too.
        for request in range(len(problem.paths) - 1, -1, -1):
            own = slice(reuses.begins[request], reuses.begins[request + 1])
            kept[own] |= ~computed[own] & kept[reuses.next[own]]
        windows.append(kept[:-1])
    return Kept(covered(len(reuses), reuses.begins[:-1], options.full), tuple(windows))


def memory_of(problem: Problem, chosen: Ints) -> Floats:
    """Bytes by slot that the `chosen` options need, rows of the running requests included."""
    reuses, costs, kept = problem.reuses, problem.costs, kept_by(problem, chosen)
    sizes = [costs.full, *(size for _, size in costs.sliding)]
    needed = memory_by_slot(
        [kept.full, *kept.windows], sizes, reuses.since_planned, reuses.until, problem.slots
    )
    needed[END::SLOTS] += [costs.row_bytes(path.length, path.length) for path in problem.paths]
    needed[FULLEST::SLOTS] += problem.options.fullest[chosen]
    return needed


# ---------------------------------------------------------------- the plan


def plan(problem: Problem, size: int, bound: Bound) -> Ints:
    """One option of each request. Together they fit `size` bytes, unless a request alone does not."""
    dual = Dual(problem, size, problem.options)
    value, _ = dual.option_values(bound.prices)
    return _fill(problem, size, _fit(problem, dual, size, bound.prices, problem.options.best(value)))


def best_options(problem: Problem) -> Ints:
    """The option of each request that finds most, regardless of memory."""
    return problem.options.best(problem.options.gain)


def _fit(problem: Problem, dual: Dual, size: int, prices: Prices, chosen: Ints) -> Ints:
    """`chosen` with lesser options until all slots fit. Each round lowers the tokens found, so it ends."""
    options, chosen = problem.options, chosen.copy()
    value, _ = dual.option_values(prices)
    while True:
        excess = memory_of(problem, chosen) - size
        slot = int(excess.argmax())
        if excess[slot] <= 0:
            return chosen
        # A prohibitive price on this slot makes the best lesser option of a request the one that avoids it.
        raised = prices.memory.copy()
        raised[slot] += dual.scale * problem.slots
        value_raised, _ = dual.option_values(Prices(raised, prices.presence))
        is_lesser = options.gain < options.gain[chosen][options.request]
        other = options.best(np.where(is_lesser, value_raised, -np.inf))
        relief = (value - value_raised)[chosen] - (value - value_raised)[other]
        helps = np.flatnonzero((options.gain[other] < options.gain[chosen]) & (relief > RELIEF_MIN))
        if not len(helps):
            # A row alone is too large, or pages on its own path are. The replay then finds less than planned.
            return chosen
        loss = (value[chosen] - value[other])[helps] / relief[helps]
        chosen[helps[loss.argmin()]] = other[helps[loss.argmin()]]


def _fill(problem: Problem, size: int, chosen: Ints) -> Ints:
    """`chosen` with the best option of a request wherever the memory allows, largest gains first."""
    best = best_options(problem)
    missed = problem.options.gain[best] - problem.options.gain[chosen]
    for request in np.argsort(-missed, kind="stable")[: np.count_nonzero(missed)]:
        better = chosen.copy()
        better[request] = best[request]
        if memory_of(problem, better).max() <= size:
            chosen = better
    return chosen


# ---------------------------------------------------------------- its execution


class Clairvoyant:
    """A replay hook that evicts the pages the plan does not need. Mutable: owns which pages are wanted now.

    A page is wanted if the next request on it finds it, by the plan, rather than computes it. Pages that are
    not wanted are evicted only if the next request may run short of memory: extra hits beyond the plan are
    welcome.
    """

    def __init__(self, problem: Problem, chosen: Ints) -> None:
        kept = kept_by(problem, chosen)
        self._problem = problem
        self._kept = (kept.full, *kept.windows)
        self._windows = [c for c, rule in enumerate(problem.costs.rules) if not rule.whole(1)]
        self._wanted = [np.zeros(len(problem.trie), dtype=bool) for _ in self._kept]
        """By page id: for full pages, then for each sliding component."""
        self._next = _next_reuses(problem)
        self._ids: dict[tuple[int, bytes], Ints] = {}
        self._has_plenty = True
        self._number = 0

    def on_start(self, number: int) -> None:
        """From here on, the next request on each page decides by its option whether the page is wanted."""
        path = self._problem.paths[number].pages
        self._number = number
        for wanted, kept in zip(self._wanted, self._kept, strict=True):
            wanted[path] = np.append(kept, False)[self._next[number]]

    def on_span(self, cache: HybridCache, namespace: Namespace, tokens: Tokens) -> None:
        """Evicts unwanted window pages of the running request that have slid out of its row."""
        if self._has_plenty:
            return
        path = inside(cache).tree.walk(namespace, as_key(tokens, len(tokens)))
        parent = -1
        with cache.transaction():
            for node in path.nodes:
                pages = self._pages(parent, node.key)
                self._prune_windows(cache, node, pages)
                parent = int(pages[-1])

    def on_end(self, cache: HybridCache) -> None:
        """Evicts all unwanted pages of the tree, leaves before their parents."""
        self._has_plenty = self._fits_next(cache)
        if self._has_plenty:
            return
        freed = Freed(inside(cache).tree)
        with cache.transaction():
            for node, pages in reversed(self._nodes(cache)):
                self._prune_windows(cache, node, pages)
                self._prune_tail(cache, node, pages, freed)
            freed.release()

    def _fits_next(self, cache: HybridCache) -> bool:
        """Whether the next request fits even if it finds nothing and copies one page."""
        following = self._problem.paths[self._number + 1 : self._number + 2]
        layout = cache.layout
        pages = sum(-(-path.length // layout.page_size) + 1 for path in following)
        return (
            layout.budget is None
            or inside(cache).budget.in_use() + pages * sum(layout.page_bytes) <= layout.budget
        )

    def _nodes(self, cache: HybridCache) -> list[tuple[Node, Ints]]:
        """All nodes of the tree with the ids of their pages, parents first."""
        found: list[tuple[Node, Ints]] = []
        ahead = [(node, -1) for root in inside(cache).tree.roots.values() for node in root.children]
        while ahead:
            node, parent = ahead.pop()
            found.append((node, self._pages(parent, node.key)))
            parent = int(found[-1][1][-1])
            ahead += [(child, parent) for child in node.children]
        return found

    def _pages(self, parent: int, key: bytes) -> Ints:
        pages = self._ids.get((parent, key))
        if pages is None:
            pages = self._ids[(parent, key)] = self._problem.trie.find(parent, key)
        return pages

    def _prune_windows(self, cache: HybridCache, node: Node, pages: Ints) -> None:
        for component, wanted in zip(self._windows, self._wanted[1:], strict=True):
            idle = np.frombuffer(
                inside(cache).pools[component].idle_among(node.run(component)), dtype=np.bool_
            )
            unwanted = np.flatnonzero(idle & ~wanted[pages])
            if len(unwanted):
                inside(cache).tree.evict_pages(node, component, unwanted)

    def _prune_tail(self, cache: HybridCache, node: Node, pages: Ints, freed: Freed) -> None:
        """Cuts a leaf after its last wanted full page; `trim` cuts a leaf after its last resident page."""
        keep = 1 + max(np.flatnonzero(self._wanted[0][pages]).tolist(), default=-1)
        if not node.children and keep < node.size:
            for component, run in enumerate(inside(cache).tree.cut(node, node.size - keep)):
                if run:
                    freed.add(component, run)
        else:
            inside(cache).tree.trim(node)


def _next_reuses(problem: Problem) -> list[Ints]:
    """By request, for each page of its path: the next reuse of the page by a later request, or -1."""
    reuses, result = problem.reuses, []
    latest = np.full(len(problem.trie), -1)
    for number in range(len(problem.paths) - 1, -1, -1):
        path = problem.paths[number]
        result.append(latest[path.pages])
        own = np.arange(reuses.begins[number], reuses.begins[number + 1])
        latest[path.pages[: path.known]] = own
    return result[::-1]

"""How many tokens any policy could find at most, knowing everything: a relaxation, priced.

Left is, for each request, a choice of one way to begin, and for each window page between two passings whether
it is kept, so that

- what is kept in a slot, and the row of the request that runs then, fit the memory;
- a window page is kept to be read, and is there after a passing only if it was before or was computed then.

Relaxed: what a prompt shares with another page than its own is free, and pages that lie on the path of the
request that runs, but not in its row, cost nothing while it is fullest. For prices of memory by slot and of
being there by page, none below 0, the constraints go into the sum, which then is a best choice for each
request and page by itself, and never below the best choice of all (Lagrange; weak duality). Any prices give a
bound; steps against what the choice has too much of (Kingma and Ba's Adam) find good ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from transom.kv.layout import CacheLayout
from transom_lab.regret.pages import (
    END,
    FULLEST,
    SLOTS,
    Bools,
    Floats,
    Forest,
    Ints,
    Kind,
    Pages,
    Path,
    kind_of,
    pages_of,
)
from transom_lab.regret.replay import Access
from transom_lab.regret.ways import Ways, ways_of

ROUNDS = 250


@dataclass(frozen=True, slots=True)
class Problem:
    """What can be found by whom, at what cost."""

    kind: Kind
    paths: tuple[Path, ...]
    pages: Pages
    ways: Ways
    forest: Forest

    @property
    def slots(self) -> int:
        return SLOTS * len(self.paths) + 1


@dataclass(frozen=True, slots=True)
class Prices:
    """Tokens: for all memory, by slot; for being there after a passing, by sliding component and run."""

    memory: Floats
    there: Floats


@dataclass(frozen=True, slots=True)
class Bound:
    tokens: float
    prices: Prices


def problem_of(layout: CacheLayout, requests: Sequence[Access]) -> Problem:
    """Raises ConfigError where regret is not known for such a layout."""
    kind = kind_of(layout)
    forest = Forest(kind.page_size)
    paths = tuple(forest.add(number, access) for number, access in enumerate(requests))
    pages = pages_of(kind, paths)
    return Problem(kind, paths, pages, ways_of(kind, paths, pages), forest)


def bound(problem: Problem, size: int, rounds: int = ROUNDS) -> Bound:
    """At `size` bytes."""
    quick = Dual(problem, size, problem.ways.turning(Runs.of(problem.pages).begins))
    prices = _descend(quick, rounds)
    exact = Dual(problem, size, problem.ways)
    return Bound(min(exact.value(prices), exact.value(exact.free())), prices)


def _descend(dual: "Dual", rounds: int) -> Prices:
    memory, there = dual.free().memory, dual.free().there
    steps = _Steps(dual.scale / 8, memory), _Steps(dual.page_size / 5, there)
    least, best = np.inf, dual.free()
    for iteration in range(rounds):
        prices = Prices(memory, there)
        value, spare, slack = dual.slope(prices)
        if value < least:
            least, best = value, prices
        fade = 1 / (1 + 8 * iteration / rounds)
        memory, there = steps[0].down(memory, spare, fade), steps[1].down(there, slack, fade)
    return best


class _Steps:
    """Owns the running means of a slope. Mutable."""

    def __init__(self, size: float, like: Floats) -> None:
        self._size, self._turn = size, 0
        self._mean, self._square = np.zeros_like(like), np.zeros_like(like)

    def down(self, at: Floats, slope: Floats, fade: float) -> Floats:
        """A step from `at`, not below 0."""
        self._turn += 1
        self._mean = 0.9 * self._mean + 0.1 * slope
        self._square = 0.99 * self._square + 0.01 * slope**2
        spread = np.sqrt(self._square / (1 - 0.99**self._turn)) + 1e-9
        stepped: Floats = np.maximum(0.0, at - fade * self._size * self._mean / spread)
        return stepped


@dataclass(frozen=True, slots=True)
class Runs:
    """Pages side by side that all requests treat alike: what is said of one is true of each.

    begins by run, its first page, and at the end how many pages there are
    """

    begins: Ints
    counts: Ints
    prior: Ints
    next: Ints
    since: tuple[Ints, ...]
    until: Ints

    @classmethod
    def of(cls, pages: Pages) -> "Runs":
        begins = np.unique(np.concatenate([np.flatnonzero(pages.parts), pages.begins]))
        first = begins[:-1]
        run = np.repeat(np.arange(len(first)), np.diff(begins))
        prior, following = (np.where(to >= 0, run[to], -1) for to in (pages.prior[first], pages.next[first]))
        since = tuple(since[first] for since in pages.since)
        return cls(begins, np.diff(begins), prior, following, since, pages.until[first])


class _Place:
    """Numbers of pages as places in runs: what a sum over all pages before is."""

    def __init__(self, runs: Runs, page: Ints) -> None:
        self._run = np.searchsorted(runs.begins, page, side="right") - 1
        self._within = page - runs.begins[self._run]
        self._counts = runs.counts

    def sum(self, values: Floats) -> Floats:
        """Of `values` by run, each of its pages having it."""
        total = np.concatenate([[0.0], np.cumsum(values * self._counts)])
        found: Floats = total[self._run] + self._within * np.concatenate([values, [0.0]])[self._run]
        return found


class Dual:
    """The sum that is never below the best choice, as a function of prices."""

    def __init__(self, problem: Problem, size: int, ways: Ways) -> None:
        pages, kind = problem.pages, problem.kind
        self._pages, self._ways, self._slots = pages, ways, problem.slots
        self._runs = runs = Runs.of(pages)
        self._sizes = [cost / size for cost in (kind.full, *(cost for _, cost in kind.sliding))]
        self._first = _Place(runs, pages.begins[ways.request])
        self._last = _Place(runs, pages.begins[ways.request + 1])
        self._full, self._computed = _Place(runs, ways.full), _Place(runs, ways.computed)
        self._windows = [_Place(runs, window) for window in ways.window.T]
        self._limits = np.ones(problem.slots)
        self._limits[END::SLOTS] -= [kind.held(p.length, p.length) / size for p in problem.paths]
        self._fullest = ways.fullest / size
        self._slot = SLOTS * ways.request + FULLEST
        self._begins = np.flatnonzero(np.diff(ways.request, prepend=-1))
        self.scale = float(np.maximum.reduceat(ways.gain, self._begins).sum()) / problem.slots
        self.page_size = kind.page_size

    def free(self) -> Prices:
        return Prices(np.zeros(self._slots), np.zeros((len(self._windows), len(self._runs.counts))))

    def worths(self, prices: Prices) -> tuple[Floats, Floats]:
        """Of each way, what it gains beyond its cost; and what keeping a page costs, by component and run."""
        runs = self._runs
        total = np.concatenate([[0.0], np.cumsum(prices.memory)])
        spent = [
            (total[runs.until] - total[since]) * size
            for since, size in zip(runs.since, self._sizes, strict=True)
        ]
        worth = self._ways.gain - self._full.sum(spent[0]) + self._first.sum(spent[0])
        worth -= prices.memory[self._slot] * self._fullest
        keeping = np.empty_like(prices.there)
        for component, (window, there) in enumerate(zip(self._windows, prices.there, strict=True)):
            before = np.where(runs.prior >= 0, there[runs.prior], 0.0)
            keeping[component] = spent[component + 1] - there + before
            cost = np.maximum(keeping[component], 0.0)
            worth += window.sum(cost) - self._full.sum(cost)
            worth += self._last.sum(there) - self._computed.sum(there)
        return worth, keeping

    def value(self, prices: Prices) -> float:
        worth, keeping = self.worths(prices)
        return self._sum(np.maximum.reduceat(worth, self._begins), keeping, prices)

    def slope(self, prices: Prices) -> tuple[float, Floats, Floats]:
        """The value; memory to spare by slot; and how many pages are there more than need be, by run."""
        runs, count = self._runs, len(self._pages)
        worth, keeping = self.worths(prices)
        chosen = self._ways.best(worth)
        ways = self._ways.of(chosen)
        read = self._by_run(covered(count, self._pages.begins[:-1], ways.full))
        computed = self._by_run(covered(count, ways.computed, self._pages.begins[1:]))
        kept, slack = [read], np.zeros_like(prices.there)
        for component in range(len(self._windows)):
            used = self._by_run(covered(count, ways.window[:, component], ways.full))
            there = np.where(keeping[component] < 0, runs.counts, used)
            slack[component] = np.where(runs.next >= 0, there + computed - there[runs.next], 0.0)
            kept.append(there)
        spare = self._limits - kept_by_slot(kept, self._sizes, runs.since, runs.until, self._slots)
        spare[FULLEST::SLOTS] -= self._fullest[chosen]
        return self._sum(worth[chosen], keeping, prices), spare, slack

    def _sum(self, best: Floats, keeping: Floats, prices: Prices) -> float:
        worth_keeping = (np.maximum(-keeping, 0.0) * self._runs.counts).sum()
        return float(best.sum() + worth_keeping + prices.memory @ self._limits)

    def _by_run(self, which: Bools) -> Ints:
        return np.add.reduceat(which, self._runs.begins[:-1], dtype=np.int64)


def covered(count: int, start: Ints, end: Ints) -> Bools:
    """Of `count` places, those in one of the ranges [start, end)."""
    change = np.bincount(start, minlength=count + 1) - np.bincount(end, minlength=count + 1)
    inside: Bools = np.cumsum(change)[:-1] > 0
    return inside


def kept_by_slot(
    kept: Sequence[Ints | Bools], sizes: Sequence[float], since: Sequence[Ints], until: Ints, slots: int
) -> Floats:
    """Sizes by slot: of each component, how many are `kept` from which slot on, and `until` when."""
    change = np.zeros(slots + 1)
    for which, size, begin in zip(kept, sizes, since, strict=True):
        weights = which * size
        change += np.bincount(begin, weights, slots + 1) - np.bincount(until, weights, slots + 1)
    found: Floats = np.cumsum(change)[:-1]
    return found

"""Upper bound on the prompt tokens that any policy finds, even one that knows the whole trace.

The best policy would choose one option for each request and decide for each reuse of a window page whether to
keep the page, so that the tokens found are the most possible, under two constraints:

memory    in every slot, the kept pages and the row of the running request fit
presence  a window page can only be kept for its next reuse if it was kept for this one, or if this request
          computed it (full pages need no such constraint: a request holds all of its own to its end)

That problem is too large to solve exactly, so it is relaxed in three ways, each of which can only raise the
result:

- Tokens shared with part of a different page (`Path.shared`) do not require that page to be kept.
- In the slot FULLEST, kept pages that lie on the path of the running request, but not in its row, are free.
- Both constraints are priced rather than enforced (Lagrangian relaxation). A price, in tokens, per unit of
  memory and slot and a price per reuse for presence move the constraints into the objective. Each request and
  each reuse then has a best choice of its own, and by weak duality the sum of these is at least the
  constrained optimum.

So any non-negative prices give a valid bound; the search for prices only makes it tighter. It follows the
subgradient, which is by how much the separate choices violate the constraints, in Adam steps (Kingma and Ba,
2015).
"""

from dataclasses import dataclass

import numpy as np

from transom_lab.regret.problem import (
    END,
    FULLEST,
    SLOTS,
    Bools,
    Floats,
    Ints,
    Problem,
    Reuses,
    StartOptions,
    covered,
    memory_by_slot,
)

ROUNDS = 250
"""Subgradient steps. The bound is valid after any number of them; more make it tighter."""


@dataclass(frozen=True, slots=True)
class Prices:
    """In tokens: of the whole memory, by slot; of a page's presence, by sliding component and run."""

    memory: Floats
    presence: Floats


@dataclass(frozen=True, slots=True)
class Bound:
    """No policy finds more than `tokens`; `prices` prove it."""

    tokens: float
    prices: Prices


def bound(problem: Problem, size: int, rounds: int = ROUNDS) -> Bound:
    """For `size` bytes of memory."""
    # The search uses only options that can be the only best one, which are few. The final value takes all.
    edges = Runs.of(problem.reuses).begins
    prices = _search(Dual(problem, size, problem.options.corners(edges)), rounds)
    dual = Dual(problem, size, problem.options)
    return Bound(min(dual.value(prices), dual.value(dual.zero_prices())), prices)


def _search(dual: "Dual", rounds: int) -> Prices:
    """The prices with the least value in `rounds` steps."""
    memory, presence = dual.zero_prices().memory, dual.zero_prices().presence
    # Step sizes are in tokens, a fraction of the magnitude that prices have.
    memory_steps, presence_steps = _Adam(dual.scale / 8, memory), _Adam(dual.page_size / 5, presence)
    least, best = np.inf, dual.zero_prices()
    for iteration in range(rounds):
        prices = Prices(memory, presence)
        value, spare, surplus = dual.subgradient(prices)
        if value < least:
            least, best = value, prices
        decay = 1 / (1 + 8 * iteration / rounds)
        memory = memory_steps.step(memory, spare, decay)
        presence = presence_steps.step(presence, surplus, decay)
    return best


class _Adam:
    """Owns the running means of a gradient and of its square. Mutable."""

    def __init__(self, size: float, like: Floats) -> None:
        self._size, self._steps = size, 0
        self._mean, self._square = np.zeros_like(like), np.zeros_like(like)

    def step(self, at: Floats, gradient: Floats, decay: float) -> Floats:
        """One step down from `at`, cut off at 0. The mean is not bias-corrected: early steps are shorter."""
        self._steps += 1
        self._mean = 0.9 * self._mean + 0.1 * gradient
        self._square = 0.99 * self._square + 0.01 * gradient**2
        spread = np.sqrt(self._square / (1 - 0.99**self._steps)) + 1e-9
        stepped: Floats = np.maximum(0.0, at - decay * self._size * self._mean / spread)
        return stepped


@dataclass(frozen=True, slots=True)
class Runs:
    """Adjacent reuses that all requests treat alike, so that one price and one decision serve the whole run.

    Runs make the problem small: a document of 1,000 pages that is read as a whole is one run. Fields are by
    run, as in `Reuses`; `begins` has one more entry at the end, and `counts` says how many reuses a run has.
    """

    begins: Ints
    counts: Ints
    prior: Ints
    next: Ints
    since: tuple[Ints, ...]
    until: Ints

    @classmethod
    def of(cls, reuses: Reuses) -> "Runs":
        begins = np.unique(np.concatenate([np.flatnonzero(reuses.splits), reuses.begins]))
        first = begins[:-1]
        run = np.repeat(np.arange(len(first)), np.diff(begins))
        prior, following = (
            np.where(to >= 0, run[to], -1) for to in (reuses.prior[first], reuses.next[first])
        )
        since = tuple(since[first] for since in reuses.since)
        return cls(begins, np.diff(begins), prior, following, since, reuses.until[first])


class _PrefixSum:
    """Sums over all reuses before given reuses, of values that are constant in each run."""

    def __init__(self, runs: Runs, reuse: Ints) -> None:
        self._run = np.searchsorted(runs.begins, reuse, side="right") - 1
        self._within = reuse - runs.begins[self._run]
        self._counts = runs.counts

    def of(self, values: Floats) -> Floats:
        """Of `values`, by run; each reuse of a run has its value."""
        total = np.concatenate([[0.0], np.cumsum(values * self._counts)])
        sums: Floats = total[self._run] + self._within * np.concatenate([values, [0.0]])[self._run]
        return sums


class Dual:
    """The relaxed objective as a function of prices: an upper bound on the tokens found, at any prices.

    Memory is counted in fractions of `size`, so that the limit of every slot is 1.
    """

    def __init__(self, problem: Problem, size: int, options: StartOptions) -> None:
        reuses, costs = problem.reuses, problem.costs
        self._reuses, self._options, self._slots = reuses, options, problem.slots
        self._runs = runs = Runs.of(reuses)
        self._sizes = [cost / size for cost in (costs.full, *(cost for _, cost in costs.sliding))]
        self._first = _PrefixSum(runs, reuses.begins[options.request])
        self._last = _PrefixSum(runs, reuses.begins[options.request + 1])
        self._full, self._computed = _PrefixSum(runs, options.full), _PrefixSum(runs, options.computed)
        self._windows = [_PrefixSum(runs, window) for window in options.window.T]
        self._limits = np.ones(problem.slots)
        # At its end every request holds the same row, whichever option it took.
        self._limits[END::SLOTS] -= [costs.row_bytes(p.length, p.length) / size for p in problem.paths]
        self._fullest = options.fullest / size
        self._slot = SLOTS * options.request + FULLEST
        self._begins = np.flatnonzero(np.diff(options.request, prepend=-1))
        self.scale = float(np.maximum.reduceat(options.gain, self._begins).sum()) / problem.slots
        """Tokens per slot if every request found all that it could: the order of magnitude of a price."""
        self.page_size = costs.page_size

    def zero_prices(self) -> Prices:
        return Prices(np.zeros(self._slots), np.zeros((len(self._windows), len(self._runs.counts))))

    def option_values(self, prices: Prices) -> tuple[Floats, Floats]:
        """By option: tokens gained minus costs. By sliding component and run: the cost of keeping a page.

        A negative cost means that the presence of the page at later reuses is worth more than its memory.
        """
        runs = self._runs
        total = np.concatenate([[0.0], np.cumsum(prices.memory)])
        rent = [
            (total[runs.until] - total[since]) * size
            for since, size in zip(runs.since, self._sizes, strict=True)
        ]
        value = self._options.gain - self._full.of(rent[0]) + self._first.of(rent[0])
        value -= prices.memory[self._slot] * self._fullest
        keeping = np.empty_like(prices.presence)
        for component, (window, presence) in enumerate(zip(self._windows, prices.presence, strict=True)):
            # Keeping a page pays for its presence before this reuse and earns that after it.
            before = np.where(runs.prior >= 0, presence[runs.prior], 0.0)
            keeping[component] = rent[component + 1] - presence + before
            # Pages with a negative cost are kept anyway; their value is counted once, in `_sum`.
            cost = np.maximum(keeping[component], 0.0)
            value += window.of(cost) - self._full.of(cost)
            # Computing a window page makes it present for its next reuse too.
            value += self._last.of(presence) - self._computed.of(presence)
        return value, keeping

    def value(self, prices: Prices) -> float:
        value, keeping = self.option_values(prices)
        return self._sum(np.maximum.reduceat(value, self._begins), keeping, prices)

    def subgradient(self, prices: Prices) -> tuple[float, Floats, Floats]:
        """The value, and the slack of both constraints at the best separate choices.

        That is spare memory by slot, and by component and run how many more pages are present than the next
        reuse keeps. A price falls where the slack is positive and rises where it is negative.
        """
        runs, count = self._runs, len(self._reuses)
        value, keeping = self.option_values(prices)
        chosen = self._options.best(value)
        options = self._options.subset(chosen)
        read = self._count(covered(count, self._reuses.begins[:-1], options.full))
        computed = self._count(covered(count, options.computed, self._reuses.begins[1:]))
        kept, surplus = [read], np.zeros_like(prices.presence)
        for component in range(len(self._windows)):
            used = self._count(covered(count, options.window[:, component], options.full))
            present = np.where(keeping[component] < 0, runs.counts, used)
            surplus[component] = np.where(runs.next >= 0, present + computed - present[runs.next], 0.0)
            kept.append(present)
        spare = self._limits - memory_by_slot(kept, self._sizes, runs.since, runs.until, self._slots)
        spare[FULLEST::SLOTS] -= self._fullest[chosen]
        return self._sum(value[chosen], keeping, prices), spare, surplus

    def _sum(self, best: Floats, keeping: Floats, prices: Prices) -> float:
        kept_anyway = (np.maximum(-keeping, 0.0) * self._runs.counts).sum()
        return float(best.sum() + kept_anyway + prices.memory @ self._limits)

    def _count(self, which: Bools) -> Ints:
        """How many reuses of each run."""
        return np.add.reduceat(which, self._runs.begins[:-1], dtype=np.int64)

"""What each request should find, by somebody who knows all requests: the clairvoyant policy's plan.

At the prices of the bound, each request takes the best of its ways: islands along its path by dynamic
programming over what they would cost since each was last there. That is more than fits. Where memory is
short by most, the request that loses least for it takes a lesser way; then whoever still can takes a better
one.
"""

from dataclasses import dataclass

import numpy as np

from transom_lab.regret.bound import Bound, Dual, Prices, Problem, covered, kept_by_slot
from transom_lab.regret.pages import END, FULLEST, SLOTS, Bools, Floats, Ints

SHORT = 1e-9


@dataclass(frozen=True, slots=True)
class Kept:
    """By page of `Pages`, whether it is kept from the passing before: full, and by component that slides."""

    full: Bools
    windows: tuple[Bools, ...]


def kept_for(problem: Problem, chosen: Ints) -> Kept:
    """What `chosen` ways, one for each request, need to be kept, and no more."""
    pages, ways = problem.pages, problem.ways.of(chosen)
    computed = covered(len(pages), ways.computed, pages.begins[1:])
    windows = []
    for window in ways.wary.T:
        kept = np.append(covered(len(pages), window, ways.full), False)  # where nobody passes again, at -1
        for request in range(len(problem.paths) - 1, -1, -1):
            here = slice(pages.begins[request], pages.begins[request + 1])
            kept[here] |= ~computed[here] & kept[pages.next[here]]
        windows.append(kept[:-1])
    return Kept(covered(len(pages), pages.begins[:-1], ways.full), tuple(windows))


def used_by_slot(problem: Problem, chosen: Ints) -> Floats:
    """Bytes, rows included."""
    pages, kind, kept = problem.pages, problem.kind, kept_for(problem, chosen)
    sizes = [kind.full, *(size for _, size in kind.sliding)]
    used = kept_by_slot([kept.full, *kept.windows], sizes, pages.careful, pages.until, problem.slots)
    used[END::SLOTS] += [kind.held(path.length, path.length) for path in problem.paths]
    used[FULLEST::SLOTS] += problem.ways.fullest[chosen]
    return used


def plan(problem: Problem, size: int, bound: Bound) -> Ints:
    """One way for each request, that together fit `size` bytes if any do."""
    dual = Dual(problem, size, problem.ways)
    worth, _ = dual.worths(bound.prices)
    return _fill(problem, size, _fit(problem, dual, size, bound.prices, problem.ways.best(worth)))


def most(problem: Problem) -> Ints:
    """The way of each request that finds most."""
    return problem.ways.best(problem.ways.gain)


def _fit(problem: Problem, dual: Dual, size: int, prices: Prices, chosen: Ints) -> Ints:
    """Every turn somebody finds less, so it ends."""
    ways, memory, chosen = problem.ways, prices.memory.copy(), chosen.copy()
    while True:
        over = used_by_slot(problem, chosen) - size
        slot = int(over.argmax())
        if over[slot] <= 0:
            return chosen
        dear = memory.copy()
        dear[slot] += dual.scale * problem.slots
        worth, there = (
            dual.worths(Prices(memory, prices.there))[0],
            dual.worths(Prices(dear, prices.there))[0],
        )
        lesser = ways.gain < ways.gain[chosen][ways.request]
        other = ways.best(np.where(lesser, there, -np.inf))
        relief = (worth - there)[chosen] - (worth - there)[other]
        helps = np.flatnonzero((ways.gain[other] < ways.gain[chosen]) & (relief > SHORT))
        if not len(helps):
            return chosen  # a row alone is too large, or what lies on its own path: less is found, then
        loss = (worth[chosen] - worth[other])[helps] / relief[helps]
        chosen[helps[loss.argmin()]] = other[helps[loss.argmin()]]


def _fill(problem: Problem, size: int, chosen: Ints) -> Ints:
    best = most(problem)
    missed = problem.ways.gain[best] - problem.ways.gain[chosen]
    for request in np.argsort(-missed, kind="stable")[: np.count_nonzero(missed)]:
        better = chosen.copy()
        better[request] = best[request]
        if used_by_slot(problem, better).max() <= size:
            chosen = better
    return chosen

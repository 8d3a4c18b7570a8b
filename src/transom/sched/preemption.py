"""Preemption: a waiting request takes rows and pages from running requests that rank below it. Pure.

Two kinds of waiting requests may claim:

starved  the senior of all requests, out of patience: a row from the most junior request
a class  a request of higher priority: from running requests of lower priority that are junior to it

Both kinds take only from their juniors, so two requests never retract each other in turns, and the senior of
all requests is never retracted. Seniority grows with priority only by a number of arrivals
(`priority_bonus`): in the end a request of the lowest class is senior to all that arrive, whatever their
class. So no class starves another for ever.
"""

from collections.abc import Callable, Sequence

from transom.kv.budget import PageCounts
from transom.kv.cache import Namespace, Offer
from transom.sched.draft import Claim, PlanBuilder
from transom.sched.forecast import need
from transom.sched.plan import SchedulerView
from transom.sched.request import Progress, Running, Waiting

InFlight = Callable[[Waiting, Namespace, int], bool]
"""Whether a request, with so many tokens cached, rather waits for a prefix that is being computed."""


def hold_back_for_claim(draft: PlanBuilder, in_flight: InFlight) -> None:
    """Holds back a row, a token and pages for the request that may claim them, if there is one.

    If they are not available, retracts the most junior requests of the lowest classes, and as few as are
    enough. If all of them are not enough, retracts none and claims nothing.
    """
    view = draft.view
    waiting = _claimant(view)
    # The only token of a step belongs to the running requests, which need it to end at all.
    if waiting is None or draft.budget <= 1:
        return
    progress, starved = waiting.progress, waiting is view.starved
    namespace = view.cache.namespace(progress.id, progress.request.salt)
    offers = view.cache.offers(namespace, progress.tokens(), progress.start_limit)
    if not starved and in_flight(waiting, namespace, offers[0].begin.start):
        return
    prey = _prey(view, progress, starved)
    # The whole prompt or nothing: with less, the request would hold a row and wait for pages again.
    pages = need(view.cache, offers[0], progress.length)
    victims = _fewest(draft, prey, pages, rows=1 - view.rows_free)
    if victims is not None:
        draft.retract(victims)
        draft.budget -= 1
        draft.allocate(pages)
        draft.claim = Claim(waiting, pages, bool(victims), _hidden(view, offers[0]))


def _claimant(view: SchedulerView) -> Waiting | None:
    if view.starved is not None or not view.running:
        return view.starved
    for waiting in view.class_seniors:
        progress = waiting.progress
        if progress.request.priority <= view.lowest_class:
            return None
        if any(_is_below(running, progress) for running in reversed(view.running)):
            return waiting
    return None


def _is_below(running: Running, claimant: Progress) -> bool:
    """Whether a running request has a lower class and is junior."""
    other = running.progress
    return other.request.priority < claimant.request.priority and other.seniority > claimant.seniority


def _prey(view: SchedulerView, claimant: Progress, starved: bool) -> Sequence[Running]:
    """The requests that may be retracted, the most junior of the lowest class first."""
    below = [running for running in reversed(view.running) if _is_below(running, claimant)]
    if starved and not below and view.rows_free <= 0:
        # A row comes back only when an output ends, which may be long. Pages come back all the time, and the
        # starved request keeps all others out, so it waits for them: retractions would throw away the hits of
        # its juniors.
        below = list(view.running[:-2:-1])
    return sorted(below, key=lambda running: running.progress.request.priority)  # stable


def _fewest(
    draft: PlanBuilder, prey: Sequence[Running], pages: PageCounts, rows: int
) -> Sequence[Running] | None:
    """The shortest part of `prey`, from its front, that frees `rows` rows and enough pages."""

    def is_enough(count: int) -> bool:
        return draft.available.more(draft.freed_by(prey[:count])).covers(pages)

    low, high = max(0, rows), len(prey)
    if low > high or not is_enough(high):
        return None
    while low < high:  # more victims never free less
        middle = (low + high) // 2
        if is_enough(middle):
            high = middle
        else:
            low = middle + 1
    return prey[:low]


def _hidden(view: SchedulerView, offer: Offer) -> PageCounts:
    reach = max(offer.begin.start, offer.begin.full_until)
    return tuple(
        [
            max(0, rule.held(reach) - pins) if reach else 0
            for rule, pins in zip(view.cache.rules, offer.pins, strict=True)
        ]
    )

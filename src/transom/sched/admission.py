"""Who is admitted: need over a life against room, and no prefix computed twice."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from transom.kv.budget import Capacity
from transom.kv.cache import Offer
from transom.kv.page_rules import PageRule
from transom.sched.draft import PlanBuilder, is_decode
from transom.sched.needs import need
from transom.sched.place import Place
from transom.sched.plan import Admit
from transom.sched.prefixes import Promises, Publisher
from transom.sched.request import Progress, Running, Span, Waiting
from transom.sched.spans import chunk_end, fit_end, is_cut

PASSED_OVER = 2
"""Requests that do not fit before a plan stops looking for a smaller one. Each costs a look at the tree."""


def plan_admissions(draft: PlanBuilder) -> None:
    """Adds the spans of those who are admitted in this step, in the order in which they are looked at.

    A request that does not fit now is passed over, until it has been so often enough, or is the senior of all
    and out of patience: that one is looked at first, and comes in as soon as its next chunk fits.
    """
    view = draft.view
    if not view.waiting or view.rows_free <= 0 or draft.budget == 0:
        return
    desk = _Desk(draft, view.rows_free, view.cache.available, view.cache.rules)
    urgent = view.urgent
    if urgent is not None and (not desk.consider(urgent, True) or desk.is_done):
        return
    refused = 0
    for waiting in view.waiting:
        if waiting is urgent:
            continue
        if not desk.consider(waiting, False):
            refused += 1
            if refused > PASSED_OVER or waiting.progress.id in view.firm:
                return
        if desk.is_done:
            return


@dataclass(slots=True)
class _Desk:
    """Owns what the admissions of one plan share. Mutable, lives no longer than the plan."""

    draft: PlanBuilder
    rows: int
    room: Capacity
    """Room when the step began: what lives are compared with."""
    rules: tuple[PageRule, ...]
    place: Place = field(init=False)
    promises: Promises = field(init=False)

    def __post_init__(self) -> None:
        view = self.draft.view
        self.place = Place(view, self.room)
        self.promises = Promises(self.rules, view.limits.prefix_gain_min)
        self.promises.publishers += [
            Publisher(state.holding.namespace, state.progress.tokens(), state.holding.computed)
            for state in (*self.draft.prefills, *self._at_last_token())
        ]

    def _at_last_token(self) -> Iterator[Running]:
        """Those who decode and have a page still to publish, as it is whole after this step."""
        view = self.draft.view
        page = view.cache.layout.page_size
        if page < view.limits.prefix_gain_min and all(rule.by_reference for rule in self.rules):
            return iter(())  # that page is all they have, and nobody waits for so little
        whole = (state for state in view.running if state.progress.length % page == 0)
        return filter(is_decode, whole)

    @property
    def is_done(self) -> bool:
        return self.rows == 0 or self.draft.budget == 0

    def consider(self, waiting: Waiting, urgent: bool) -> bool:
        """Admits the request if it may come in now. False if pages are what it lacks.

        It takes the cheapest way to begin. Only who need not care for others falls back towards cold, which
        needs the fewest pages at once: others rather wait than compute more.
        """
        cache = self.draft.view.cache
        progress = waiting.progress
        free = urgent or not self.draft.spans
        if not free and not self.room.covers((1,) * len(self.rules)):
            return False
        namespace = cache.namespace(progress.id, progress.request.salt)
        offers = cache.offers(namespace, progress.tokens(), progress.start_limit)
        cached = offers[0].begin.start
        asked = progress.tokens(progress.start_limit + 1)
        if not urgent and self.promises.is_promised(namespace, asked, cached=cached):
            return True
        if not free and not self.place.is_for(progress, offers[0]):
            return False
        for tried in offers if free else offers[:1]:
            span = self._span(progress, tried, urgent)
            if span is not None:
                self._admit(Admit(waiting, namespace, tried, span))
                return True
        return False

    def _span(self, progress: Progress, offer: Offer, urgent: bool) -> Span | None:
        cache = self.draft.view.cache
        page = cache.layout.page_size
        start, known = offer.begin.start, progress.length
        budget = max(self.draft.chunk_budget(start), int(urgent))
        if budget == 0:
            return None
        end = cache.stop(start, chunk_end(start, known, budget, page))
        end = fit_end(start, end, page, lambda end: self.draft.lacks(need(cache, offer, end)))
        if end == start or (self.draft.chunks and not urgent and is_cut(end, known, page)):
            return None
        return Span(start, end)

    def _admit(self, intent: Admit) -> None:
        progress = intent.waiting.progress
        self.place.let_in(progress, intent.offer)
        self.promises.publishers.append(Publisher(intent.namespace, progress.tokens(), intent.span.start))
        self.draft.take(need(self.draft.view.cache, intent.offer, intent.span.end))
        self.draft.chunk(intent)
        self.rows -= 1

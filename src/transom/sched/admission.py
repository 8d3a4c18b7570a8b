"""Who is admitted: need over a life against room, and no prefix computed twice."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from transom.kv.cache import Offer
from transom.kv.components import PageRule
from transom.kv.room import Room
from transom.sched.draft import Draft, is_decode
from transom.sched.forecast import Counts, Life, steps_to_go
from transom.sched.intents import Admit
from transom.sched.needs import PESSIMISM, added, pages_at
from transom.sched.outlook import Outlook
from transom.sched.outputs import OutputLengths
from transom.sched.prefixes import Promises, Publisher
from transom.sched.releases import held_alone
from transom.sched.running import PROMPT
from transom.sched.spans import Pages, chunk_end, fit_end, is_cut
from transom.sched.states import Progress, Running, Span, Waiting

PASSED_OVER = 2
"""Requests that do not fit before a plan stops looking for a smaller one. Each costs a look at the tree."""


def plan_admissions(draft: Draft) -> None:
    """Adds the spans of those who are admitted in this step, in the order in which they are looked at.

    A request that does not fit now is passed over, until it has been so often enough, or is the senior of all
    and out of patience: that one is looked at first, and comes in as soon as its next chunk fits.
    """
    situation = draft.situation
    if not situation.waiting or situation.rows_free <= 0 or draft.budget == 0:
        return
    desk = _Desk(draft, situation.rows_free, situation.cache.space(), situation.cache.grids)
    urgent = situation.urgent
    if urgent is not None and (not desk.consider(urgent, True) or desk.is_done):
        return
    refused = 0
    for waiting in situation.waiting:
        if waiting is urgent:
            continue
        if not desk.consider(waiting, False):
            refused += 1
            if refused > PASSED_OVER or waiting.progress.id in situation.firm:
                return
        if desk.is_done:
            return


@dataclass(slots=True)
class _Desk:
    """Owns what the admissions of one plan share. Mutable, lives no longer than the plan."""

    draft: Draft
    rows: int
    room: Room
    """Room when the step began: what lives are compared with."""
    grids: tuple[PageRule, ...]
    known: Counts = field(init=False)
    """Tokens of those that run."""
    outputs: OutputLengths = field(init=False)
    promises: Promises = field(init=False)
    admitted: list[Admit] = field(default_factory=list)
    outlooks: dict[int, Outlook] = field(default_factory=dict)
    """By the factor on outputs."""

    def __post_init__(self) -> None:
        situation = self.draft.situation
        page, running = situation.cache.layout.page_size, situation.running
        self.known = np.array([state.progress.length for state in running], np.int64)
        self.outputs = situation.outputs.seeing(self.known - situation.columns[PROMPT])
        self.promises = Promises(self.grids, situation.limits.prefix_gain_min)
        self.promises.publishers += [
            Publisher(state.holding.namespace, state.progress.tokens(), state.holding.computed)
            for state in (*self.draft.prefills, *self._at_last_token(page, running))
        ]

    def _at_last_token(self, page: int, running: Sequence[Running]) -> Iterator[Running]:
        """Those who decode and have a page still to publish: it is whole after this step."""
        whole = [running[position] for position in np.flatnonzero(self.known % page == 0).tolist()]
        return filter(is_decode, whole)

    @property
    def is_done(self) -> bool:
        return self.rows == 0 or self.draft.budget == 0

    def consider(self, waiting: Waiting, urgent: bool) -> bool:
        """Admits the request if it may come in now. False if pages are what it lacks.

        It takes the cheapest way to begin. Only who need not care for others falls back towards cold, which
        needs the fewest pages at once: others rather wait than compute more.
        """
        cache = self.draft.situation.cache
        progress = waiting.progress
        free = urgent or not self.draft.spans
        if not free and not self.room.covers((1,) * len(self.grids)):
            return False
        namespace = cache.namespace(progress.id, progress.request.salt)
        offers = cache.offers(namespace, progress.tokens(), progress.start_limit)
        cached = offers[0].begin.start
        asked = progress.tokens(progress.start_limit + 1)
        if not urgent and self.promises.is_promised(namespace, asked, cached=cached):
            return True
        factor = PESSIMISM**progress.retractions
        if not free and not self._outlook(factor).fits(self._life(progress, offers[0], factor), self.room):
            return False
        for tried in offers if free else offers[:1]:
            span = self._span(progress, tried, urgent)
            if span is not None:
                self._admit(Admit(waiting, namespace, tried, span))
                return True
        return False

    # ------------------------------------------------------------ over a life

    def _outlook(self, factor: int) -> Outlook:
        """On those that run and those admitted; made when it is asked for, and then kept."""
        found = self.outlooks.get(factor)
        if found is None:
            columns = self.draft.situation.columns
            steps = steps_to_go(columns, self.known, self.outputs, factor)
            found = self.outlooks[factor] = Outlook(columns, self.known, steps, self._own, self.grids)
        for intent in self.admitted[found.others :]:
            found.let_in(self._life(intent.waiting.progress, intent.offer, factor))
        return found

    def _own(self) -> Counts:
        situation = self.draft.situation
        return held_alone(situation.cache, [state.holding for state in situation.running])

    def _life(self, progress: Progress, offer: Offer, factor: int) -> Life:
        """What the request is expected to take if it begins with `offer`."""
        expected = self.outputs.expected(progress.outputs, factor)
        end = min(progress.kv_limit, progress.length + expected)
        need = self._need(offer, end)
        beside = [
            n - grid.entries(end) if grid.rooted else min(n, pages_at(grid, end))
            for n, grid in zip(need, self.grids, strict=True)
        ]
        return Life(progress.length, max(0, end - progress.length), tuple(beside))

    # ------------------------------------------------------------ in this step

    def _need(self, offer: Offer, end: int) -> Pages:
        """Pages that leave room when a request begins with `offer` and grows to `end`."""
        growth = self.draft.situation.cache.growth(offer.begin, end)
        return added(growth, added(offer.takes, offer.pins))

    def _span(self, progress: Progress, offer: Offer, urgent: bool) -> Span | None:
        cache = self.draft.situation.cache
        page = cache.layout.page_size
        start, known = offer.begin.start, progress.length
        budget = max(self.draft.chunk_budget(start), int(urgent))
        if budget == 0:
            return None
        end = cache.stop(start, chunk_end(start, known, budget, page))
        end = fit_end(start, end, page, lambda end: self.draft.lacks(self._need(offer, end)))
        if end == start or (self.draft.chunks and not urgent and is_cut(end, known, page)):
            return None
        return Span(start, end)

    def _admit(self, intent: Admit) -> None:
        progress = intent.waiting.progress
        self.admitted.append(intent)
        self.promises.publishers.append(Publisher(intent.namespace, progress.tokens(), intent.span.start))
        self.draft.take(self._need(intent.offer, intent.span.end))
        self.draft.chunk(intent)
        self.rows -= 1

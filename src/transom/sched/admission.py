"""Who is admitted: need over a life against room, and no prefix computed twice."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from transom.kv.cache import Namespace, Offer
from transom.kv.components import PageRule
from transom.kv.room import Room
from transom.sched.draft import Draft, is_decode
from transom.sched.forecast import Counts, Forecast, Life, forecast, steps_to_go
from transom.sched.intents import Admit
from transom.sched.needs import PESSIMISM, added, pages_at
from transom.sched.outputs import OutputLengths
from transom.sched.prefixes import Promises, Publisher
from transom.sched.releases import held_alone
from transom.sched.running import PROMPT
from transom.sched.spans import Pages, chunk_end, fit_end, is_cut
from transom.sched.states import Progress, Running, Span, Waiting


class Back(Enum):
    """What those that end are taken to give back. The first costs less to look at, and mostly decides."""

    NOTHING = "nothing"
    OWN = "own"


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
    forecasts: dict[tuple[int, Back], tuple[int, Forecast]] = field(default_factory=dict)
    """By the factor on outputs, and of how many of those admitted."""

    def __post_init__(self) -> None:
        situation = self.draft.situation
        page, running = situation.cache.layout.page_size, situation.running
        self.known = np.array([state.progress.length for state in running], np.int64)
        self.outputs = situation.outputs.seeing(self.known - situation.columns[PROMPT])
        self.promises = Promises(self.grids, situation.limits.prefix_gain_min)
        for state in self._publishers(page, running):
            self._promise(state.holding.namespace, state.progress, state.holding.computed)

    def _publishers(self, page: int, running: Sequence[Running]) -> Iterator[Running]:
        """Those with a page of known tokens still to publish: in their prefill, or at a page's last token."""
        yield from self.draft.prefills
        for position in np.flatnonzero(self.known % page == 0).tolist():
            if is_decode(running[position]):
                yield running[position]

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
        if not free and not self._fits(self._life(progress, offers[0], factor), factor):
            return False
        for tried in offers if free else offers[:1]:
            span = self._span(progress, tried, urgent)
            if span is not None:
                self._admit(Admit(waiting, namespace, tried, span))
                return True
        return False

    def _promise(self, namespace: Namespace, progress: Progress, computed: int) -> None:
        self.promises.add(Publisher(namespace, progress.tokens(), computed))

    # ------------------------------------------------------------ over a life

    def _fits(self, life: Life, factor: int) -> bool:
        """Whether there is place for it, even if nobody gives anything back; else, if all do as expected."""
        return any(self._forecast(factor, back).fits(life, self.room) for back in Back)

    def _forecast(self, factor: int, back: Back) -> Forecast:
        """Of those that run and those admitted; made when it is asked for, and then kept."""
        seen, found = self.forecasts.get((factor, back), (0, None))
        if found is None:
            found = self._forecast_running(factor, back)
        if seen < len(self.admitted):
            found = found.plus(
                [self._life(intent.waiting.progress, intent.offer, factor) for intent in self.admitted[seen:]]
            )
        self.forecasts[factor, back] = (len(self.admitted), found)
        return found

    def _forecast_running(self, factor: int, back: Back) -> Forecast:
        situation = self.draft.situation
        steps = steps_to_go(situation.columns, self.known, self.outputs, factor)
        own = np.zeros((len(self.grids), len(self.known)), np.int64)
        if back is Back.OWN:
            own = held_alone(situation.cache, [state.holding for state in situation.running])
        return forecast(situation.columns, self.known, steps, own, self.grids)

    def _life(self, progress: Progress, offer: Offer, factor: int) -> Life:
        """What the request is expected to take if it begins with `offer`."""
        expected = self.outputs.expected(progress.outputs, factor)
        end = min(progress.kv_limit, progress.length + expected)
        need = self._need(offer, end)
        return Life(
            known=progress.length,
            steps=max(0, end - progress.length),
            found=tuple([grid.entries(end) - n for n, grid in zip(need, self.grids, strict=True)]),
            slides=tuple([min(n, pages_at(grid, end)) for n, grid in zip(need, self.grids, strict=True)]),
        )

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
        self._promise(intent.namespace, progress, intent.span.start)
        self.draft.take(self._need(intent.offer, intent.span.end))
        self.draft.chunk(intent)
        self.rows -= 1

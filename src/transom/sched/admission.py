"""Who is admitted: need over a life against room, and no prefix computed twice."""

from dataclasses import dataclass, field

from transom.kv.cache import Namespace, Offer
from transom.kv.components import PageRule
from transom.kv.room import Room
from transom.sched.draft import Draft
from transom.sched.intents import Admit
from transom.sched.needs import PESSIMISM, added, expected_end, pages_at, still_to_take
from transom.sched.prefixes import Publisher, is_promised
from transom.sched.spans import Pages, chunk_end, fit_end, is_cut
from transom.sched.states import Progress, Running, Span, Waiting

CONSIDERED = 32
"""Waiting requests looked at in one plan, senior first."""

PASSED_OVER = 2
"""Requests that do not fit before a plan stops looking for a smaller one. Each costs a look at the tree."""


def plan_admissions(draft: Draft) -> None:
    """Adds the spans of those who are admitted in this step, senior first.

    A request that does not fit now is passed over, until it is the senior of all and out of patience: then
    it comes in as soon as its next chunk fits, and nobody before it.
    """
    situation = draft.situation
    if not situation.waiting or situation.rows_free <= 0 or draft.budget == 0:
        return
    desk = _Desk(draft, situation.rows_free, situation.cache.space(), situation.cache.grids)
    refused = 0
    for position, waiting in enumerate(situation.waiting[:CONSIDERED]):
        urgent = position == 0 and situation.is_urgent
        refused += not desk.consider(waiting, urgent)
        if desk.rows == 0 or draft.budget == 0 or refused > (0 if urgent else PASSED_OVER):
            return


@dataclass(slots=True)
class _Desk:
    """Owns what the admissions of one plan share. Mutable, lives no longer than the plan."""

    draft: Draft
    rows: int
    room: Room
    """Room when the step began: what lives are compared with."""
    grids: tuple[PageRule, ...]
    publishers: list[Publisher] = field(init=False)
    promised: Pages = field(init=False)
    """Needs over life of those admitted in this plan."""
    others: dict[int, Pages] = field(default_factory=dict)
    """Needs over life of those that run, by the outputs expected of them."""

    def __post_init__(self) -> None:
        page = self.draft.situation.cache.layout.page_size
        running = (
            Publisher(state.holding.namespace, state.progress.tokens(), state.holding.computed)
            for state in self.draft.situation.running
        )
        self.publishers = [publisher for publisher in running if publisher.has_more(page)]
        self.promised = (0,) * len(self.grids)

    def consider(self, waiting: Waiting, urgent: bool) -> bool:
        """Admits the request if it may come in now. False if pages are what it lacks.

        It takes the cheapest way to begin. Only who need not care for others falls back towards cold, which
        needs the fewest pages at once: others rather wait than compute more.
        """
        cache = self.draft.situation.cache
        progress = waiting.progress
        free = urgent or not self.draft.spans
        if not free and not self._has_place_for(progress, (1,) * len(self.grids)):
            return False
        namespace = cache.namespace(progress.id, progress.request.salt)
        offers = cache.offers(namespace, progress.tokens(), progress.start_limit)
        if not urgent and self._is_promised(progress, namespace, offers[0]):
            return True
        if not free and not self._has_place_for(progress, self._life(progress, offers[0])):
            return False
        for tried in offers if free else offers[:1]:
            span = self._span(progress, tried, urgent)
            if span is not None:
                self._admit(Admit(waiting, namespace, tried, span))
                return True
        return False

    def _is_promised(self, progress: Progress, namespace: Namespace, offer: Offer) -> bool:
        situation = self.draft.situation
        return is_promised(
            self.publishers,
            namespace,
            progress.tokens(progress.start_limit + 1),
            cached=offer.begin.start,
            page_size=situation.cache.layout.page_size,
            gain_min=situation.limits.prefix_gain_min,
        )

    # ------------------------------------------------------------ over a life

    def _has_place_for(self, progress: Progress, life: Pages) -> bool:
        need = added(added(life, self.promised), self._need_of_others(self._outputs_expected(progress)))
        return self.room.covers(need)

    def _outputs_expected(self, progress: Progress) -> int:
        return int(self.draft.situation.outputs_expected * PESSIMISM**progress.retractions)

    def _life(self, progress: Progress, offer: Offer) -> Pages:
        """Pages the request will take from room, most of its way, if it begins with `offer`."""
        end = _end_of_life(progress, self._outputs_expected(progress))
        grown = self._need(offer, end)
        return tuple(min(need, pages_at(grid, end)) for need, grid in zip(grown, self.grids, strict=True))

    def _need_of_others(self, outputs_expected: int) -> Pages:
        if outputs_expected not in self.others:
            need = (0,) * len(self.grids)
            for state in self.draft.situation.running:
                need = added(need, self._need_of(state, outputs_expected))
            self.others[outputs_expected] = need
        return self.others[outputs_expected]

    def _need_of(self, state: Running, outputs_expected: int) -> Pages:
        return still_to_take(self.grids, state.holding, _end_of_life(state.progress, outputs_expected))

    # ------------------------------------------------------------ in this step

    def _need(self, offer: Offer, end: int) -> Pages:
        """Pages that leave room when a request begins with `offer` and grows to `end`."""
        growth = self.draft.situation.cache.growth(offer.begin, end)
        return added(growth, added(offer.takes, offer.pins))

    def _span(self, progress: Progress, offer: Offer, urgent: bool) -> Span | None:
        cache = self.draft.situation.cache
        page = cache.layout.page_size
        start, known = offer.begin.start, progress.length
        end = cache.stop(start, chunk_end(start, known, self.draft.budget, page))
        end = fit_end(start, end, page, lambda end: self.draft.lacks(self._need(offer, end)))
        if end == start or (self.draft.chunks and not urgent and is_cut(end, known, page)):
            return None
        return Span(start, end)

    def _admit(self, intent: Admit) -> None:
        progress = intent.waiting.progress
        self.promised = added(self.promised, self._life(progress, intent.offer))
        self.publishers.append(Publisher(intent.namespace, progress.tokens(), intent.span.start))
        self.draft.take(self._need(intent.offer, intent.span.end))
        self.draft.add(intent)
        self.draft.chunks += 1
        self.rows -= 1


def _end_of_life(progress: Progress, outputs_expected: int) -> int:
    return expected_end(progress.length, progress.outputs, progress.kv_limit, outputs_expected)

"""Admission: waiting requests start, in the queue's order, if they fit in memory over their lifetime.

No prefix is computed twice: a request that shares a prefix in flight waits, and hits it once it is published.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from transom.kv.budget import Capacity
from transom.kv.cache import Namespace, Offer
from transom.kv.page_rules import PageRule, last_hit
from transom.sched.draft import PlanBuilder, chunk_end, fit_end, is_cut, is_decode
from transom.sched.forecast import MemoryForecast, need
from transom.sched.plan import Admit
from transom.sched.request import Progress, Running, Span, Waiting
from transom.values import Tokens

SKIPPED = 2
"""Requests that a plan skips in its search for one that fits. Each costs a walk of the radix tree.

Pages rarely change between two steps, so a request that did not fit will mostly not fit in the next step
either: without a bound, a full cache and a long queue would cost a walk per waiting request and step.
"""


def plan_admissions(draft: PlanBuilder) -> None:
    """Adds the first spans of the requests that are admitted in this step, in the queue's order.

    A request that does not fit now is skipped, and smaller requests after it may be admitted. Two rules bound
    how long this lasts: nothing passes an aged request that does not fit, and a starved request is looked at
    first and is admitted as soon as its next chunk fits, without a forecast of its lifetime.
    """
    view = draft.view
    if not view.waiting or view.rows_free <= 0 or draft.budget == 0:
        return
    builder = AdmissionBuilder(draft, view.rows_free, view.cache.available, view.cache.rules)
    starved = view.starved
    # A starved request that does not fit keeps all others out, so that pages that are freed collect for it.
    if starved is not None and (not builder.consider(starved, is_starved=True) or builder.is_done):
        return
    skipped = 0
    for waiting in view.waiting:
        if waiting is starved:
            continue
        if not builder.consider(waiting, is_starved=False):
            skipped += 1
            if skipped > SKIPPED or waiting.progress.id in view.aged:
                return
        if builder.is_done:
            return


@dataclass(slots=True)
class AdmissionBuilder:
    """Owns the state that the admissions of one plan share. Mutable, lives no longer than the plan."""

    draft: PlanBuilder
    rows: int
    """Rows that are still free."""
    available: Capacity
    """Capacity at the start of the step. Lifetimes are compared with it, because the lifetimes of the running
    requests include the pages that this step's spans allocate."""
    rules: tuple[PageRule, ...]
    forecast: MemoryForecast = field(init=False)
    in_flight: "InFlightPrefixes" = field(init=False)

    def __post_init__(self) -> None:
        view = self.draft.view
        self.forecast = MemoryForecast(view, self.available)
        self.in_flight = InFlightPrefixes(self.rules, view.config.prefix_gain_min)
        # Chunks publish pages when the step has landed, and so do the few decodes that fill a page.
        self.in_flight.prefixes += [
            InFlightPrefix(state.holding.namespace, state.progress.tokens(), state.holding.computed)
            for state in (*self.draft.prefills, *self._decodes_that_fill_a_page())
        ]

    def _decodes_that_fill_a_page(self) -> Iterator[Running]:
        """Decodes that publish a page in this step, because their last known token fills it."""
        view = self.draft.view
        page = view.cache.layout.page_size
        if page < view.config.prefix_gain_min and last_hit(self.rules, page) == page:
            return iter(())  # one page is all that such a decode publishes, too little to wait for
        filling = (state for state in view.running if state.progress.length % page == 0)
        return filter(is_decode, filling)

    @property
    def is_done(self) -> bool:
        return self.rows == 0 or self.draft.budget == 0

    def consider(self, waiting: Waiting, *, is_starved: bool) -> bool:
        """Admits the request if it may run now. False if it lacks pages.

        The request starts with the offer that computes the fewest tokens. The other offers, down to a cold
        start, need fewer pages at once and more computation. They are tried only if the request is starved or
        the step is empty otherwise: other requests rather wait for pages than compute more.
        """
        cache = self.draft.view.cache
        progress = waiting.progress
        takes_any_offer = is_starved or not self.draft.entries
        # Without a free page in each component no offer fits, so the walk of the radix tree can be saved.
        if not takes_any_offer and not self.available.covers((1,) * len(self.rules)):
            return False
        namespace = cache.namespace(progress.id, progress.request.salt)
        offers = cache.offers(namespace, progress.tokens(), progress.start_limit)
        hit = offers[0].begin.start
        # One token more than a hit may cover, because a hit leaves at least one token to compute.
        reusable = progress.tokens(progress.start_limit + 1)
        if not is_starved and self.in_flight.is_worth_waiting_for(namespace, reusable, cached=hit):
            return True  # it lacks no pages, so it does not count as skipped
        # A starved request has waited for long enough not to wait for an estimate. In an empty step no other
        # request competes for pages, and each request fits alone.
        if not takes_any_offer and not self.forecast.fits(progress, offers[0]):
            return False
        for offer in offers if takes_any_offer else offers[:1]:
            span = self._first_span(progress, offer, is_starved=is_starved)
            if span is not None:
                self._admit(Admit(waiting, namespace, offer, span))
                return True
        return False

    def _first_span(self, progress: Progress, offer: Offer, *, is_starved: bool) -> Span | None:
        """The first chunk if the request starts with `offer`, unless budget or pages are missing."""
        cache = self.draft.view.cache
        page = cache.layout.page_size
        start, known = offer.begin.start, progress.length
        # The plan holds back one token for a starved request, so the time budget must not refuse it.
        budget = max(self.draft.chunk_budget(start), int(is_starved))
        if budget == 0:
            return None
        end = cache.stop(start, chunk_end(start, known, budget, page))
        end = fit_end(start, end, page, lambda end: self.draft.pages_short(need(cache, offer, end)))
        if end == start or (self.draft.chunks and not is_starved and is_cut(end, known, page)):
            return None
        return Span(start, end)

    def _admit(self, entry: Admit) -> None:
        progress = entry.waiting.progress
        self.forecast.admit(progress, entry.offer)
        # `span.start` and not `span.end`: the span is published only when the step has landed, so a later
        # request of this plan that shares it must wait.
        self.in_flight.prefixes.append(InFlightPrefix(entry.namespace, progress.tokens(), entry.span.start))
        self.draft.allocate(need(self.draft.view.cache, entry.offer, entry.span.end))
        self.draft.add_chunk(entry)
        self.rows -= 1


# ---------------------------------------------------------------- prefixes in flight


class InFlightPrefix(NamedTuple):
    """The known tokens of a request with a row, `computed` of them computed.

    A tuple and not a dataclass, because a plan may look at hundreds.
    """

    namespace: Namespace
    tokens: Tokens
    computed: int


class InFlightPrefixes:
    """Owns the prefixes that will be published soon. Mutable, lives no longer than a plan."""

    __slots__ = ("_gain_min", "_rules", "prefixes")

    def __init__(self, rules: Sequence[PageRule], gain_min: int) -> None:
        """A request waits only if that saves at least `gain_min` tokens."""
        self._rules = tuple(rules)
        self._gain_min = gain_min
        self.prefixes: list[InFlightPrefix] = []
        """May be appended to."""

    def is_worth_waiting_for(self, namespace: Namespace, tokens: Tokens, *, cached: int) -> bool:
        """Whether one of the prefixes will publish enough of `tokens` beyond the first `cached`."""
        return any(
            prefix.namespace == namespace and self._gain(prefix, tokens, cached) >= self._gain_min
            for prefix in self.prefixes
        )

    def _gain(self, prefix: InFlightPrefix, tokens: Tokens, cached: int) -> int:
        """Tokens beyond `cached`; 0 if they are published already, or never will be.

        published          reach    publishable
        ----------|--------------|==========|---  tokens of the prefix
        """
        _, known, computed = prefix
        page_size = self._rules[0].page_size
        published = computed - computed % page_size
        publishable = len(known) - len(known) % page_size
        # Most prefixes differ at the first token that is not published, if not before. Comparing that one
        # token first saves the comparison of whole prompts.
        if published == publishable or published >= len(tokens) or known[published] != tokens[published]:
            return 0
        reach = min(common_prefix(known, tokens), publishable, len(tokens) - 1)
        # With snapshots, not every page boundary can be hit.
        reach = last_hit(self._rules, reach)
        return reach - cached if reach > published else 0


def common_prefix(a: Tokens, b: Tokens) -> int:
    """Length of the longest common prefix."""
    shared = min(len(a), len(b))
    if shared == 0 or a[0] != b[0]:
        return 0
    differ = a[:shared] != b[:shared]
    first = int(np.argmax(differ))  # the first True; 0 as well if there is none
    return first if differ[first] else shared

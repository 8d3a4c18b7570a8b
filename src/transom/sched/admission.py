"""Admission: waiting requests start, in the queue's order, if they have memory for some time (`forecast`).

No prefix is computed twice: a request that shares a prefix in flight waits, and hits it once it is published.
"""

from collections.abc import Iterator, Sequence
from enum import Enum, auto
from functools import cached_property
from typing import NamedTuple

import numpy as np

from transom.kv.budget import PageCounts
from transom.kv.cache import Namespace, Offer
from transom.kv.page_rules import PageRule, last_hit
from transom.sched.draft import PlanBuilder, chunk_end, fit_end, is_cut, is_decode
from transom.sched.forecast import MemoryForecast, need
from transom.sched.plan import Admit
from transom.sched.queue import Refused
from transom.sched.request import Progress, Running, Span, Waiting
from transom.values import Tokens

WALKS = 32
"""Walks of the radix tree, one for each request that a plan looks at. Bounds the time of a plan.

Requests that wait for a prefix in flight take one each, so with few walks a crowd of them would hide the
requests behind it.

Pages rarely change between two steps, so a request that did not fit will mostly not fit in the next step
either. What it lacks is remembered (`Queue.refuse`), and while it lacks it, it costs no walk.
"""

RESUME_PATIENCE = 4
"""Times `patience_steps` that a request with part of its output is passed by others if it does not fit."""


class Verdict(Enum):
    """The result of looking at a waiting request."""

    ADMITTED = auto()
    SHARES = auto()
    """It waits for a prefix that another request is computing, and lacks no pages."""
    LACKS = auto()
    """It lacks pages."""


def plan_admissions(builder: "AdmissionBuilder") -> None:
    """Adds the first spans of the requests that are admitted in this step, in the queue's order.

    A request that does not fit now is passed, and smaller requests after it may be admitted. This has an end:
    nothing passes an aged request, or one that has waited for long with part of its output.
    """
    view = builder.draft.view
    if builder.is_done or not len(view.queue):
        return
    walks = 0
    resumed = view.iterations - RESUME_PATIENCE * view.config.patience_steps
    for waiting in view.queue.considered(view.may_admit, builder.leaves, resumed):
        if waiting is builder.claimed:
            continue
        # Without a free page in each component no waiting request can fit.
        if not builder.leaves(builder.one_page):
            return
        # A request that blocks the others is not judged by an old note.
        blocks = view.queue.blocks(waiting, resumed)
        if not blocks and builder.is_known_to_lack(waiting):
            continue
        walks += 1
        if builder.consider(waiting) is Verdict.LACKS and blocks:
            return
        if builder.is_done or walks == WALKS:
            return


def admit_claimant(builder: "AdmissionBuilder") -> bool:
    """Gives back what was held back for the claim, and admits its request if that fits exactly; False if not.

    If requests were retracted for it, it starts in the next step, when the pages of its hit have been counted
    again; or at once if the step would be empty otherwise.
    """
    draft = builder.draft
    if draft.claim is None:  # it was released for a senior request
        return False
    claim = draft.release_claim()
    if claim.victims and draft.entries:
        return False
    if draft.retracted:
        draft.allocate(claim.hidden)
    if builder.admit_first(claim.waiting):
        return True
    if draft.entries or not draft.retracted:
        return False
    # All running requests were retracted, and a cold start, which takes no page of a hit again, fits alone.
    draft.free(claim.hidden)
    return builder.admit_first(claim.waiting, cold=True)


class AdmissionBuilder:
    """Owns the state that the admissions of one plan share. Mutable, lives no longer than the plan."""

    def __init__(self, draft: PlanBuilder) -> None:
        view = draft.view
        self.draft = draft
        self.claimed: Waiting | None = None
        """The request that was admitted for a claim."""
        self._available = view.cache.available
        self._rules = view.cache.rules
        self.one_page = (1,) * len(self._rules)
        """A page in each component: without it no request can start."""
        self._admitted = 0

    @cached_property
    def forecast(self) -> MemoryForecast:
        """Compared with the capacity at the start of the step, because it counts the spans of this step."""
        return MemoryForecast(self.draft.view, self._available)

    @cached_property
    def in_flight(self) -> "InFlightPrefixes":
        view = self.draft.view
        prefixes = InFlightPrefixes(self._rules, view.config.prefix_gain_min)
        # Chunks publish pages when the step has landed, and so do the few decodes that fill a page.
        prefixes.prefixes += [
            InFlightPrefix(state.holding.namespace, state.progress.tokens(), state.holding.computed)
            for state in (*self._prefills(), *self._decodes_that_fill_a_page())
        ]
        return prefixes

    def _prefills(self) -> Iterator[Running]:
        return (state for state in self.draft.view.running if not is_decode(state))

    def _decodes_that_fill_a_page(self) -> Iterator[Running]:
        """Decodes that publish a page in this step, because their last known token fills it."""
        view = self.draft.view
        page = view.cache.layout.page_size
        if page < view.config.prefix_gain_min and last_hit(self._rules, page) == page:
            return iter(())  # one page is all that such a decode publishes, too little to wait for
        filling = (state for state in view.running if state.progress.length % page == 0)
        return filter(is_decode, filling)

    @property
    def is_empty(self) -> bool:
        """Whether the step has no entry yet. Then each request fits, and some request must be admitted."""
        return not self.draft.entries

    @property
    def is_done(self) -> bool:
        rows = self.draft.view.rows_free + len(self.draft.retracted) - self._admitted
        return rows <= 0 or self.draft.budget == 0

    def leaves(self, pages: PageCounts) -> bool:
        """Whether so many pages are left for a request, or the step is empty."""
        return self.is_empty or self.forecast.left.covers(pages)

    def is_known_to_lack(self, waiting: Waiting) -> bool:
        """Whether the request was refused for pages that are still not left."""
        lacks = self.draft.view.queue.lacks(waiting)
        return lacks is not None and not self.leaves(lacks)

    def waits_for_prefix(self, waiting: Waiting, namespace: Namespace, cached: int) -> bool:
        """Whether another request is computing enough of its prefix, beyond the first `cached` tokens."""
        progress = waiting.progress
        # One token more than a hit may cover, because a hit leaves at least one token to compute.
        reusable = progress.tokens(progress.start_limit + 1)
        return self.in_flight.is_worth_waiting_for(namespace, reusable, cached=cached)

    def admit_first(self, waiting: Waiting, *, cold: bool = False) -> bool:
        """Whether a request that goes before all others could be admitted."""
        if self.is_done or self.consider(waiting, claims=True, cold=cold) is not Verdict.ADMITTED:
            return False
        self.claimed = waiting
        return True

    def consider(self, waiting: Waiting, *, claims: bool = False, cold: bool = False) -> Verdict:
        """Admits the request if it may run now; one that `claims` does not wait for an estimate.

        The request starts with the offer that computes the fewest tokens. The other offers, down to a cold
        start, need fewer pages at once and more computation. They are tried only if the request claims or the
        step is empty otherwise: other requests rather wait for pages than compute more.
        """
        cache, progress = self.draft.view.cache, waiting.progress
        # In an empty step no other request competes for pages, and each request fits alone.
        takes_any_offer = claims or self.is_empty
        namespace = cache.namespace(progress.id, progress.request.salt)
        offers = (cache.cold(),) if cold else cache.offers(namespace, progress.tokens(), progress.start_limit)
        if not claims and self.waits_for_prefix(waiting, namespace, offers[0].begin.start):
            return Verdict.SHARES
        pages = self.forecast.need(progress, offers[0])
        if not takes_any_offer and not self.forecast.left.covers(pages):
            self.draft.refused.append(Refused(waiting, pages))
            return Verdict.LACKS
        for offer in offers if takes_any_offer else offers[:1]:
            span = self._first_span(progress, offer, claims=claims)
            if span is not None:
                self._admit(Admit(waiting, namespace, offer, span), pages)
                return Verdict.ADMITTED
        return Verdict.LACKS

    def _first_span(self, progress: Progress, offer: Offer, *, claims: bool) -> Span | None:
        """The first chunk if the request starts with `offer`, unless budget or pages are missing."""
        cache = self.draft.view.cache
        page = cache.layout.page_size
        start, known = offer.begin.start, progress.length
        # The plan holds back one token for a claim, so the time budget must not refuse it.
        budget = max(self.draft.chunk_budget(start), int(claims))
        if budget == 0:
            return None
        end = cache.stop(start, chunk_end(start, known, budget, page))
        end = fit_end(start, end, page, lambda end: self.draft.pages_short(need(cache, offer, end)))
        if end == start or (self.draft.chunks and not claims and is_cut(end, known, page)):
            return None
        return Span(start, end)

    def _admit(self, entry: Admit, pages: PageCounts) -> None:
        progress = entry.waiting.progress
        self.forecast.admit(pages)
        # `span.start` and not `span.end`: the span is published only when the step has landed, so a later
        # request of this plan that shares it must wait.
        self.in_flight.prefixes.append(InFlightPrefix(entry.namespace, progress.tokens(), entry.span.start))
        self.draft.allocate(need(self.draft.view.cache, entry.offer, entry.span.end))
        self.draft.add_chunk(entry)
        self._admitted += 1


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

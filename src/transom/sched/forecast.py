"""Whether a request that starts now will have memory until another request ends. Pure.

Pages come back when a request ends. Among n running requests with m steps to go on average, one ends about
every m / n steps: this is the horizon. A request is admitted if three amounts fit together:

- its own pages, for its known tokens and for as much output as recent requests produced
- the pages that the running requests take up to the horizon
- the pages of the requests that this plan has admitted already

This is an estimate, and it is meant to be wrong at times: a forecast of whole lifetimes was right, and kept
the machine empty (lab/LOG.md has both, in numbers). Retraction corrects it.
"""

import numpy as np
from numpy.typing import NDArray

from transom.kv.budget import Capacity, PageCounts
from transom.kv.cache import HybridCache, Offer
from transom.kv.page_rules import PageRule
from transom.sched.plan import SchedulerView
from transom.sched.request import Progress
from transom.sched.running import ALLOCATED, FULL_UNTIL, LIMIT, PROMPT

SPARE = 2
"""Times the pages of its window that must be left for a request to start.

Pages that fall out of a window stay cached. Without space for them, each request that starts evicts the
prefixes of the requests that come back: agents on little memory found half as many tokens.
"""

SPARE_SHARE = 3
"""The spare pages of one request are at most this part of the pool."""

Counts = NDArray[np.int64]
"""One entry per request."""


def need(cache: HybridCache, offer: Offer, end: int) -> PageCounts:
    """Pages that a request takes out of the available ones if it starts with `offer` and grows to `end`."""
    growth = cache.growth(offer.begin, end)
    return tuple(map(sum, zip(growth, offer.takes, offer.pins, strict=True)))


class MemoryForecast:
    """Owns the pages that this plan leaves to running and admitted requests. Mutable, lives for one plan."""

    def __init__(self, view: SchedulerView, available: Capacity) -> None:
        """`available` is the capacity at the start of the step."""
        self._cache = view.cache
        self._rules = view.cache.rules
        self._outputs = view.outputs
        self._chunk_tokens = view.config.chunk_tokens
        self._running = len(view.running)
        self._steps = 0
        """Steps that all running requests together still take."""
        self.left = available
        """Capacity that an admitted request may take; negative where running requests will need more."""
        if view.running:
            self._reserve_for_running(view)

    def _reserve_for_running(self, view: SchedulerView) -> None:
        columns = view.columns
        known = np.array([state.progress.length for state in view.running], np.int64)
        outputs = known - columns[PROMPT]
        self._outputs = view.outputs.with_unfinished(outputs)
        steps = np.maximum(0, np.minimum(columns[LIMIT] - known, self._outputs.remaining(outputs)))
        self._steps = int(steps.sum())
        ends = known + np.minimum(steps, self.horizon)
        # Pages of a prefix hit may lie beyond the tokens computed, and are not taken again.
        allocated = np.maximum(columns[ALLOCATED], columns[FULL_UNTIL])
        growth = []
        for rule in self._rules:
            begun = np.minimum(allocated if rule.whole(1) else columns[ALLOCATED], ends)
            # A window that has all the pages it ever holds pays for new ones with those that fall out of it.
            grown = self._peak(rule, known, ends, known - begun) - rule.held(begun)
            growth.append(int(np.clip(grown, 0, rule.taken(begun, ends)).sum()))
        self.left = self.left.less(growth)

    def _peak(self, rule: PageRule, known: Counts, end: Counts, uncomputed: Counts) -> Counts:
        """The most pages held on the way to `end`. A chunk of a prefill has its pages before any fall out."""
        chunk = np.maximum(0, np.minimum(uncomputed, self._chunk_tokens))
        peak: Counts = np.minimum(rule.entries(known), rule.held(known) + rule.entries(chunk))
        return np.maximum(rule.held(end), peak)

    @property
    def horizon(self) -> int:
        """Steps until the next request is expected to end; at least one."""
        return max(1, self._steps // max(1, self._running) ** 2)

    def need(self, progress: Progress, offer: Offer) -> PageCounts:
        """Pages that must be left for the request to start with `offer`.

        A client that has part of its answer already should not wait for the rest of it, so a request that
        continues needs pages up to the horizon only.
        """
        steps = self._outputs.remaining_of(progress.outputs)
        if progress.outputs and self._running:
            steps = min(steps, self.horizon)
        end = min(progress.kv_limit, progress.length + steps)
        pages = need(self._cache, offer, end)
        known, ends = np.array([progress.length]), np.array([end])
        peaks = [self._peak(rule, known, ends, known - offer.begin.start)[0] for rule in self._rules]
        # Spare pages are a favour to others: where pools are small, a window's own pages are enough.
        spare = [size // SPARE_SHARE for size in self._cache.layout.pages]
        least = [rule.held(end) for rule in self._rules]
        return tuple(
            [
                min(n, max(held, min(SPARE * int(peak), most)))
                for n, held, peak, most in zip(pages, least, peaks, spare, strict=True)
            ]
        )

    def admit(self, pages: PageCounts) -> None:
        """A request was admitted that needs `pages`."""
        self.left = self.left.less(pages)

"""Whether the whole lifetime of a request fits in memory, next to the requests that already run. Pure.

Three questions, from the cheapest to the most exact. The first "yes" admits the request:

worst case     every request grows to its token limit, and no page is freed before the last request ends
expected sum   every request grows to its expected length, and no page is freed before the last request ends
over time      every request grows to its expected length, and frees its own pages when it ends

Requests are expected to produce as much output as recent requests did (`output_lengths`), which is usually
far below `max_tokens`. This optimism fills the pools, and retraction corrects it where it was wrong. For a
request that was retracted, all expectations are multiplied by `PESSIMISM`, its own and the running requests';
after a second retraction by the square, and so on. A retracted request is therefore not readmitted only to be
retracted again, and the number of its retractions is bounded by a logarithm of `max_tokens`.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from transom.kv.budget import Capacity, PageCounts
from transom.kv.cache import HybridCache, Offer
from transom.kv.page_rules import PageRule
from transom.sched.output_lengths import OutputLengths
from transom.sched.plan import SchedulerView
from transom.sched.request import Progress
from transom.sched.running import ALLOCATED, FULL_UNTIL, LIMIT, PROMPT, ROW, Columns

PESSIMISM = 4
"""Factor on expected outputs for each retraction that a request has been through.

With 4, an expectation of 128 tokens reaches a limit of 2,048 after two retractions. Then the forecast is the
worst case, and the request is not retracted for a wrong estimate again.
"""

WORST_CASE = 0
"""Scenario: every request grows to its token limit. All other scenarios are factors on expected outputs."""

Counts = NDArray[np.int64]
"""One entry per request, or one row per component with one entry per request."""


def need(cache: HybridCache, offer: Offer, end: int) -> PageCounts:
    """Pages that a request takes out of the available ones if it starts with `offer` and grows to `end`."""
    growth = cache.growth(offer.begin, end)
    return tuple(map(sum, zip(growth, offer.takes, offer.pins, strict=True)))


class Lifetime(NamedTuple):
    """A request that may be admitted: it has `known` tokens now and ends `steps` steps later.

    extra   pages per component that are not counted by the request's tokens. In a component that keeps
            everything: minus the pages that the prefix hit saves. In a component that slides: all pages that
            the request holds at its peak.
    """

    known: int
    steps: int
    extra: PageCounts


class MemoryForecast:
    """Owns the lifetimes of the running requests and of the requests admitted in this plan.

    Mutable, lives for one plan. Everything is computed when it is first needed: most plans need only the sums
    of the worst case.
    """

    def __init__(self, view: SchedulerView, available: Capacity) -> None:
        """`available` is the capacity at the start of the step."""
        self._view = view
        self._available = available
        self._rules = view.cache.rules
        self._admitted: list[tuple[Progress, Offer]] = []
        # By scenario, and only as far as a question needed them:
        self._lifetimes: dict[int, list[Lifetime]] = {}
        """Of the admitted requests."""
        self._sums: dict[int, tuple[int, list[int]]] = {}
        """Admitted requests counted so far, and the slots that they and the running requests take."""
        self._steps: dict[int, Counts] = {}
        """Of the running requests, until they end."""
        self._timelines: dict[int, Timeline] = {}

    def fits(self, progress: Progress, offer: Offer) -> bool:
        """Whether the request's whole lifetime fits if it starts with `offer`."""
        worst = self._lifetime(progress, offer, WORST_CASE)
        if self._fits_sum(worst, WORST_CASE):
            return True
        # The factor also applies to the running requests: it is their growth that forced the retraction.
        factor = PESSIMISM**progress.retractions
        expected = self._lifetime(progress, offer, factor)
        return self._fits_sum(expected, factor) or self._fits_over_time(expected, factor)

    def admit(self, progress: Progress, offer: Offer) -> None:
        """Counts the request like a running one from now on."""
        self._admitted.append((progress, offer))

    # ------------------------------------------------------------ stages

    def _fits_sum(self, lifetime: Lifetime, scenario: int) -> bool:
        """The first two questions: everything that will ever be taken is available at once."""
        pages = pages_of_slots(with_lifetime(self._sum(scenario), lifetime, self._rules), self._rules)
        return self._available.covers(pages)

    def _fits_over_time(self, lifetime: Lifetime, factor: int) -> bool:
        """The last question: at each end until `lifetime` ends, the pages held until then are available."""
        lifetimes = self._admitted_lifetimes(factor)
        timeline = self._timelines.get(factor)
        if timeline is None:
            columns, steps = self._view.columns, self._steps_to_go(factor)
            timeline = running_timeline(columns, self._known, steps, self._held_alone, self._rules)
        if added := lifetimes[len(timeline.known) - len(self._known) :]:
            timeline = timeline.plus(added)
        self._timelines[factor] = timeline
        return timeline.fits(lifetime, self._available)

    # ------------------------------------------------------------ computed when first needed

    def _sum(self, scenario: int) -> list[int]:
        """Slots that the running and the admitted requests take together, see `running_slots`."""
        lifetimes = self._admitted_lifetimes(scenario)
        if scenario in self._sums:
            counted, slots = self._sums[scenario]
        else:
            columns, context = self._view.columns, self._view.config.context
            counted, slots = 0, running_slots(columns, self._final_tokens(scenario), context, self._rules)
        for lifetime in lifetimes[counted:]:
            slots = with_lifetime(slots, lifetime, self._rules)
        self._sums[scenario] = (len(lifetimes), slots)
        return slots

    def _admitted_lifetimes(self, scenario: int) -> list[Lifetime]:
        lifetimes = self._lifetimes.setdefault(scenario, [])
        for progress, offer in self._admitted[len(lifetimes) :]:
            lifetimes.append(self._lifetime(progress, offer, scenario))
        return lifetimes

    def _final_tokens(self, scenario: int) -> int:
        """Tokens of all running requests together when each of them ends."""
        if scenario == WORST_CASE:
            return int(self._view.columns[LIMIT].sum())
        return int(self._known.sum() + self._steps_to_go(scenario).sum())

    def _steps_to_go(self, factor: int) -> Counts:
        steps = self._steps.get(factor)
        if steps is None:
            steps = steps_to_go(self._view.columns, self._known, self._lengths, factor)
            self._steps[factor] = steps
        return steps

    @cached_property
    def _known(self) -> Counts:
        """Tokens of each running request."""
        return np.array([state.progress.length for state in self._view.running], np.int64)

    @cached_property
    def _lengths(self) -> OutputLengths:
        return self._view.outputs.with_unfinished(self._known - self._view.columns[PROMPT])

    @cached_property
    def _held_alone(self) -> Counts:
        columns = self._view.columns
        return self._view.cache.held_alone(columns[ROW], columns[ALLOCATED], columns[FULL_UNTIL])

    def _lifetime(self, progress: Progress, offer: Offer, scenario: int) -> Lifetime:
        end = progress.kv_limit
        if scenario != WORST_CASE:
            end = min(end, progress.length + self._lengths.remaining_of(progress.outputs, scenario))
        # `need` counts all pages from the offer to `end`. Components that keep everything are counted by
        # tokens (`with_lifetime`, `Timeline`), so only the pages that the hit saves remain here. A window
        # frees pages as it allocates new ones, so its peak is all that it ever takes.
        extra = [
            pages - rule.entries(end) if rule.whole(1) else min(pages, rule.held(end))
            for pages, rule in zip(need(self._view.cache, offer, end), self._rules, strict=True)
        ]
        return Lifetime(progress.length, max(0, end - progress.length), tuple(extra))


# ---------------------------------------------------------------- sums: nothing is freed


def running_slots(columns: Columns, tokens: int, context: int, rules: Sequence[PageRule]) -> list[int]:
    """Slots per component that the running requests still take until they have `tokens` tokens together.

    An upper bound: a component takes no more than the requests write, and no more than a window can hold.
    Counted in slots (tokens) and not in pages, so that rounding up to pages is done once and not per request.
    `context` bounds the tokens of each request.
    """
    page, running = rules[0].page_size, columns.shape[1]
    # Up to `page - 1` slots at the end of each request's last page stay unused.
    written = tokens - int(columns[ALLOCATED].sum()) + running * (page - 1)
    held = [running * rule.held(context) * page for rule in rules]
    # A state takes no page for its tokens: each running request has its page already.
    return [min(written, most) if rule.taken(0, 1) else 0 for most, rule in zip(held, rules, strict=True)]


def with_lifetime(slots: Sequence[int], lifetime: Lifetime, rules: Sequence[PageRule]) -> list[int]:
    """`slots` plus everything that `lifetime` will take."""
    page = rules[0].page_size
    written = lifetime.known + lifetime.steps + page - 1
    return [
        taken + extra * page + (written if rule.whole(1) else 0)
        for taken, extra, rule in zip(slots, lifetime.extra, rules, strict=True)
    ]


def pages_of_slots(slots: Sequence[int], rules: Sequence[PageRule]) -> PageCounts:
    return tuple([taken // rules[0].page_size for taken in slots])


# ---------------------------------------------------------------- over time: requests free their pages


class Timeline:
    """Memory at the times when requests end: it peaks just before one of them does.

    Each request grows by a token per step until it has produced its expected output. Then its own pages
    become available again.

        pages |        /|   /|       just before the i-th request ends, the requests that end later have grown
              |   /|  / |  / |       by as many steps, and the requests that ended earlier have freed their
              |  / | /  | /  |       pages
              +----+----+----+ steps

    Components that keep everything are counted as they grow. Components that slide are counted at their peak
    from the start.
    """

    def __init__(
        self, known: Counts, steps: Counts, extra: Counts, own: Counts, rules: Sequence[PageRule]
    ) -> None:
        """Takes `known`, `steps` and `extra` as in `Lifetime`, for each request.

        `own` are the pages that the request holds now and shares with no other: its end frees them.
        """
        self.known, self._steps, self._extra, self._own = known, steps, extra, own
        self._rules = rules
        self._page = rules[0].page_size
        self._grows = np.array([[rule.whole(1) > 0] for rule in rules], np.int64)
        self._own_sum = own.sum(axis=1, keepdims=True)
        # Sorted by end, the last first: the requests still there at an end are then a prefix of this order,
        # and their sum is one entry of the prefix sums.
        order = np.argsort(-steps, kind="stable")
        self._minus_steps = -steps[order]
        # Row 0 has tokens, from which `_taken` derives the pages of components that grow. The other rows have
        # pages per component.
        # Pages are counted as changes from now. All `own` pages are subtracted as if every request had ended,
        # so a request that is still there adds its own again.
        counted = np.concatenate([known[None], extra + own])
        self._sums = np.zeros((len(counted), len(order) + 1), np.int64)
        np.cumsum(counted.take(order, axis=1), axis=1, out=self._sums[:, 1:])
        self._peaks = self._taken(np.arange(1, len(order) + 1), -self._minus_steps)

    def plus(self, lifetimes: Sequence[Lifetime]) -> "Timeline":
        """With requests that hold nothing yet."""
        nothing = np.zeros((len(self._own), len(lifetimes)), np.int64)
        return Timeline(
            np.append(self.known, [lifetime.known for lifetime in lifetimes]),
            np.append(self._steps, [lifetime.steps for lifetime in lifetimes]),
            np.concatenate([self._extra, np.array([lifetime.extra for lifetime in lifetimes]).T], axis=1),
            np.concatenate([self._own, nothing], axis=1),
            self._rules,
        )

    def fits(self, lifetime: Lifetime, available: Capacity) -> bool:
        """Whether all peaks until `lifetime` ends, its own end included, fit with `lifetime` added."""
        # Of the requests in order of their ends, the last first: the first `first` end later than `lifetime`,
        # the first `there` no earlier. Peaks before index `first` come after its own end, when its pages are
        # free again, so they do not matter.
        first, there = (
            self._minus_steps.searchsorted(-lifetime.steps, side=side) for side in ("left", "right")
        )
        last = np.array([lifetime.steps])
        peaks = np.concatenate([self._taken(np.array([there]), last), self._peaks[:, first:]], axis=1)
        times = np.concatenate([last, -self._minus_steps[first:]])
        grown = -(-(lifetime.known + times) // self._page)
        return _covers(available, peaks + self._grows * grown + np.array(lifetime.extra)[:, None])

    def _taken(self, there: Counts, at: Counts) -> Counts:
        """Pages taken at steps `at`, when the last `there` requests to end are still running.

        Each request is rounded up to a page boundary, which is on the safe side.
        """
        grown = (self._sums[0, there] + there * (at + self._page - 1)) // self._page
        return np.asarray(self._sums[1:, there] + self._grows * grown - self._own_sum, np.int64)


def running_timeline(
    columns: Columns, known: Counts, steps: Counts, own: Counts, rules: Sequence[PageRule]
) -> Timeline:
    """The timeline of the running requests, each with its tokens and its steps to go.

    A sliding window pays for a new page with the page that falls out of it, but only if that page is one of
    its `own`: a page that another request reads as well does not become available.
    """
    page = rules[0].page_size
    allocated = -(-columns[ALLOCATED] // page)
    extra = np.zeros_like(own)
    for c, rule in enumerate(rules):
        if rule.whole(1):
            # Pages that the row has already, its own or the tree's, are not taken again.
            extra[c] = -np.maximum(allocated, -(-columns[FULL_UNTIL] // page))
        else:
            taken = rule.taken(columns[ALLOCATED], known + steps)
            extra[c] = np.maximum(0, np.minimum(taken, rule.held(known + steps) - own[c]))
    return Timeline(known, steps, extra, own, rules)


def steps_to_go(columns: Columns, known: Counts, lengths: OutputLengths, factor: int) -> Counts:
    """Steps until each running request ends, if outputs become `factor` times as long as recent ones."""
    remaining = lengths.remaining(known - columns[PROMPT], factor)
    return np.asarray(np.maximum(np.minimum(columns[LIMIT] - known, remaining), 0), np.int64)


def _covers(available: Capacity, needs: Counts) -> bool:
    """`available.covers` for every column of `needs`."""
    # As in `Capacity.covers`, a pool with less than nothing left covers a need of 0 or less.
    pages = np.maximum(available.pages, 0)[:, None]
    return bool((needs <= pages).all() and (np.array(available.page_bytes) @ needs <= available.bytes).all())

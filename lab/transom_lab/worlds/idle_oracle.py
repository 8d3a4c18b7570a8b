"""No row, token and page is left unused while a waiting request could run: docs/sched.md, by brute force.

The oracle looks at one plan, and asks of every request that it leaves out: why? It walks requests token by
token and page by page, and shares no formula with `transom.sched`. From the memory core it takes the best
offer of a request, which other oracles judge.

A request may be left out for one of the reasons of `Reason`. One of them lasts a bounded time: a plan walks
the radix tree a bounded number of times, and notes of refused requests are dropped in turns. So a need that
has fallen, and a need that is not known yet, is seen some steps later.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from transom.kv.budget import Capacity, PageCounts
from transom.kv.cache import HybridCache, Namespace, Offer
from transom.kv.component_specs import ComponentSpec
from transom.sched.admission import RESUME_PATIENCE, WALKS
from transom.sched.forecast import SPARE, SPARE_SHARE
from transom.sched.plan import Admit, Continue, Plan, SchedulerView
from transom.sched.queue import CLASSES, LOOKUPS
from transom.sched.request import Progress, Running, Waiting
from transom.values import RequestId
from transom_lab.worlds.mixes import first_key, is_state, keeps_everything


class Reason(StrEnum):
    """Why a plan leaves a request out."""

    PLANNED = "is in the plan"
    NO_ROW = "no row is free"
    NO_BUDGET = "the step has no tokens left, or too few to reach the end of a page"
    RETRACTS = "the step retracts"
    STALLED = "a running request lacks a page"
    CLAIMED = "its page is held back for the whole prompt of a request that claims"
    STARVED = "the senior of all is out of patience, and does not fit"
    BEHIND = "a request before it is out of patience, and does not fit"
    SHARES = "it waits for a prefix in flight"
    DOES_NOT_FIT = "it does not fit"
    TURN = "a plan looks at a bounded number of requests, in turns"


class IdleOracle:
    """Owns the tally of reasons, and how long each request has waited for its turn. Mutable."""

    def __init__(self) -> None:
        self.reasons: Counter[Reason] = Counter()
        self._turns: Counter[RequestId] = Counter()
        """Consecutive plans that left a request out only because of an old note."""

    def judge(self, view: SchedulerView, plan: Plan) -> None:
        """Asserts that each request that may run and is not in the plan has a reason."""
        if view.config.target_seconds is not None:
            return  # the budget of a step depends on what its duration was learned to be
        if not len(view.queue) and len(plan.entries) == len(view.running):
            return  # most steps: every request is in the plan
        table = _Table(view, plan)
        table.judge_claim()
        waiting = [state for state in view.queue if view.may_admit(state.progress)]
        for running in view.running:
            assert table.running_reason(running) is not None, ("left out, and could run", running, plan)
        for state, reason in table.reasons(waiting):
            if reason is None and (view.queue.lacks(state) is not None or len(waiting) > WALKS):
                reason = Reason.TURN
                self._turns[state.progress.id] += 1
                turns, most = self._turns[state.progress.id], len(waiting) / LOOKUPS + len(waiting) / WALKS
                assert turns <= 2 + most, ("its turn never came", state, turns, plan)
            else:
                del self._turns[state.progress.id]
            assert reason is not None, ("waits, and could run", state, table.left, plan)
            self.reasons[reason] += 1


class _Table:
    """One plan and what it leaves: rows, tokens, and pages now and up to the horizon."""

    def __init__(self, view: SchedulerView, plan: Plan) -> None:
        self.view, self.plan = view, plan
        self.planned = {_progress(entry).id for entry in plan.entries}
        self.retracted = {state.progress.id for state in plan.retract}
        admitted = [entry for entry in plan.entries if isinstance(entry, Admit)]
        self.rows = view.rows_free + len(plan.retract) - len(admitted)
        self.budget = view.config.chunk_tokens - sum(len(entry.span) for entry in plan.entries)
        self.has_chunk = any(isinstance(e, Admit) or _is_chunk(e) for e in plan.entries)
        self.pages = Pages(view.cache)
        self.free = self._free(admitted)
        self.unclaimed = self._unclaimed(admitted)
        self.left = self._left(admitted)

    # ------------------------------------------------------------ pages that are left

    def _free(self, admitted: Sequence[Admit]) -> Capacity:
        """Pages that are available once every span of the plan has its own."""
        free = self.view.cache.available.more(
            self.view.cache.freed_by([r.holding for r in self.plan.retract])
        )
        for entry in self.plan.entries:
            if isinstance(entry, Continue):
                held = entry.running.holding
                free = free.less(self.pages.new(held.allocated, held.full_until, entry.span.end))
        for one in admitted:
            free = free.less(self.pages.of_start(one.offer, one.span.end))
        return free

    def _unclaimed(self, admitted: Sequence[Admit]) -> Capacity:
        """Pages that are available besides those for the whole prompt of a request that claims."""
        free = self.free
        for one in admitted:
            if self._claims(one.waiting):
                whole = self.pages.of_start(one.offer, one.waiting.progress.length)
                free = free.less(whole).more(self.pages.of_start(one.offer, one.span.end))
        return free

    def _left(self, admitted: Sequence[Admit]) -> Capacity:
        """Pages that running requests do not take before one of them is expected to end.

        Asserts that the requests admitted fit, in the order of the plan. One that claims need not.
        """
        view, pages, left = self.view, self.pages, self.view.cache.available
        expected = Expected(view)
        for running in view.running:
            left = left.less(expected.growth(pages, running))
        self.expected = expected
        others = bool(view.running)
        for one in admitted:
            need = expected.need(pages, one.waiting.progress, one.offer)
            claims = self._claims(one.waiting) or not others
            assert claims or left.covers(need), ("does not fit, and starts", one, left, need, self.plan)
            left, others = left.less(need), True
        return left

    def _claims(self, waiting: Waiting) -> bool:
        """Whether it may start without the estimate: the senior of all, or of a class above another."""
        progress = waiting.progress
        lower = [
            r.progress for r in self.view.running if r.progress.request.priority < progress.request.priority
        ]
        return waiting is self.view.senior or any(other.seniority > progress.seniority for other in lower)

    # ------------------------------------------------------------ reasons

    def judge_claim(self) -> None:
        """Asserts that the plan retracts for the request that claims, if there is one, and not in vain."""
        view, retracted = self.view, [state.progress.id for state in self.plan.retract]
        claim = claim_of(view, self)
        victims = [] if claim is None else [state.progress.id for state in claim.victims]
        assert retracted[: len(victims)] == victims, ("other victims", claim, self.plan)
        if len(retracted) > len(victims):
            assert self._is_short(self.plan.retract[: len(victims)], claim), ("retracts in vain", self.plan)
        if claim is not None and not retracted and claim.waiting.progress.id not in self.planned:
            could = self.rows > 0 and self.budget > 0 and self.free.covers(claim.pages)
            assert not could, ("claims, and could start", claim, self.plan)

    def _is_short(self, victims: Sequence[Running], claim: "Claim | None") -> bool:
        """Whether pages are short for one more token of each running request, besides those claimed."""
        cache = self.view.cache
        free = cache.available.more(cache.freed_by([state.holding for state in victims]))
        free = free.less(claim.pages) if claim is not None else free
        for held in (state.holding for state in self.view.running if state not in victims):
            free = free.less(self.pages.new(held.allocated, held.full_until, held.computed + 1))
        return min(free.pages) < 0 or free.bytes < 0

    def running_reason(self, running: Running) -> Reason | None:
        """Why a running request is not in the plan; None if it could be."""
        held = running.holding
        if running.progress.id in self.planned:
            return Reason.PLANNED
        if running.progress.id in self.retracted:
            return Reason.RETRACTS
        if not self._has_budget(running.progress.length - held.computed):
            return Reason.NO_BUDGET
        if self._lacks_page(running):
            return Reason.STALLED
        if self._lacks_page(running, self.unclaimed):
            return Reason.CLAIMED
        return Reason.RETRACTS if self.retracted else None

    def _has_budget(self, wanted: int) -> bool:
        """Whether a span fits. A second chunk does not end inside a page, unless its request ends there."""
        page = self.view.cache.layout.page_size
        return self.budget >= (min(page, wanted) if self.has_chunk else 1)

    def _lacks_page(self, running: Running, free: Capacity | None = None) -> bool:
        held = running.holding
        return not (free or self.free).covers(
            self.pages.new(held.allocated, held.full_until, held.computed + 1)
        )

    def reasons(self, waiting: Sequence[Waiting]) -> Iterator[tuple[Waiting, Reason | None]]:
        """Each waiting request, in the queue's order, and why it is left out; None if it could run."""
        whole = self._reason_of_all()
        behind = False
        blocked: set[str] = set()
        # Between tenants, the order depends on the requests that the plan looked at, while it had more pages
        # left than at its end. So a request is known to come later only than one of its own tenant.
        view = self.view
        resumed = view.iterations - RESUME_PATIENCE * view.config.patience_steps
        first = list(view.queue.considered(view.may_admit, self.left.covers, resumed))
        order = (*first, *(state for state in waiting if state not in first))
        for state in order:
            planned = state.progress.id in self.planned
            tenant = state.progress.request.tenant
            passes = planned and tenant in blocked and not self._claims(state)
            assert not passes, ("passes one that blocks", state, self.plan)
            if not planned and self._may_not_be_passed(state) and self._reason(state) is not Reason.SHARES:
                blocked.add(tenant)
            reason = Reason.PLANNED if planned else whole or self._reason(state)
            # The budget of this step counts too: another request would take the row that it starts with.
            stays = whole is None and (
                reason in (Reason.DOES_NOT_FIT, Reason.NO_BUDGET) or self._is_noted(state)
            )
            if behind and (stays or reason is None):
                reason = Reason.BEHIND
            behind = behind or (stays and self._may_not_be_passed(state))
            yield state, reason

    def _reason_of_all(self) -> Reason | None:
        if self.rows <= 0:
            return Reason.NO_ROW
        if not self.budget:
            return Reason.NO_BUDGET
        if self.retracted:
            return Reason.RETRACTS
        out = [r for r in self.view.running if r.progress.id not in self.planned]
        if any(self._lacks_page(running) for running in out):
            return Reason.STALLED
        senior = self.view.starved
        if senior is not None and senior.progress.id not in self.planned:
            ones = tuple(1 for _ in self.view.cache.layout.components)
            assert not self.free.covers(ones), ("starves, and could start", senior, self.plan)
            return Reason.STARVED
        return None

    def _reason(self, waiting: Waiting) -> Reason | None:
        cache, progress = self.view.cache, waiting.progress
        namespace = cache.namespace(progress.id, progress.request.salt)
        offer = cache.offers(namespace, progress.tokens(), progress.start_limit)[0]
        if any(self.shares(progress, offer, other) for other in self.in_flight(admitted=True)):
            return Reason.SHARES
        start, page = offer.begin.start, cache.layout.page_size
        if not self._has_budget(progress.length - start):
            return Reason.NO_BUDGET
        # A page of a hit that is copied, and the copy, are both taken for a moment.
        first = self.pages.of_start(offer, min(progress.length, start - start % page + page))
        fits = self.left.covers(self.expected.need(self.pages, progress, offer)) and self.free.covers(first)
        return None if fits else Reason.DOES_NOT_FIT

    def _is_noted(self, waiting: Waiting) -> bool:
        """Whether it did not fit at its last turn, and by that note does not now."""
        lacks = self.view.queue.lacks(waiting)
        return lacks is not None and not self.left.covers(lacks)

    def _may_not_be_passed(self, waiting: Waiting) -> bool:
        view = self.view
        resumes = (
            waiting.progress.outputs and view.iterations - waiting.since >= 4 * view.config.patience_steps
        )
        return bool(resumes) or view.queue.blocks(waiting)

    def in_flight(self, *, admitted: bool) -> Iterator[tuple[Namespace, Progress, int]]:
        """Requests that compute a prefix, and how much of it is published, or will be without a wait."""
        for running in self.view.running:
            computed = running.holding.computed
            published = computed - computed % self.view.cache.layout.page_size
            yield running.holding.namespace, running.progress, published
        for entry in self.plan.entries:
            if admitted and isinstance(entry, Admit):
                yield entry.namespace, entry.waiting.progress, entry.span.start

    def shares(self, progress: Progress, offer: Offer, other: tuple[Namespace, Progress, int]) -> bool:
        """Whether another request will publish tokens of this one that are not cached yet."""
        namespace, known, published = other
        cache = self.view.cache
        if namespace != cache.namespace(progress.id, progress.request.salt):
            return False
        pairs = zip(known.tokens().tolist(), progress.tokens().tolist(), strict=False)
        common = next((at for at, (a, b) in enumerate(pairs) if a != b), min(known.length, progress.length))
        # Only whole pages are published; with states, only some of them can be hit.
        page, reach = cache.layout.page_size, min(common, progress.start_limit)
        reach = min(reach, known.length - known.length % page)
        for kind in cache.layout.components:
            if is_state(kind):
                ends = (end for end in kind.cuts(0, reach) if end % page == 0)
                reach = max(ends, default=0)
        return reach > published and reach - offer.begin.start >= self.view.config.prefix_gain_min


class Claim(NamedTuple):
    """A waiting request that takes rows and pages from `victims`, which are few, or none."""

    waiting: Waiting
    pages: PageCounts
    victims: Sequence[Running]


def claim_of(view: SchedulerView, table: "_Table") -> Claim | None:
    """The claim: of the senior of all if it is out of patience, else of the highest class that has prey."""
    waiting = [state for state in view.queue if view.may_admit(state.progress)]
    if not waiting or view.config.chunk_tokens <= 1:
        return None
    juniors = sorted(view.running, key=lambda state: state.progress.seniority, reverse=True)
    senior = min(waiting, key=lambda state: state.progress.seniority)
    starved = view.iterations - senior.since > view.config.patience_steps and all(
        state.progress.seniority > senior.progress.seniority for state in juniors
    )
    claimant, prey = (senior, _lower(juniors, senior)) if starved else _of_class(waiting, juniors)
    if claimant is None:
        return None
    progress = claimant.progress
    namespace = view.cache.namespace(progress.id, progress.request.salt)
    offer = view.cache.offers(namespace, progress.tokens(), progress.start_limit)[0]
    if not starved and any(table.shares(progress, offer, other) for other in table.in_flight(admitted=False)):
        return None
    if starved and not prey and view.rows_free == 0:
        prey = juniors[:1]
    pages = table.pages.of_start(offer, progress.length)
    for count in range(len(prey) + 1):
        freed = view.cache.freed_by([state.holding for state in prey[:count]])
        if view.rows_free + count > 0 and view.cache.available.more(freed).covers(pages):
            return Claim(claimant, pages, prey[:count])
    return None


def _of_class(
    waiting: Sequence[Waiting], juniors: Sequence[Running]
) -> tuple[Waiting | None, Sequence[Running]]:
    """The senior of the highest class of which it has prey, and the prey."""
    classes = sorted({state.progress.request.priority for state in waiting}, reverse=True)[:CLASSES]
    for priority in classes:
        of_class = [state for state in waiting if state.progress.request.priority == priority]
        senior = min(of_class, key=lambda state: state.progress.seniority)
        if prey := _lower(juniors, senior):
            return senior, prey
    return None, ()


def _lower(juniors: Sequence[Running], claimant: Waiting) -> Sequence[Running]:
    """The running requests of lower classes that are junior, the most junior of the lowest class first."""
    own = claimant.progress
    below = [
        state
        for state in juniors
        if state.progress.request.priority < own.request.priority and state.progress.seniority > own.seniority
    ]
    return sorted(below, key=lambda state: state.progress.request.priority)


class Expected:
    """What the estimate of admission expects: outputs, the horizon, and pages. Counted one by one."""

    def __init__(self, view: SchedulerView) -> None:
        self.view = view
        lengths = sorted(int(length) for length in view.outputs.lengths)
        # An output longer than all that have ended is expected to double.
        lengths += [2 * r.progress.outputs for r in view.running if r.progress.outputs > lengths[-1]]
        self.lengths = sorted(lengths)
        self.steps = {r.progress.id: self._steps(r.progress) for r in view.running}
        self.horizon = max(1, sum(self.steps.values()) // max(1, len(self.steps)) ** 2)

    def _remaining(self, outputs: int) -> int:
        longer = [length for length in self.lengths if length > outputs]
        if not longer:
            return max(1, outputs)
        return longer[-(-3 * len(longer) // 4) - 1] - outputs

    def _steps(self, progress: Progress) -> int:
        return max(0, min(progress.kv_limit - progress.length, self._remaining(progress.outputs)))

    def growth(self, pages: "Pages", running: Running) -> PageCounts:
        """Pages that a running request takes up to the horizon."""
        progress, held = running.progress, running.holding
        end = progress.length + min(self.steps[progress.id], self.horizon)
        found = []
        for number, kind in enumerate(pages.kinds):
            has = max(held.allocated, held.full_until) if pages.keeps_all(number) else held.allocated
            has = min(has, end)
            peak = pages.peak(
                kind, progress.length, end, progress.length - has, self.view.config.chunk_tokens
            )
            found.append(
                min(max(0, peak - pages.most(kind, has)), pages.count(kind, end) - pages.count(kind, has))
            )
        return tuple(found)

    def need(self, pages: "Pages", progress: Progress, offer: Offer) -> PageCounts:
        """Pages that must be left for a request that starts with `offer`."""
        steps = self._remaining(progress.outputs)
        if progress.outputs and self.view.running:
            steps = min(steps, self.horizon)
        end = min(progress.kv_limit, progress.length + steps)
        found = []
        for number, taken in enumerate(pages.of_start(offer, end)):
            kind, size = pages.kinds[number], pages.layout.pages[number]
            ahead = progress.length - offer.begin.start
            peak = pages.peak(kind, progress.length, end, ahead, self.view.config.chunk_tokens)
            spare = min(SPARE * peak, size // SPARE_SHARE)
            found.append(min(taken, max(pages.most(kind, end), spare)))
        return tuple(found)


class Pages:
    """Counts pages of one request, by component, token by token."""

    def __init__(self, cache: HybridCache) -> None:
        self.layout = cache.layout
        self.kinds = cache.layout.components
        self.size = cache.layout.page_size

    def keeps_all(self, number: int) -> bool:
        return keeps_everything(self.kinds[number], self.layout.context)

    def count(self, kind: ComponentSpec, end: int) -> int:
        return 1 if is_state(kind) else -(-end // self.size)

    def most(self, kind: ComponentSpec, end: int) -> int:
        return most_held(kind, self.size, end)

    def peak(self, kind: ComponentSpec, known: int, end: int, ahead: int, chunk: int) -> int:
        """The most pages held if `ahead` of the known tokens are computed in chunks, then one at a time."""
        first = self.most(kind, known) + self.count(kind, max(0, min(ahead, chunk)))
        return max(self.most(kind, end), min(self.count(kind, known), first))

    def new(self, allocated: int, full_until: int, end: int) -> PageCounts:
        """Pages that a request with pages for `allocated` tokens takes to have them for `end`."""
        found = []
        for number, kind in enumerate(self.kinds):
            has = max(allocated, full_until) if self.keeps_all(number) else allocated
            found.append(0 if is_state(kind) else max(0, self.count(kind, end) - self.count(kind, has)))
        return tuple(found)

    def of_start(self, offer: Offer, end: int) -> PageCounts:
        """Pages that a request takes if it starts with `offer` and grows to `end`, with those it pins."""
        found = []
        for number, kind in enumerate(self.kinds):
            begin = offer.begin
            shared = max(begin.start, begin.full_until) if self.keeps_all(number) else begin.start
            own = 1 if is_state(kind) else max(0, self.count(kind, end) - shared // self.size)
            found.append(own + offer.pins[number])
        return tuple(found)


@lru_cache(maxsize=1 << 16)
def most_held(kind: ComponentSpec, size: int, end: int) -> int:
    """The most pages at once on the way to `end`: the new token's, and the window of the last boundary."""
    if is_state(kind):
        return 1
    most = 0
    for token in range(end):
        boundary = token // size * size
        most = max(most, token // size + 1 - first_key(kind, boundary) // size)
    return most


def _progress(entry: Continue | Admit) -> Progress:
    return entry.running.progress if isinstance(entry, Continue) else entry.waiting.progress


def _is_chunk(entry: Continue) -> bool:
    return entry.running.holding.computed + 1 != entry.running.progress.length

"""Plans one step: arithmetic over exact counters. Changes nothing.

The budget and the pages of a step are handed out in this order:

1. A row, one token and pages are held back for a waiting request that may claim them (`preemption`).
2. One token and its page are held back for the oldest running request, if that is still in its prefill.
3. Decodes, senior first.
4. Chunks of running requests, senior first.
5. Admissions.

The oldest running request is the senior one. Decodes and the oldest running request may retract their juniors
to get a page. Chunks of all other requests wait for pages: a retraction for a chunk would throw away
computed tokens only to compute different tokens sooner.
"""

from collections.abc import Sequence

from transom.kv.budget import PageCounts
from transom.sched.admission import AdmissionBuilder, admit_claimant, plan_admissions
from transom.sched.draft import PlanBuilder, chunk_end, fit_end, is_cut, is_decode
from transom.sched.plan import Continue, Plan, SchedulerView
from transom.sched.preemption import hold_back_for_claim
from transom.sched.request import Running, Span
from transom.sched.step_cost import TimeBudget, time_left


def plan(view: SchedulerView) -> Plan:
    """Plans one step."""
    draft = PlanBuilder(view)
    admissions = AdmissionBuilder(draft)
    if len(view.queue):
        hold_back_for_claim(draft, admissions.waits_for_prefix)
    if view.running:
        _plan_decodes(draft, view.running)
    draft.time_budget = _time_budget(draft)  # after the decodes, which it subtracts
    for running in draft.prefills:
        budget = draft.chunk_budget(running.holding.computed)
        if budget == 0:
            break
        _plan_chunk(draft, running, budget)
    has_claim = draft.claim is not None  # a request senior to it may have taken what was held back
    if has_claim and not admit_claimant(admissions):
        return draft.plan()
    # A running request that lacks a page comes before waiting requests.
    if draft.stalled or draft.retracted:
        return draft.plan()
    # A starved request that cannot claim waits for pages, and keeps all others out.
    starved = None if has_claim else view.starved
    if starved is None or admissions.admit_first(starved):
        plan_admissions(admissions)
    return draft.plan()


def _time_budget(draft: PlanBuilder) -> TimeBudget | None:
    """The time left for chunks, if there is a target and a client waits for a decode in this step."""
    target = draft.view.config.target_seconds
    if target is None or not draft.entries:
        return None
    decodes = [entry.span.start for entry in draft.entries]
    return time_left(decodes, draft.view.cost, target, draft.view.cache.layout.page_size)


def _plan_decodes(draft: PlanBuilder, running: Sequence[Running]) -> None:
    """Plans every decode; all other running requests are in their prefill."""
    held_back = _hold_back_for_oldest(draft, running)
    prefills: list[Running] = []
    # This loop runs over hundreds of requests in every step. Most decodes stay inside their last page and
    # need no call. If every request can have a page in every component, pages are counted once, at the end.
    plenty = draft.available.covers((len(running),) * len(draft.available.pages))
    decodes: list[Running] = []
    growing: list[Running] = []
    for position, state in enumerate(running):
        holding = state.holding
        end = holding.computed + 1
        if end != state.progress.length:
            prefills.append(state)
        elif len(decodes) == draft.budget or (draft.retracted_ids and holding.request in draft.retracted_ids):
            continue
        elif end <= holding.allocated:
            decodes.append(state)
        elif plenty:
            growing.append(state)
            decodes.append(state)
        elif _allocate_token(draft, state, position):
            decodes.append(state)
    draft.add_decodes(decodes)
    if growing:
        growths = [draft.growth(state, state.holding.computed + 1) for state in growing]
        draft.allocate(tuple(map(sum, zip(*growths, strict=True))))
    if held_back is not None:
        draft.budget += 1
        draft.free(held_back)
    # Decodes may have retracted requests that were seen as prefills before.
    draft.prefills = [state for state in prefills if state.progress.id not in draft.retracted_ids]


def _hold_back_for_oldest(draft: PlanBuilder, running: Sequence[Running]) -> PageCounts | None:
    """Holds back one token of budget, and its page, for the chunk of an oldest request in its prefill.

    This is the liveness rule: the oldest running request is part of every step, so it ends. Its chunk is
    planned after the decodes, and would find neither budget nor pages otherwise.
    """
    # The first that is not retracted for a claim.
    position = next(
        (n for n, state in enumerate(running) if state.progress.id not in draft.retracted_ids), None
    )
    if position is None or is_decode(running[position]):
        return None
    oldest = running[position]
    need = draft.growth(oldest, oldest.holding.computed + 1)
    if not draft.retract_for(need, position):
        return None
    draft.budget -= 1
    draft.allocate(need)
    return need


def _allocate_token(draft: PlanBuilder, running: Running, position: int) -> bool:
    """Allocates the pages for one more token. False if they are not available, even after retractions."""
    need = draft.growth(running, running.holding.computed + 1)
    if not draft.retract_for(need, position):
        draft.stalled += 1
        return False
    draft.allocate(need)
    return True


def _plan_chunk(draft: PlanBuilder, running: Running, budget: int) -> None:
    cache = draft.view.cache
    page = cache.layout.page_size
    start, known = running.holding.computed, running.progress.length
    end = cache.stop(start, chunk_end(start, known, budget, page))
    end = fit_end(start, end, page, lambda end: draft.pages_short(draft.growth(running, end)))
    if end == start:
        draft.stalled += 1
    # A second chunk that would be cut inside a page is left for the next step. It lacks budget and not pages,
    # so it does not count as stalled.
    elif not (draft.chunks and is_cut(end, known, page)):
        draft.allocate(draft.growth(running, end))
        draft.add_chunk(Continue(running, Span(start, end)))

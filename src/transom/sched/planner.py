"""The plan of a step: arithmetic over exact counters. It changes nothing.

Order within a step: a token of budget for a senior that waited too long; a place for the lead's next
token; decodes, senior first; chunks, senior first, the lead's among them; admissions. The lead is the
senior running request. It, and every decode, may have juniors retracted; chunks of others wait for room.
"""

from collections.abc import Sequence

from transom.sched.admission import plan_admissions
from transom.sched.draft import PlanBuilder, is_decode
from transom.sched.pacing import Pace, pace_beside
from transom.sched.plan import Continue, Plan, SchedulerView
from transom.sched.request import Running, Span
from transom.sched.spans import PageCounts, chunk_end, fit_end, is_cut


def plan(view: SchedulerView) -> Plan:
    """Plans one step."""
    draft = PlanBuilder(view)
    withheld = int(view.urgent is not None and view.rows_free > 0 and draft.budget > 1)
    draft.budget -= withheld
    if view.running:
        _plan_decodes(draft, view.running)
    draft.pace = _pace(draft)
    _plan_chunks(draft)
    draft.budget += withheld
    if not draft.parked and not draft.retracted:  # who lacks a page now comes before who has none
        plan_admissions(draft)
    return draft.plan()


def _pace(draft: PlanBuilder) -> Pace | None:
    """None if nobody waits for this step's tokens, or nobody minds how long it takes."""
    target = draft.view.limits.target_seconds
    if target is None or not draft.spans:
        return None
    decodes = [intent.span.start for intent in draft.spans]
    return pace_beside(decodes, draft.view.cost, target, draft.view.cache.layout.page_size)


def _plan_decodes(draft: PlanBuilder, running: Sequence[Running]) -> None:
    """Plans every decode; the others are still in their prefill."""
    reserve = _secure_lead(draft, running[0])
    prefills: list[Running] = []
    plenty = draft.room.covers((len(running),) * len(draft.room.pages))
    decodes: list[Running] = []
    taking: list[Running] = []
    for position, state in enumerate(running):
        holding = state.holding
        end = holding.computed + 1
        if end != state.progress.length:
            prefills.append(state)
        elif len(decodes) == draft.budget or (draft.gone and holding.request in draft.gone):
            continue
        elif end <= holding.allocated:
            decodes.append(state)
        elif plenty:
            taking.append(state)
            decodes.append(state)
        elif _has_page(draft, state, position):
            decodes.append(state)
    draft.decode(decodes)
    if taking:  # a page each is to be had, so they are counted once and together
        draft.take(_growth_by_one(draft, taking))
    if reserve is not None:
        draft.budget += 1
        draft.give(reserve)
    draft.prefills = [state for state in prefills if state.progress.id not in draft.gone]


def _growth_by_one(draft: PlanBuilder, decodes: Sequence[Running]) -> PageCounts:
    growths = [draft.growth(state, state.holding.computed + 1) for state in decodes]
    return tuple(map(sum, zip(*growths, strict=True)))


def _secure_lead(draft: PlanBuilder, lead: Running) -> PageCounts | None:
    """Sets aside one token of budget, and its page, for the chunk of a lead in its prefill."""
    if is_decode(lead):
        return None
    need = draft.growth(lead, lead.holding.computed + 1)
    if not draft.make_room(need, 0):
        return None
    draft.budget -= 1
    draft.take(need)
    return need


def _has_page(draft: PlanBuilder, running: Running, position: int) -> bool:
    """Whether the page that a decode needs is to be had: then it is taken."""
    need = draft.growth(running, running.holding.computed + 1)
    if not draft.make_room(need, position):
        draft.parked += 1
        return False
    draft.take(need)
    return True


def _plan_chunks(draft: PlanBuilder) -> None:
    for running in draft.prefills:
        budget = draft.chunk_budget(running.holding.computed)
        if budget == 0:
            return
        _plan_chunk(draft, running, budget)


def _plan_chunk(draft: PlanBuilder, running: Running, budget: int) -> None:
    cache = draft.view.cache
    page = cache.layout.page_size
    start, known = running.holding.computed, running.progress.length
    end = cache.stop(start, chunk_end(start, known, budget, page))
    end = fit_end(start, end, page, lambda end: draft.lacks(draft.growth(running, end)))
    if end == start:
        draft.parked += 1
    elif not (draft.chunks and is_cut(end, known, page)):
        draft.take(draft.growth(running, end))
        draft.chunk(Continue(running, Span(start, end)))

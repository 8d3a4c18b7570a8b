"""The plan of a step: arithmetic over exact counters. It changes nothing.

Order within a step: a token of budget for a senior that waited too long; a place for the lead's next
token; decodes, senior first; chunks, senior first, the lead's among them; admissions. The lead is the
senior running request. It, and every decode, may have juniors retracted; chunks of others wait for room.
"""

from collections.abc import Sequence

from transom.sched.admission import plan_admissions
from transom.sched.draft import Draft
from transom.sched.intents import Continue, Plan, Situation
from transom.sched.spans import Pages, chunk_end, fit_end, is_cut
from transom.sched.states import Running, Span


def plan(situation: Situation) -> Plan:
    """Plans one step."""
    draft = Draft(situation)
    withheld = int(situation.is_urgent and situation.rows_free > 0 and draft.budget > 1)
    draft.budget -= withheld
    prefills = _plan_decodes(draft, situation.running)
    _plan_chunks(draft, prefills)
    draft.budget += withheld
    if not draft.parked and not draft.retracted:  # who lacks a page now comes before who has none
        plan_admissions(draft)
    return draft.plan()


def _is_decode(running: Running) -> bool:
    return running.holding.computed + 1 == running.progress.length


def _plan_decodes(draft: Draft, running: Sequence[Running]) -> list[Running]:
    """Plans every decode; returns the requests still in their prefill."""
    reserve = _secure_lead(draft, running[0]) if running else None
    prefills: list[Running] = []
    for position, state in enumerate(running):
        if _is_decode(state):
            _plan_decode(draft, state, position)
        else:
            prefills.append(state)
    if reserve is not None:
        draft.budget += 1
        draft.give(reserve)
    return [state for state in prefills if state.progress.id not in draft.gone]


def _secure_lead(draft: Draft, lead: Running) -> Pages | None:
    """Sets aside one token of budget, and its page, for the chunk of a lead in its prefill."""
    if _is_decode(lead):
        return None
    need = draft.growth(lead, lead.holding.computed + 1)
    if not draft.make_room(need, 0):
        return None
    draft.budget -= 1
    draft.take(need)
    return need


def _plan_decode(draft: Draft, running: Running, position: int) -> None:
    if draft.budget == 0 or (draft.gone and running.progress.id in draft.gone):
        return
    holding = running.holding
    end = holding.computed + 1
    if end > holding.allocated:
        need = draft.growth(running, end)
        if not draft.make_room(need, position):
            draft.parked += 1
            return
        draft.take(need)
    draft.add(Continue(running, Span(end - 1, end)))


def _plan_chunks(draft: Draft, prefills: Sequence[Running]) -> None:
    for running in prefills:
        if draft.budget == 0:
            return
        _plan_chunk(draft, running)


def _plan_chunk(draft: Draft, running: Running) -> None:
    cache = draft.situation.cache
    page = cache.layout.page_size
    start, known = running.holding.computed, running.progress.length
    end = cache.stop(start, chunk_end(start, known, draft.budget, page))
    end = fit_end(start, end, page, lambda end: draft.lacks(draft.growth(running, end)))
    if end == start:
        draft.parked += 1
    elif not (draft.chunks and is_cut(end, known, page)):
        draft.take(draft.growth(running, end))
        draft.add(Continue(running, Span(start, end)))
        draft.chunks += 1

"""The plan under construction: the token budget and the pages that are left, spans, retractions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from transom.kv.budget import Capacity, PageCounts
from transom.sched.plan import Admit, Continue, Plan, SchedulerView
from transom.sched.queue import Refused
from transom.sched.request import Running, Waiting, token_span
from transom.sched.retraction import choose_victims, price_per_byte
from transom.sched.step_cost import TimeBudget
from transom.values import RequestId


def is_decode(running: Running) -> bool:
    """Whether all tokens but the last known one are computed."""
    return running.holding.computed + 1 == running.progress.length


class Claim(NamedTuple):
    """A row, one token of budget and `pages` are held back in this step for `waiting`.

    victims  whether running requests were retracted for it
    hidden   pages of its hit that running requests may read as well. When these are retracted, the pages
             become available and are taken again by the hit, so they must not be counted as available.
    """

    waiting: Waiting
    pages: PageCounts
    victims: bool
    hidden: PageCounts


@dataclass(slots=True)
class PlanBuilder:
    """Owns the counters of one plan under construction. Mutable, lives no longer than the call of `plan`."""

    view: SchedulerView
    budget: int = field(init=False)
    """Tokens that the step may still compute."""
    available: Capacity = field(init=False)
    """Pages that the step may still allocate."""
    entries: list[Continue | Admit] = field(default_factory=list)
    """Decodes first, then chunks of running requests, then admissions."""
    prefills: list[Running] = field(default_factory=list)
    """Running requests with more than one token to compute."""
    retracted: list[Running] = field(default_factory=list)
    retracted_ids: set[RequestId] = field(default_factory=set)
    claim: Claim | None = None
    refused: list[Refused] = field(default_factory=list)
    stalled: int = 0
    """Running requests that are left out of this step because no page is available."""
    chunks: int = 0
    """Entries that are not decodes. `is_cut` asks for it: only the first chunk may end inside a page."""
    time_budget: TimeBudget | None = None
    """Set after the decodes are planned, if there is a target for the duration of steps with decodes."""

    def __post_init__(self) -> None:
        self.budget = self.view.config.chunk_tokens
        self.available = self.view.cache.available

    def plan(self) -> Plan:
        return Plan(tuple(self.retracted), tuple(self.entries), tuple(self.refused))

    # ------------------------------------------------------------ spans

    def chunk_budget(self, start: int) -> int:
        """The most tokens that a chunk from `start` may have."""
        if self.time_budget is None:
            return self.budget
        return self.time_budget.longest_chunk(start, self.budget)

    def add_chunk(self, entry: Continue | Admit) -> None:
        self.entries.append(entry)
        self.chunks += 1
        self.budget -= len(entry.span)
        if self.time_budget is not None:
            self.time_budget.spend(entry.span)
        assert self.budget >= 0, (self.budget, entry)

    def add_decodes(self, running: Sequence[Running]) -> None:
        self.entries += [Continue(state, token_span(state.holding.computed)) for state in running]
        self.budget -= len(running)

    # ------------------------------------------------------------ pages

    def allocate(self, need: PageCounts) -> None:
        self.available = self.available.less(need)

    def free(self, gain: PageCounts) -> None:
        self.available = self.available.more(gain)

    def pages_short(self, need: PageCounts) -> int:
        """Pages by which a span must be shorter; 0 or less if `need` is available."""
        return self.available.lacks(need)

    def growth(self, running: Running, end: int) -> PageCounts:
        """Pages that a running request allocates to grow to `end` tokens."""
        return self.view.cache.growth(running.holding, end)

    def release_claim(self) -> Claim:
        """Gives back what is held back for the claim."""
        claim = self.claim
        assert claim is not None
        self.claim = None
        self.budget += 1
        self.free(claim.pages)
        return claim

    # ------------------------------------------------------------ retraction

    def retract_for(self, need: PageCounts, position: int) -> bool:
        """Whether `need` is available, if necessary after retracting requests.

        Only juniors of the running request at `position` are retracted, so that the oldest running request
        always gets its page and two requests cannot retract each other.
        """
        if self.pages_short(need) <= 0:
            return True
        running = self.view.running[position]
        if self.claim is not None and running.progress.seniority < self.claim.waiting.progress.seniority:
            self.release_claim()  # the claim is junior to this request
            return self.retract_for(need, position)
        # Backwards from the most junior one, down to the one after `position`.
        juniors = [r for r in self.view.running[:position:-1] if r.progress.id not in self.retracted_ids]
        victims = choose_victims(
            lambda gain: self.available.more(gain).covers(need),
            juniors,
            freed_by=self.freed_by,
            price=self._price,
        )
        if not victims:
            is_oldest = all(state.progress.id in self.retracted_ids for state in self.view.running[:position])
            if self.claim is None or not is_oldest:
                return False
            # The oldest running request is part of every step; the claim waits for the next one.
            self.release_claim()
            return self.retract_for(need, position)
        self.retract(victims)
        return True

    def retract(self, victims: Sequence[Running]) -> None:
        # `commit` retracts before it allocates, so the plan may count the victims' pages as free.
        self.free(self.freed_by(victims))
        self.retracted += victims
        self.retracted_ids.update(victim.progress.id for victim in victims)

    def freed_by(self, victims: Sequence[Running]) -> PageCounts:
        """Pages that retracting `victims` frees, in addition to the pages of the earlier victims.

        A page shared by an earlier victim and one of these is freed only once both are retracted, so the two
        sets are counted together.
        """
        cache = self.view.cache
        before = cache.freed_by([r.holding for r in self.retracted])
        after = cache.freed_by([r.holding for r in (*self.retracted, *victims)])
        return tuple(a - b for a, b in zip(after, before, strict=True))

    def _price(self, running: Running, gain: PageCounts) -> float:
        """Tokens to recompute per byte freed. Pages that other requests read stay, and cost nothing."""
        layout = self.view.cache.layout
        # Recomputing a token rebuilds it in all components, so the component that loses most decides.
        recompute = min(max(gain) * layout.page_size, running.holding.computed)
        # Without a budget, pools do not compete for bytes, and every page counts the same.
        page_bytes = layout.page_bytes or (1,) * len(gain)
        return price_per_byte(gain, page_bytes, recompute)


# ---------------------------------------------------------------- lengths of chunks


def chunk_end(start: int, known: int, budget: int, page_size: int) -> int:
    """The end of a chunk from `start` within `budget` tokens; `start` if there is no budget.

    A chunk that does not reach the last known token ends on a page boundary, so that each chunk publishes
    whole pages. If the budget does not reach a boundary, the chunk takes all of it, and the next chunk
    returns to the boundaries.
    """
    end = min(known, start + budget)
    aligned = end - end % page_size
    return aligned if end < known and aligned > start else end


def is_cut(end: int, known: int, page_size: int) -> bool:
    """Whether a chunk ends early and inside a page. It is worth that only if the step has no other chunk."""
    return end < known and end % page_size != 0


def fit_end(start: int, end: int, page_size: int, pages_short: Callable[[int], int]) -> int:
    """The furthest end up to `end` with enough pages, so that `pages_short(end)` is 0 or less; else `start`.

    Each round steps back by the pages that were missing.
    """
    while end > start:
        short = pages_short(end)
        if short <= 0:
            return end
        # A page boundary, so that no page is allocated for a part of it. It may lie before `start`.
        end = (-(-end // page_size) - short) * page_size
    return start

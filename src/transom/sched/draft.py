"""What one call of `plan` has decided so far: budget and pages left, spans, retractions."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from transom.kv.budget import Capacity
from transom.sched.pacing import Pace
from transom.sched.plan import Admit, Continue, Plan, SchedulerView
from transom.sched.request import Running, token_span
from transom.sched.retraction import choose_victims, price_per_byte
from transom.sched.spans import PageCounts
from transom.values import RequestId


def is_decode(running: Running) -> bool:
    """Whether all but the last known token are computed."""
    return running.holding.computed + 1 == running.progress.length


@dataclass(slots=True)
class PlanBuilder:
    """Owns the counters of a plan in the making. Mutable, lives no longer than the call."""

    view: SchedulerView
    budget: int = field(init=False)
    room: Capacity = field(init=False)
    spans: list[Continue | Admit] = field(default_factory=list)
    prefills: list[Running] = field(default_factory=list)
    """Running requests with more than one token to compute."""
    retracted: list[Running] = field(default_factory=list)
    gone: set[RequestId] = field(default_factory=set)
    parked: int = 0
    """Running requests that get no page in this step."""
    chunks: int = 0
    pace: Pace | None = None
    """Set once decodes are planned, if chunks must be short for their sake."""

    def __post_init__(self) -> None:
        self.budget = self.view.limits.chunk_tokens
        self.room = self.view.cache.available

    def plan(self) -> Plan:
        return Plan(tuple(self.retracted), tuple(self.spans))

    def chunk_budget(self, start: int) -> int:
        """Tokens that a chunk from `start` may have."""
        return self.budget if self.pace is None else self.pace.most(start, self.budget)

    def chunk(self, intent: Continue | Admit) -> None:
        self.spans.append(intent)
        self.chunks += 1
        self.budget -= len(intent.span)
        if self.pace is not None:
            self.pace.spend(intent.span)
        assert self.budget >= 0, (self.budget, intent)

    def decode(self, running: Sequence[Running]) -> None:
        self.spans += [Continue(state, token_span(state.holding.computed)) for state in running]
        self.budget -= len(running)

    def take(self, need: PageCounts) -> None:
        self.room = self.room.less(need)

    def give(self, gain: PageCounts) -> None:
        self.room = self.room.more(gain)

    def lacks(self, need: PageCounts) -> int:
        """Pages by which a span must be shorter; 0 or less when `need` fits."""
        return self.room.lacks(need)

    def growth(self, running: Running, end: int) -> PageCounts:
        return self.view.cache.growth(running.holding, end)

    def make_room(self, need: PageCounts, position: int) -> bool:
        """Whether `need` fits, if need be by retracting juniors of the running request at `position`."""
        if self.lacks(need) <= 0:
            return True
        juniors = [r for r in self.view.running[:position:-1] if r.progress.id not in self.gone]
        victims = choose_victims(
            lambda gain: self.room.more(gain).covers(need),
            juniors,
            releases=self._gain,
            price=self._price,
        )
        if not victims:
            return False
        self.give(self._gain(victims))
        self.retracted += victims
        self.gone.update(victim.progress.id for victim in victims)
        return True

    def _gain(self, victims: Sequence[Running]) -> PageCounts:
        """Pages that come to be had when `victims` go too, beyond those of earlier victims."""
        cache = self.view.cache
        before = cache.freed_by([r.holding for r in self.retracted])
        after = cache.freed_by([r.holding for r in (*self.retracted, *victims)])
        return tuple(a - b for a, b in zip(after, before, strict=True))

    def _price(self, running: Running, gain: PageCounts) -> float:
        """What others read too stays, and need not be computed again."""
        cache = self.view.cache
        lost = max(gain) * cache.layout.page_size
        sizes = cache.layout.page_bytes or (1,) * len(gain)
        return price_per_byte(gain, sizes, min(lost, running.holding.computed))

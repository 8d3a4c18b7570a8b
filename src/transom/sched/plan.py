"""What a plan looks at, and what it says."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from transom.kv.cache import HybridCache, Namespace, Offer
from transom.sched.config import SchedulerConfig
from transom.sched.output_lengths import OutputLengths
from transom.sched.request import Running, Span, Waiting
from transom.sched.running import Columns
from transom.sched.step_cost import StepCost
from transom.values import RequestId

CONSIDERED = 32
"""Waiting requests looked at in one plan."""


@dataclass(frozen=True, slots=True)
class SchedulerView:
    """All that a plan looks at.

    waiting those to be looked at, in this order; `firm` are those whom nobody after them may pass
    senior  of all that wait
    running senior first; `columns` has a column for each
    cost    of steps, as far as it is known
    """

    cache: HybridCache
    limits: SchedulerConfig
    iterations: int
    waiting: Sequence[Waiting]
    firm: frozenset[RequestId]
    senior: Waiting | None
    running: Sequence[Running]
    columns: Columns
    outputs: OutputLengths
    cost: StepCost

    @property
    def rows_free(self) -> int:
        """Requests that may be admitted beside those that run."""
        return min(self.limits.max_running, self.cache.layout.rows) - len(self.running)

    @property
    def urgent(self) -> Waiting | None:
        """The senior of all, if it waits, and has waited longer than patience allows."""
        senior = self.senior
        if senior is None or self.iterations - senior.since <= self.limits.patience_steps:
            return None
        first = not self.running or senior.progress.seniority < self.running[0].progress.seniority
        return senior if first else None


class Continue(NamedTuple):
    """A running request computes `span` next. A tuple, as hundreds are made for a step."""

    running: Running
    span: Span


@dataclass(frozen=True, slots=True)
class Admit:
    """A waiting request begins with `offer` and computes `span` at once."""

    waiting: Waiting
    namespace: Namespace
    offer: Offer
    span: Span


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do in one step: first `retract`, then `spans`. Without spans it is an idle step."""

    retract: tuple[Running, ...]
    spans: tuple[Continue | Admit, ...]

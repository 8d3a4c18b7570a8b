"""The input of a plan, `SchedulerView`, and its output, `Plan`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from transom.kv.cache import HybridCache, Namespace, Offer
from transom.sched.config import SchedulerConfig
from transom.sched.output_lengths import OutputLengths
from transom.sched.queue import MayAdmit, Queue, Refused
from transom.sched.request import Running, Span, Waiting
from transom.sched.running import Columns
from transom.sched.step_cost import StepCost


@dataclass(frozen=True, slots=True)
class SchedulerView:
    """Everything that a plan reads.

    queue         the waiting requests, of which those that `may_admit` allows may start
    senior        the senior of them
    class_seniors the senior of each priority, the highest priority first
    running       senior first; `columns` has a column for each of them
    lowest_class  the lowest priority of a running request
    cost          of steps, as far as it has been learned
    """

    cache: HybridCache
    config: SchedulerConfig
    iterations: int
    queue: Queue
    may_admit: MayAdmit
    senior: Waiting | None
    class_seniors: Sequence[Waiting]
    running: Sequence[Running]
    lowest_class: int
    columns: Columns
    outputs: OutputLengths
    cost: StepCost

    @property
    def rows_free(self) -> int:
        """Requests that may be admitted in addition to the running ones."""
        return min(self.config.max_running, self.cache.layout.rows) - len(self.running)

    @property
    def starved(self) -> Waiting | None:
        """The senior of all requests, if it waits and has waited longer than patience allows."""
        senior = self.senior
        if senior is None or self.iterations - senior.since <= self.config.patience_steps:
            return None
        # Seniority counts, not time: while a running request is senior to it, that one ends first.
        first = not self.running or senior.progress.seniority < self.running[0].progress.seniority
        return senior if first else None


class Continue(NamedTuple):
    """Entry of a plan: a running request computes `span` next.

    A tuple and not a dataclass, because each step makes hundreds.
    """

    running: Running
    span: Span


@dataclass(frozen=True, slots=True)
class Admit:
    """Entry of a plan: a waiting request starts with `offer` and computes `span` at once."""

    waiting: Waiting
    namespace: Namespace
    offer: Offer
    span: Span


@dataclass(frozen=True, slots=True)
class Plan:
    """One step: first `retract`, then `entries`. A plan without entries is an idle step."""

    retract: tuple[Running, ...]
    entries: tuple[Continue | Admit, ...]
    refused: tuple[Refused, ...] = ()
    """Waiting requests that do not fit, which `commit` notes, so that no plan looks at them in vain again."""

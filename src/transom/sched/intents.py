"""What a plan looks at, and what it says."""

from collections.abc import Sequence
from dataclasses import dataclass

from transom.kv.cache import HybridCache, Namespace, Offer
from transom.sched.limits import Limits
from transom.sched.states import Running, Span, Waiting


@dataclass(frozen=True, slots=True)
class Situation:
    """All that a plan looks at. `waiting` and `running` are senior first."""

    cache: HybridCache
    limits: Limits
    turns: int
    waiting: Sequence[Waiting]
    running: Sequence[Running]
    outputs_expected: float

    @property
    def rows_free(self) -> int:
        """Requests that may be admitted beside those that run."""
        return min(self.limits.max_running, self.cache.layout.rows) - len(self.running)

    @property
    def is_urgent(self) -> bool:
        """Whether the senior of all waits, and has waited longer than patience allows."""
        if not self.waiting:
            return False
        senior = self.waiting[0]
        first = not self.running or senior.progress.seniority < self.running[0].progress.seniority
        return first and self.turns - senior.since > self.limits.patience_steps


@dataclass(frozen=True, slots=True)
class Continue:
    """A running request computes `span` next."""

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

"""What the scheduler has done so far, in numbers that only grow, and how much it has in hand."""

from dataclasses import dataclass, field

from transom.sched.states import IdleReason


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """A snapshot. Tokens are of all requests since the start."""

    running: int
    waiting: int
    finished: int
    prompt_tokens: int
    """Of requests admitted at least once."""
    cached_tokens: int
    """Prompt tokens found computed at first admissions."""
    computed_tokens: int
    """Positions computed by steps, recomputation included."""
    generated_tokens: int
    retractions: int
    recomputed_tokens: int
    """Positions computed again after a retraction whose pages were needed."""
    repaired_tokens: int
    """Positions computed for their windows only: the other components had them."""
    steps: int
    spans: int
    deferred_spans: int
    """Planned spans dropped at commit: admissions whose hit was reclaimed for another's copied page. Rare."""
    failed_steps: int
    idle: dict[IdleReason, int]


@dataclass(slots=True)
class Counters:
    """The counters behind `SchedulerStats`. Mutable, owned by the scheduler."""

    finished: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    generated_tokens: int = 0
    retractions: int = 0
    recomputed_tokens: int = 0
    repaired_tokens: int = 0
    steps: int = 0
    spans: int = 0
    deferred_spans: int = 0
    failed_steps: int = 0
    idle: dict[IdleReason, int] = field(default_factory=lambda: dict.fromkeys(IdleReason, 0))

    def snapshot(self, *, running: int, waiting: int) -> SchedulerStats:
        return SchedulerStats(
            running=running,
            waiting=waiting,
            finished=self.finished,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            computed_tokens=self.computed_tokens,
            generated_tokens=self.generated_tokens,
            retractions=self.retractions,
            recomputed_tokens=self.recomputed_tokens,
            repaired_tokens=self.repaired_tokens,
            steps=self.steps,
            spans=self.spans,
            deferred_spans=self.deferred_spans,
            failed_steps=self.failed_steps,
            idle=dict(self.idle),
        )

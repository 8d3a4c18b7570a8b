"""What the scheduler has done so far, in numbers that only grow, and how much it has in hand."""

from dataclasses import dataclass, field

from transom.sched.request import IdleReason, Progress, Running, Span
from transom.values import FinishReason


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
    admissions: int = 0
    """First ones, and those after a retraction."""
    queue_seconds: float = 0.0
    """Time in the queue of those admitted, added up."""
    aborted: int = 0
    """Requests ended by somebody's wish."""
    expired: int = 0
    """Requests ended by their deadline."""
    forks: int = 0
    """Further outputs born beside their first one."""
    forks_put_off: int = 0
    """Further outputs that found no room, and wait like others."""


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
    admissions: int = 0
    queue_seconds: float = 0.0
    aborted: int = 0
    expired: int = 0
    forks: int = 0
    forks_put_off: int = 0
    idle: dict[IdleReason, int] = field(default_factory=lambda: dict.fromkeys(IdleReason, 0))

    def admit(self, progress: Progress, cached: int, queue_seconds: float) -> None:
        self.admissions += 1
        self.queue_seconds += queue_seconds
        if not progress.admissions:
            self.cached_tokens += cached
            self.prompt_tokens += len(progress.request.prompt)

    def compute(self, running: Running, span: Span) -> None:
        """`span` has been computed; the request's peak is still that before."""
        holding = running.holding
        self.computed_tokens += len(span)
        if holding.clip:
            self.repaired_tokens += max(0, min(span.end, holding.full_until) - span.start)
        self.recomputed_tokens += max(0, min(span.end, running.progress.computed_peak) - span.start)

    def end(self, reason: FinishReason) -> None:
        self.finished += 1
        self.aborted += reason is FinishReason.ABORT
        self.expired += reason is FinishReason.DEADLINE

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
            admissions=self.admissions,
            queue_seconds=self.queue_seconds,
            aborted=self.aborted,
            expired=self.expired,
            forks=self.forks,
            forks_put_off=self.forks_put_off,
        )

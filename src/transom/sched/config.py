"""What bounds the scheduler: resolved once, by the engine."""

from dataclasses import dataclass

from transom.sched.policy import SchedulePolicy


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Time is counted in turns: the scheduler has no clock."""

    max_running: int
    """Requests that hold a row at once."""
    chunk_tokens: int
    """Token budget of a step, decodes and prefill chunks together."""
    context: int
    """Served context: most tokens of prompt and output. At most what fits alone."""
    patience_steps: int = 64
    """The senior request waits this long before it blocks all other admissions."""
    priority_bonus: int = 64
    """Arrivals that one step of priority is ahead."""
    first_outputs_expected: int = 128
    """Output length expected until a dozen requests have finished, or a request's own limit, if that is less.

    A guess too small is paid with retractions, one too large with requests that wait for nothing: many
    answers have 100 to 300 tokens, and who asks for few says so.
    """
    prefix_gain_min: int = 32
    """A request waits for another's prefix only when that saves at least so many tokens."""
    policy: SchedulePolicy = SchedulePolicy.LPM
    """Who is looked at first of those that wait."""
    passed_over_max: int = 256
    """Admissions of its tenant after which nobody junior comes in before a request, fit or not."""
    target_seconds: float | None = None
    """What a step with decodes should take at most: prefill is cut to that, but not below a page."""

    def __post_init__(self) -> None:
        assert self.max_running >= 1 and self.chunk_tokens >= 1 and self.context >= 1, self
        assert self.patience_steps >= 0 and self.priority_bonus >= 0, self
        assert self.first_outputs_expected >= 1 and self.prefix_gain_min >= 1, self
        assert self.passed_over_max >= 1, self
        assert self.target_seconds is None or self.target_seconds > 0, self

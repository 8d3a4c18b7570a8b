"""Limits and policies of the scheduler, resolved once by the engine."""

from dataclasses import dataclass

from transom.sched.policy import SchedulePolicy


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Waits are counted in steps and admissions, not in seconds, so that plans do not depend on a clock."""

    max_running: int
    """Most requests that hold a row at once."""
    chunk_tokens: int
    """Token budget of a step, decodes and prefill chunks together."""
    context: int
    """Served context: most tokens of prompt and output together. At most what fits in the cache alone."""
    vocabulary: int | None = None
    """Requests with token ids from here on are refused. None: ids mean nothing to the runner."""
    patience_steps: int = 64
    """Steps that the senior of all requests waits before it blocks all other admissions.

    At 16 running requests and 380 tokens per second (README), 64 steps take under three seconds. Lower, and a
    large request would more often keep small ones out although it does not fit yet.
    """
    priority_bonus: int = 64
    """Arrivals that one step of priority is ahead."""
    first_outputs_expected: int = 128
    """Output length expected until a dozen requests have finished; or a request's own limit, if that is less.

    Too low an estimate costs retractions, too high an estimate keeps requests waiting needlessly. Many
    answers have 100 to 300 tokens, and a request for a short answer usually says so in `max_tokens`.
    """
    prefix_gain_min: int = 32
    """Tokens that a request must save to wait for a prefix that another request is computing.

    Waiting costs at least one step, so to save less than about two pages (of the default size) is no gain.
    """
    policy: SchedulePolicy = SchedulePolicy.LPM
    """Order in which the waiting requests of one tenant are considered."""
    skipped_max: int = 256
    """Bounds how often a request is skipped: `queue` has the rules. Lower, and the policy has less to say."""
    target_seconds: float | None = None
    """Target for the duration of a step with decodes: prefill chunks are cut to it, but not below a page."""

    def __post_init__(self) -> None:
        assert self.max_running >= 1 and self.chunk_tokens >= 1 and self.context >= 1, self
        assert self.patience_steps >= 0 and self.priority_bonus >= 0, self
        assert self.first_outputs_expected >= 1 and self.prefix_gain_min >= 1, self
        assert self.skipped_max >= 1, self
        assert self.target_seconds is None or self.target_seconds > 0, self

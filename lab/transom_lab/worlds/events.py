"""Events that a campaign or a test injects into a scheduler, as data: drawn, replayed, and shrunk.

An event never depends on earlier ones: where it cannot apply it does nothing, so any part of a list of events
is a list of events. Requests are therefore named by rank among the unfinished ones, the oldest and most
important first; -1 is the last.
"""

from dataclasses import dataclass
from enum import StrEnum

from transom.values import PauseMode, UpdateMode


class Failure(StrEnum):
    """How the runner fails a step."""

    AT_ONCE = "at once"
    """It raises before it has touched a page."""
    HALF_WAY = "half way"
    """It raises after the copies, and leaves garbage where the first span should be."""
    SHORT_ANSWER = "short answer"
    """It computes everything, and the answer lacks its last entry."""
    MISSING_TOKENS = "missing tokens"
    """It computes everything, and no sampled token is in the answer."""
    EXTRA_TOKENS = "extra tokens"
    """It computes everything, and the answer has tokens that no span asked for."""


# ---------------------------------------------------------------- clients


@dataclass(frozen=True, slots=True)
class Arrive:
    """A client sends a request, valid or not. `within` is its deadline, in seconds from now."""

    prompt: tuple[int, ...]
    max_tokens: int
    stop_ids: tuple[int, ...] = ()
    priority: int = 0
    salt: str = ""
    tenant: str = ""
    within: float | None = None
    outputs: int = 1
    scores_from: int | None = None
    top: int = 0


@dataclass(frozen=True, slots=True)
class SendAgain:
    """A client sends a request with the id of an unfinished one."""

    rank: int


@dataclass(frozen=True, slots=True)
class Abort:
    """A client aborts an unfinished request."""

    rank: int


@dataclass(frozen=True, slots=True)
class AbortInFlight:
    """A client aborts an unfinished request while the next step is computed."""

    rank: int


@dataclass(frozen=True, slots=True)
class AbortEnded:
    """A client aborts the request with this id, which has ended or never existed."""

    request: int


# ---------------------------------------------------------------- operators


@dataclass(frozen=True, slots=True)
class AbortAll:
    """An operator aborts every unfinished request."""


@dataclass(frozen=True, slots=True)
class Flush:
    """An operator empties the prefix cache: a new epoch."""


@dataclass(frozen=True, slots=True)
class Pause:
    mode: PauseMode


@dataclass(frozen=True, slots=True)
class Resume:
    pass


@dataclass(frozen=True, slots=True)
class UpdateWeights:
    """New weights, from a source that fits, is refused at once, or cannot be loaded."""

    mode: UpdateMode
    weights: str


@dataclass(frozen=True, slots=True)
class Drain:
    """An operator shuts the engine down: no request is accepted any more."""


@dataclass(frozen=True, slots=True)
class Pin:
    """A user pins the cached prefix of `tokens` for some steps."""

    tokens: tuple[int, ...]
    steps: int


# ---------------------------------------------------------------- pressure and failures


@dataclass(frozen=True, slots=True)
class Crash:
    """The engine dies between two iterations. Its successor gets every unfinished request with its tokens."""


@dataclass(frozen=True, slots=True)
class Evict:
    """Memory pressure on one component: up to `pages` unreferenced pages are evicted."""

    component: int
    pages: int


@dataclass(frozen=True, slots=True)
class FailStep:
    """The runner fails the next step."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class DelayStep:
    """The next step takes this long."""

    seconds: float


@dataclass(frozen=True, slots=True)
class ShiftClock:
    """The clock jumps ahead or back."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Iterate:
    """The scheduler runs one iteration."""


SchedulerEvent = (
    Arrive
    | SendAgain
    | Abort
    | AbortInFlight
    | AbortEnded
    | AbortAll
    | Flush
    | Pause
    | Resume
    | UpdateWeights
    | Drain
    | Pin
    | Crash
    | Evict
    | FailStep
    | DelayStep
    | ShiftClock
    | Iterate
)

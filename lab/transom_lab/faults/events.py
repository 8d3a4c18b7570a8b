"""What can happen to a scheduler, as data: drawn, replayed, left out again when a failure is shrunk.

No event depends on what came before: one that means nothing where it stands does nothing, so that any part
of a life is a life.
"""

from dataclasses import dataclass
from enum import StrEnum

from transom.values import PauseMode, UpdateMode


class Trouble(StrEnum):
    """How the runner fails in the next step: between plan and result."""

    REFUSES = "refuses"
    """Before it has touched anything, copies included."""
    HALFWAY = "halfway"
    """After the copies, with what it was to store scribbled over."""
    LOSES = "loses"
    """All is computed, and the answer lacks its last entry."""
    SILENT = "silent"
    """All is computed, and a token that was wanted is not there."""
    TALKATIVE = "talkative"
    """All is computed, and there is a token that nobody wanted."""


@dataclass(frozen=True, slots=True)
class Arrive:
    """A request, possible or not. `within`: its deadline, in seconds from now."""

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
class Again:
    """Somebody sends the id of an unfinished request once more: of all, senior first, number `rank`."""

    rank: int


@dataclass(frozen=True, slots=True)
class Leave:
    """An unfinished request is aborted: of all, senior first, number `rank`; -1 is the junior."""

    rank: int


@dataclass(frozen=True, slots=True)
class LeaveInFlight:
    """The same, while the next step is computed."""

    rank: int


@dataclass(frozen=True, slots=True)
class LeaveAll:
    """Every unfinished request is aborted."""


@dataclass(frozen=True, slots=True)
class LeaveLate:
    """An abort of a request that has ended, or never was."""

    request: int


@dataclass(frozen=True, slots=True)
class Flush:
    pass


@dataclass(frozen=True, slots=True)
class Pause:
    mode: PauseMode


@dataclass(frozen=True, slots=True)
class Resume:
    pass


@dataclass(frozen=True, slots=True)
class Update:
    """New weights: such as fit, as do not fit, or as cannot be loaded when it comes to that."""

    mode: UpdateMode
    weights: str


@dataclass(frozen=True, slots=True)
class Close:
    """Nothing is taken any more."""


@dataclass(frozen=True, slots=True)
class Pin:
    """A user pins what is cached of `tokens`."""

    tokens: tuple[int, ...]
    steps: int


@dataclass(frozen=True, slots=True)
class Squeeze:
    """Somebody takes so many pages that nobody reads, of a component that slides: by number, of all."""

    component: int
    pages: int


@dataclass(frozen=True, slots=True)
class Trip:
    """The runner fails in the next step."""

    trouble: Trouble


@dataclass(frozen=True, slots=True)
class Stall:
    """The next step takes this long."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Jump:
    """The clock is set, back or ahead."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Iteration:
    """The scheduler has its turn."""


Happening = (
    Arrive
    | Again
    | Leave
    | LeaveInFlight
    | LeaveAll
    | LeaveLate
    | Flush
    | Pause
    | Resume
    | Update
    | Close
    | Pin
    | Squeeze
    | Trip
    | Stall
    | Jump
    | Iteration
)

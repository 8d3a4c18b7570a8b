"""What a scheduler can be told, at any moment, and what it says when it is done."""

from dataclasses import dataclass
from typing import Protocol

from transom.errors import BadRequest
from transom.values import PauseMode, Request, RequestId, UpdateMode


@dataclass(frozen=True, slots=True)
class Submit:
    request: Request


@dataclass(frozen=True, slots=True)
class Abort:
    """Ids that are unknown, or ended already, are ignored."""

    request: RequestId


@dataclass(frozen=True, slots=True)
class AbortAll:
    """Ends every request there is."""


@dataclass(frozen=True, slots=True)
class Flush:
    """Forget all cached prefixes; what runs goes on."""


@dataclass(frozen=True, slots=True)
class Pause:
    """No steps until `Resume`. Requests may still come, wait, be aborted and pass their deadlines."""

    mode: PauseMode = PauseMode.IN_PLACE


@dataclass(frozen=True, slots=True)
class Resume:
    """Steps again, each request where it was."""


@dataclass(frozen=True, slots=True)
class UpdateWeights:
    """Other weights, from `source`, as soon as nobody runs; answered by number, in the turn they change."""

    number: int
    source: str
    mode: UpdateMode


@dataclass(frozen=True, slots=True)
class Drain:
    """No request is taken any more; what is there ends. Answered by number, once nothing is left."""

    number: int = 0


Command = Submit | Abort | AbortAll | Flush | Pause | Resume | UpdateWeights | Drain


@dataclass(frozen=True, slots=True)
class WeightsUpdated:
    """Everything computed from now on is of the new weights; `epoch` is that of its prefixes."""

    number: int
    epoch: int


@dataclass(frozen=True, slots=True)
class WeightsRefused:
    """The weights are those they were."""

    number: int
    error: BadRequest


@dataclass(frozen=True, slots=True)
class Drained:
    """Nothing is left since `Drain`; said of every turn in which that is so."""

    number: int


Done = WeightsUpdated | WeightsRefused | Drained


class Weights(Protocol):
    """Whose weights an update replaces: the engine's model, a simulator's nothing."""

    def check(self, source: str) -> None:
        """Raises BadRequest for what could not take the place of the weights there are. Loads nothing."""
        ...

    def load(self, source: str) -> None:
        """From now on these. Raises BadRequest, and then nothing has changed."""
        ...


class FixedWeights:
    """Weights that cannot be updated: refuses."""

    def check(self, source: str) -> None:
        raise BadRequest("the weights of this engine cannot be updated", param="model_path")

    def load(self, source: str) -> None:
        self.check(source)

"""Outcomes of the commands that take time, and the weights that one of them replaces.

The commands themselves are those of `transom.wire`.
"""

from dataclasses import dataclass
from typing import Protocol

from transom.errors import BadRequest


@dataclass(frozen=True, slots=True)
class WeightsUpdated:
    """The new weights serve; prefixes computed with them belong to `epoch`."""

    number: int
    epoch: int


@dataclass(frozen=True, slots=True)
class WeightsRefused:
    """The weights have not changed."""

    number: int
    error: BadRequest


@dataclass(frozen=True, slots=True)
class Drained:
    """No request is left since `Drain`. Repeated in every later iteration for which that holds."""

    number: int


Done = WeightsUpdated | WeightsRefused | Drained


class Weights(Protocol):
    """The weights that an update replaces: the engine's model, or nothing in a simulator."""

    def check(self, source: str) -> None:
        """Raises BadRequest if `source` cannot replace the current weights. Loads nothing."""
        ...

    def load(self, source: str) -> None:
        """Replaces the weights. Raises BadRequest and changes nothing if `source` cannot be loaded."""
        ...


class FixedWeights:
    """Weights that cannot be updated: every update is refused."""

    def check(self, source: str) -> None:
        raise BadRequest("the weights of this engine cannot be updated", param="model_path")

    def load(self, source: str) -> None:
        self.check(source)

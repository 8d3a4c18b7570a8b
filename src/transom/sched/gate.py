"""What is let through at this moment: submissions, admissions, steps."""

from dataclasses import dataclass

from transom.errors import BadRequest
from transom.sched.request import Progress
from transom.values import UpdateMode
from transom.wire import Drain, UpdateWeights


@dataclass(slots=True)
class Lifecycle:
    """Owns what commands have closed. Mutable, the scheduler's.

    drain   told: no request enters any more
    paused  by `Pause`: no step is planned
    update  under way: nobody is admitted but those who have begun under the old weights, until none is left
    """

    drain: Drain | None = None
    paused: bool = False
    update: UpdateWeights | None = None

    def require_open(self) -> None:
        if self.drain is not None:
            raise BadRequest("the server is shutting down and takes no more requests", code="shutting_down")

    def admits(self, progress: Progress) -> bool:
        if self.update is None:
            return True
        return self.update.mode is UpdateMode.DRAIN and progress.has_begun

    def require_updatable(self, mode: UpdateMode, *, begun: bool) -> None:
        """Refuses an update that would have to wait for something that cannot come."""
        if self.update is not None:
            raise BadRequest("an update of the weights is already under way", code="update_under_way")
        if self.paused and begun and mode is UpdateMode.DRAIN:
            raise BadRequest(
                "generation is paused, so what runs cannot finish: take mode retract or abort, or continue",
                param="mode",
                code="paused",
            )

"""How long requests wait for their first step: what the scheduler, without a clock, cannot say."""

from collections.abc import Iterable
from dataclasses import replace

from transom.sched.turn import Command, Submit, Turn
from transom.values import Ended, Event, RequestId, Runner, StepResult, StepWork


class Waits:
    """A runner around another, that sees whose first step it is. Mutable.

    In every turn: `turn_begins`; the scheduler may call `run`; then `stamped` with what the turn brought.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._now = 0.0
        self._since: dict[RequestId, float] = {}
        self._waited: dict[RequestId, float] = {}

    def turn_begins(self, commands: Iterable[Command], now: float) -> None:
        self._now = now
        for command in commands:
            if isinstance(command, Submit):
                self._since[command.request.id] = now

    def run(self, work: StepWork) -> StepResult:
        for span in work.spans:
            self._note(span.request)
        return self._runner.run(work)

    def stamped(self, turn: Turn) -> Turn:
        """The same turn, in each end how long its request had waited. Forgets who ended or was refused."""
        for rejected in turn.rejected:
            self._since.pop(rejected.request, None)
        return replace(turn, events=tuple(map(self._stamp, turn.events)))

    def _stamp(self, event: Event) -> Event:
        if not isinstance(event, Ended):
            return event
        self._note(event.request)
        return replace(event, queue_seconds=self._waited.pop(event.request, 0.0))

    def _note(self, request: RequestId) -> None:
        since = self._since.pop(request, None)
        if since is not None:
            self._waited[request] = self._now - since

"""The loop body that engine and simulator share. No clock, no randomness, no I/O of its own."""

from collections.abc import Iterable
from dataclasses import dataclass

from transom.errors import BadRequest
from transom.sched.scheduler import Scheduler
from transom.sched.states import Idle, Step
from transom.values import Event, Request, RequestId, Runner, StepResult


@dataclass(frozen=True, slots=True)
class Submit:
    request: Request


@dataclass(frozen=True, slots=True)
class Abort:
    """Ids that are unknown, or ended already, are ignored."""

    request: RequestId


@dataclass(frozen=True, slots=True)
class Flush:
    """Forget all cached prefixes; what runs goes on."""


Command = Submit | Abort | Flush


@dataclass(frozen=True, slots=True)
class Rejected:
    """A request refused at submit. It never entered, so no `Ended` follows."""

    request: RequestId
    error: BadRequest


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn brought. `idle` is None when a step was computed, or tried and ended in `failure`."""

    events: tuple[Event, ...]
    idle: Idle | None = None
    rejected: tuple[Rejected, ...] = ()
    failure: Exception | None = None


def turn(scheduler: Scheduler, commands: Iterable[Command], runner: Runner, now: float = 0.0) -> Turn:
    """Applies the commands, then plans, commits, computes and applies one step.

    `now` is in seconds of any clock that never goes back: the engine's, or a simulator's.

    An exception of the runner ends the requests of its step with an error and is handed back as `failure`;
    others go on. Any other exception is a bug of ours and is raised.
    """
    events: list[Event] = []
    rejected: list[Rejected] = []
    scheduler.tick(now)
    for command in commands:
        _obey(scheduler, command, events, rejected)
    outcome = scheduler.commit(scheduler.plan())
    if isinstance(outcome, Idle):
        return Turn(tuple(events), outcome, tuple(rejected))
    failure = _compute(scheduler, outcome, runner, events)
    return Turn(tuple(events), None, tuple(rejected), failure)


def _obey(scheduler: Scheduler, command: Command, events: list[Event], rejected: list[Rejected]) -> None:
    match command:
        case Submit(request):
            try:
                scheduler.submit(request)
            except BadRequest as error:
                rejected.append(Rejected(request.id, error))
        case Abort(request_id):
            events += scheduler.abort(request_id)
        case Flush():
            scheduler.flush()


def _compute(scheduler: Scheduler, step: Step, runner: Runner, events: list[Event]) -> Exception | None:
    try:
        result = runner.run(step.work)
        _check(step, result)
    except Exception as failure:  # the edge at which a broken step fails its own requests and no others
        events += scheduler.fail(step, f"{type(failure).__name__}: {failure}")
        return failure
    events += scheduler.apply(step, result)
    return None


def _check(step: Step, result: StepResult) -> None:
    """Raises ValueError where the result does not answer the step span by span."""
    wanted = [span.sampling is not None for span in step.work.spans]
    given = [choice is not None for choice in result.choices]
    if wanted != given:
        raise ValueError(f"the runner chose tokens for spans {given}, wanted {wanted}")

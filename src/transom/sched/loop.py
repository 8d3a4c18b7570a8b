"""The loop body that engine and simulator share. No clock, no randomness, no I/O of its own."""

from collections.abc import Iterable
from dataclasses import dataclass

from transom.errors import BadRequest
from transom.sched.commands import Done, Drained, FixedWeights, Weights, WeightsRefused, WeightsUpdated
from transom.sched.request import Idle, Step
from transom.sched.scheduler import Scheduler
from transom.steps import Runner, SpanWork, StepResult
from transom.values import Event, RequestId
from transom.wire import Abort, AbortAll, Command, Drain, Flush, Pause, Resume, Submit, UpdateWeights

FIXED = FixedWeights()


@dataclass(frozen=True, slots=True)
class Rejected:
    """A request refused at submit. It never entered, so no `Ended` follows."""

    request: RequestId
    error: BadRequest


@dataclass(frozen=True, slots=True)
class Iteration:
    """What one turn brought. `idle` is None when a step was computed, or tried and ended in `failure`.

    `done` says which commands are carried out that could not be at once.
    """

    events: tuple[Event, ...]
    idle: Idle | None = None
    rejected: tuple[Rejected, ...] = ()
    failure: Exception | None = None
    done: tuple[Done, ...] = ()


def iterate(
    scheduler: Scheduler,
    commands: Iterable[Command],
    runner: Runner,
    now: float = 0.0,
    weights: Weights = FIXED,
) -> Iteration:
    """Applies the commands, then plans, commits, computes and applies one step.

    `now` is in seconds of any clock that never goes back: the engine's, or a simulator's. Requests whose
    deadline has passed end first. `weights` are loaded, if an update is due, between two steps.

    An exception of the runner ends the requests of its step with an error and is handed back as `failure`;
    others go on. Any other exception is a bug of ours and is raised.
    """
    told = _Told([], [], [])
    scheduler.tick(now)
    told.events.extend(scheduler.expire())
    for command in commands:
        _obey(scheduler, command, weights, told)
    if (due := scheduler.update_due()) is not None:
        _update(scheduler, due, weights, told)
    outcome = scheduler.commit(scheduler.plan())
    if isinstance(outcome, Idle):
        if (drain := scheduler.drained()) is not None:
            told.done.append(Drained(drain.number))
        return told.iterate(idle=outcome)
    return told.iterate(failure=_compute(scheduler, outcome, runner, told.events))


@dataclass(frozen=True, slots=True)
class _Told:
    """What a turn has brought so far. Its lists grow."""

    events: list[Event]
    rejected: list[Rejected]
    done: list[Done]

    def iterate(self, *, idle: Idle | None = None, failure: Exception | None = None) -> Iteration:
        return Iteration(tuple(self.events), idle, tuple(self.rejected), failure, tuple(self.done))


def _obey(scheduler: Scheduler, command: Command, weights: Weights, told: _Told) -> None:
    match command:
        case Submit(request):
            try:
                scheduler.submit(request)
            except BadRequest as error:
                told.rejected.extend(Rejected(refused, error) for refused in request.ids)
        case Abort(request_id):
            told.events.extend(scheduler.abort(request_id))
        case AbortAll():
            told.events.extend(scheduler.abort_all())
        case Flush():
            scheduler.flush()
        case Pause(mode):
            told.events.extend(scheduler.pause(mode))
        case Resume():
            scheduler.resume()
        case UpdateWeights():
            try:
                weights.check(command.source)
                told.events.extend(scheduler.update_weights(command))
            except BadRequest as error:
                told.done.append(WeightsRefused(command.number, error))
        case Drain():
            scheduler.drain(command)


def _update(scheduler: Scheduler, due: UpdateWeights, weights: Weights, told: _Told) -> None:
    """Nobody runs. Should the weights turn out not to load, the old ones go on, prefixes and all."""
    try:
        weights.load(due.source)
    except BadRequest as error:
        scheduler.update_failed()
        told.done.append(WeightsRefused(due.number, error))
    else:
        told.done.append(WeightsUpdated(due.number, scheduler.weights_changed()))


def _compute(scheduler: Scheduler, step: Step, runner: Runner, events: list[Event]) -> Exception | None:
    try:
        result = runner.run(step.work)
        _check(step, result)
    except Exception as failure:  # the edge at which a broken step fails its own requests and no others
        events += scheduler.fail(step, f"{type(failure).__name__}: {failure}")
        return failure
    except (
        BaseException
    ):  # an interrupted caller may take other turns: nothing of this step is in flight then
        scheduler.fail(step, "interrupted")
        raise
    events += scheduler.apply(step, result)
    return None


def _check(step: Step, result: StepResult) -> None:
    """Raises ValueError where the result does not answer the step span by span."""
    spans = step.work.spans
    wanted = [span.sampling is not None for span in spans]
    given = [token is not None for token in result.sampled]
    if wanted != given:
        raise ValueError(f"the runner chose tokens for spans {given}, wanted {wanted}")
    _check_counts("siblings", [len(span.siblings) for span in spans], [len(s) for s in result.siblings])
    _check_counts(
        "prompt logprobs", [_scored(span) for span in spans], [len(s) for s in result.prompt_logprobs]
    )


def _scored(span: SpanWork) -> int:
    return len(span.prompt_logprobs.tokens) if span.prompt_logprobs is not None else 0


def _check_counts(what: str, wanted: list[int], given: list[int]) -> None:
    if wanted != given and (given or any(wanted)):
        raise ValueError(f"the runner gave {given} {what}, wanted {wanted}")

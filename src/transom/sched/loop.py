"""One iteration of the serving loop, shared by the engine, the simulator and the tests.

It has no clock, no randomness and no I/O of its own.
"""

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
NO_MEMORY = BadRequest("the engine has no memory for this request at the moment", code="no_memory")


@dataclass(frozen=True, slots=True)
class Rejected:
    """A request refused at submit. No `Ended` follows, since it was never queued."""

    request: RequestId
    error: BadRequest


@dataclass(frozen=True, slots=True)
class Iteration:
    """The outcome of one iteration. `idle` is set unless a step was computed, or ended in `failure`.

    `done` lists the outcomes of commands that take time and are complete now.
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
    deadline has passed end first. `weights` are loaded, if an update is due, before the step.

    An exception of the runner ends the requests of its step with an error and is returned as `failure`; all
    other requests continue. If memory runs out between two steps, one request ends: the submitted or
    the junior one. Any other exception is a bug of ours and is raised.
    """
    outcome = _Outcome([], [], [])
    scheduler.tick(now)
    outcome.events.extend(scheduler.expire())
    for command in commands:
        _apply_command(scheduler, command, weights, outcome)
    # After the commands, so that an update that no request delays is loaded in the same iteration.
    if (update := scheduler.update_due()) is not None:
        _load_weights(scheduler, update, weights, outcome)
    try:
        step = scheduler.commit(scheduler.plan())
    except MemoryError as failure:
        outcome.events.extend(scheduler.shed(NO_MEMORY.message))
        return outcome.iteration(failure=failure)
    if isinstance(step, Idle):
        if (drain := scheduler.drained()) is not None:
            outcome.done.append(Drained(drain.number))
        return outcome.iteration(idle=step)
    return outcome.iteration(failure=_compute(scheduler, step, runner, outcome.events))


@dataclass(frozen=True, slots=True)
class _Outcome:
    """Owns the lists of one `Iteration` while it runs. They grow."""

    events: list[Event]
    rejected: list[Rejected]
    done: list[Done]

    def iteration(self, *, idle: Idle | None = None, failure: Exception | None = None) -> Iteration:
        return Iteration(tuple(self.events), idle, tuple(self.rejected), failure, tuple(self.done))


def _apply_command(scheduler: Scheduler, command: Command, weights: Weights, outcome: _Outcome) -> None:
    match command:
        case Submit(request):
            try:
                scheduler.submit(request)
            except (BadRequest, MemoryError) as error:
                refusal = error if isinstance(error, BadRequest) else NO_MEMORY
                outcome.rejected.extend(Rejected(refused, refusal) for refused in request.ids)
        case Abort(request_id):
            outcome.events.extend(scheduler.abort(request_id))
        case AbortAll():
            outcome.events.extend(scheduler.abort_all())
        case Flush():
            scheduler.flush()
        case Pause(mode):
            outcome.events.extend(scheduler.pause(mode))
        case Resume():
            scheduler.resume()
        case UpdateWeights():
            try:
                # Checked before any request is retracted or aborted for weights that could never serve.
                weights.check(command.source)
                outcome.events.extend(scheduler.update_weights(command))
            except BadRequest as error:
                outcome.done.append(WeightsRefused(command.number, error))
        case Drain():
            scheduler.drain(command)


def _load_weights(scheduler: Scheduler, update: UpdateWeights, weights: Weights, outcome: _Outcome) -> None:
    """Loads the weights of an update that is due. On failure the old weights and their prefixes stay."""
    try:
        weights.load(update.source)
    except BadRequest as error:
        scheduler.update_failed()
        outcome.done.append(WeightsRefused(update.number, error))
    else:
        outcome.done.append(WeightsUpdated(update.number, scheduler.weights_changed()))


def _compute(scheduler: Scheduler, step: Step, runner: Runner, events: list[Event]) -> Exception | None:
    try:
        result = runner.run(step.work)
        _check(step, result)
    except Exception as failure:
        # Broad on purpose: this is the edge at which a broken step fails its own requests and no other ones.
        events += scheduler.fail(step, f"{type(failure).__name__}: {failure}")
        return failure
    except BaseException:
        # A caller that is interrupted may iterate again, and then no step may be in flight.
        scheduler.fail(step, "interrupted")
        raise
    events += scheduler.apply(step, result)
    return None


def _check(step: Step, result: StepResult) -> None:
    """Raises ValueError unless the result answers the step span by span."""
    spans = step.work.spans
    expected = [span.sampling is not None for span in spans]
    sampled = [token is not None for token in result.sampled]
    if expected != sampled:
        raise ValueError(f"the runner sampled tokens for spans {sampled}, expected {expected}")
    _check_counts("siblings", [len(span.siblings) for span in spans], [len(s) for s in result.siblings])
    _check_counts(
        "prompt logprobs",
        [_prompt_logprobs(span) for span in spans],
        [len(s) for s in result.prompt_logprobs],
    )


def _prompt_logprobs(span: SpanWork) -> int:
    return len(span.prompt_logprobs.tokens) if span.prompt_logprobs is not None else 0


def _check_counts(name: str, expected: list[int], returned: list[int]) -> None:
    """A runner may return an empty list if no span has any."""
    if expected != returned and (returned or any(expected)):
        raise ValueError(f"the runner returned {returned} {name}, expected {expected}")

"""Continuous batching with chunked prefill: plan, commit, and apply what was computed."""

from collections.abc import Sequence

from transom.errors import BadRequest, ConfigError, NoSpace
from transom.kv.cache import Holding, HybridCache
from transom.kv.journal import Transaction
from transom.sched.config import SchedulerConfig
from transom.sched.gate import Lifecycle
from transom.sched.plan import CONSIDERED, Admit, Continue, Plan, SchedulerView
from transom.sched.planner import plan
from transom.sched.request import Idle, Progress, Running, Scheduled, Seniority, Span, Step
from transom.sched.requests import Requests
from transom.sched.results import Results, of_span
from transom.sched.step_cost import CostLearner, counts_of
from transom.sched.submission import outputs_of, require_servable
from transom.steps import SpanWork, StepResult, StepWork
from transom.values import Ended, Event, FinishReason, IdleReason, PauseMode, Request, RequestId, UpdateMode
from transom.wire import Counters, Drain, Stats, UpdateWeights

Placed = tuple[Continue | Admit, Holding]
"""A span of a plan, and the holding that has pages for it."""


class Scheduler:
    """Owns the queue and the running set. Mutable; one step is in flight at a time.

    Per turn: `tick` and `expire`; commands; `plan`; `commit`; then, with a step, `apply` or `fail`. What ends
    while its step is in flight is told at once; its pages are back when the step has landed.
    """

    def __init__(self, cache: HybridCache, limits: SchedulerConfig) -> None:
        """Raises ConfigError if a request as long as the context would not fit alone."""
        fits = cache.longest_alone(1)
        if limits.context > fits:
            raise ConfigError(f"a context of {limits.context} tokens does not fit in the cache; {fits} do")
        self._cache = cache
        self._limits = limits
        self._arrivals = 0
        self._costs = CostLearner()
        self._counters = Counters()
        self._requests = Requests(cache, self._counters, limits)
        self._results = Results(cache, self._requests, self._counters, limits.max_running)
        self._lifecycle = Lifecycle()

    # ------------------------------------------------------------ commands

    def submit(self, request: Request) -> None:
        """Queues the request. Raises BadRequest; RequestTooLarge, with the numbers, if it can never run."""
        self._lifecycle.require_open()
        require_servable(request, self._limits.context)
        first, *siblings = outputs_of(request)
        for output in (first, *siblings):
            if output.id in self._requests:
                raise BadRequest(f"a request with id {output.id} is unfinished", param="id")
        self._requests.add(self._progress(first), [self._progress(sibling) for sibling in siblings])

    def abort(self, request: RequestId) -> tuple[Ended, ...]:
        """Ends the request, whatever it is doing; nothing if it is unknown or has ended."""
        return self._requests.stop(request, FinishReason.ABORT)

    def abort_all(self) -> tuple[Ended, ...]:
        return tuple(end for request in self.unfinished() for end in self.abort(request))

    def flush(self) -> None:
        """Forgets all cached prefixes. Running requests go on."""
        self._cache.flush()

    def pause(self, mode: PauseMode) -> tuple[Ended, ...]:
        """No step is planned until `resume`."""
        self._lifecycle.paused = True
        match mode:
            case PauseMode.IN_PLACE:
                return ()
            case PauseMode.RETRACT:
                self._requests.retract_all()
                return ()
            case PauseMode.ABORT:
                return self.abort_all()

    def resume(self) -> None:
        self._lifecycle.paused = False

    def update_weights(self, update: UpdateWeights) -> tuple[Ended, ...]:
        """Makes way for other weights: see `update_due`. Raises BadRequest if it could never be due."""
        self._lifecycle.require_updatable(update.mode, begun=bool(len(self._requests.running)))
        self._lifecycle.update = update
        match update.mode:
            case UpdateMode.DRAIN:
                return ()
            case UpdateMode.RETRACT:
                self._requests.retract_all()
                return ()
            case UpdateMode.ABORT:
                return self.abort_all()

    def drain(self, drain: Drain) -> None:
        """Nothing enters any more; what is there goes on."""
        self._lifecycle.drain = drain

    # ------------------------------------------------------------ commands that take time

    def update_due(self) -> UpdateWeights | None:
        """The update for which nobody computes any more; then `weights_changed` or `update_failed`."""
        update = self._lifecycle.update
        if update is None or len(self._requests.running) or self._requests.in_flight is not None:
            return None
        return None if self._requests.waiting.senior(self._lifecycle.admits) is not None else update

    def weights_changed(self) -> int:
        """Nothing computed before is found any more: outputs go on from tokens alone. The new epoch."""
        assert not len(self._requests.running) and self._requests.in_flight is None, (
            "KV of two sets of weights"
        )
        self._lifecycle.update = None
        self._cache.flush()
        return self._cache.epoch

    def update_failed(self) -> None:
        """The weights are those they were."""
        self._lifecycle.update = None

    def drained(self) -> Drain | None:
        """What closed the entrance, if nothing is left."""
        return None if self.has_work else self._lifecycle.drain

    # ------------------------------------------------------------ a turn

    def tick(self, now: float) -> None:
        """The time of this turn. A clock that jumps back is taken as one that stands still."""
        self._requests.now = max(self._requests.now, now)

    def expire(self) -> tuple[Ended, ...]:
        """Ends every request whose deadline has passed, with what it has."""
        passed = self._requests.deadlines.passed(self._requests.now)
        return tuple(end for request in passed for end in self._requests.stop(request, FinishReason.DEADLINE))

    def unfinished(self) -> tuple[RequestId, ...]:
        """Every request that has not ended: those that run, those that wait, those not born yet."""
        return self._requests.unfinished()

    @property
    def has_work(self) -> bool:
        """Whether any request is unfinished: if so, and unless paused, the next turn computes something."""
        return self._requests.has_work

    def plan(self) -> Plan:
        """What the next step should be. Changes nothing."""
        if self._lifecycle.paused:
            return Plan((), ())
        return plan(self._situation())

    def commit(self, plan: Plan) -> Step | Idle:
        """Retracts, admits and takes pages, in one transaction. A span without a page is not in the step."""
        assert self._requests.in_flight is None, self._requests.in_flight
        self._requests.iterations += 1
        self._requests.waiting.look_again()
        if not plan.spans:
            assert not plan.retract, plan
            return self._idle()
        with self._cache.transaction() as transaction:
            for victim in plan.retract:
                self._requests.give_back(victim)
            placed = self._place(plan, transaction)
        for victim in plan.retract:
            self._requests.retract(victim)
        scheduled = self._scheduled(placed)
        self._counters.deferred_spans += len(plan.spans) - len(scheduled)
        if not scheduled:
            return self._idle()
        self._counters.steps += 1
        self._counters.spans += len(scheduled)
        copies, discards = self._cache.pending_copies(), self._cache.pending_discards()
        step = Step(StepWork(tuple([_work(*one) for one in scheduled]), copies, discards), scheduled)
        self._requests.in_flight = step
        return step

    def apply(self, step: Step, result: StepResult) -> tuple[Event, ...]:
        """What was computed is computed: advance, publish, slide or end. Tokens and ends, in span order."""
        self._requests.land(step)
        self._cache.copies_done()
        all_there = not self._requests.drop_those_that_left()
        events: list[Event] = []
        for number, scheduled in enumerate(step.scheduled):
            if all_there or self._requests.goes_on(scheduled.running):
                self._results.apply(scheduled, step.work.spans[number], of_span(result, number), events)
        if self._limits.target_seconds is not None:
            self._costs.observe(counts_of(step.work), result.seconds)
        return tuple(events)

    def fail(self, step: Step, message: str) -> tuple[Event, ...]:
        """The step was not computed: its requests end with an error, and nothing of it is published.

        So do those outside it that a copy was made for: nobody knows whether it was.
        """
        self._counters.failed_steps += 1
        self._requests.land(step)
        copied = self._cache.copies_failed()
        self._requests.drop_those_that_left()
        unborn = [sibling.id for scheduled in step.scheduled for sibling in scheduled.siblings]
        lost = (*unborn, *(scheduled.running.progress.id for scheduled in step.scheduled), *sorted(copied))
        return tuple(
            end for request in lost for end in self._requests.stop(request, FinishReason.ERROR, message)
        )

    def stats(self) -> Stats:
        waiting = len(self._requests.waiting) + len(self._requests.siblings)
        return self._counters.snapshot(running=len(self._requests.running), waiting=waiting)

    # ------------------------------------------------------------ submit

    def _progress(self, request: Request) -> Progress:
        limit = min(len(request.prompt) + request.max_tokens, self._limits.context)
        progress = Progress(request, self._seniority(request), limit)
        self._arrivals += 1
        return progress

    def _seniority(self, request: Request) -> Seniority:
        return (self._arrivals - self._limits.priority_bonus * request.priority, request.id)

    # ------------------------------------------------------------ plan and commit

    def _situation(self) -> SchedulerView:
        waiting = self._requests.waiting
        is_full = len(self._requests.running) >= min(self._limits.max_running, self._cache.layout.rows)
        considered = () if is_full else waiting.considered(CONSIDERED, self._lifecycle.admits)
        return SchedulerView(
            cache=self._cache,
            limits=self._limits,
            iterations=self._requests.iterations,
            waiting=considered,
            firm=frozenset([state.progress.id for state in considered if waiting.is_firm(state)]),
            senior=waiting.senior(self._lifecycle.admits),
            running=self._requests.running.states(),
            columns=self._requests.running.columns(),
            outputs=self._requests.outputs.lengths(),
            cost=self._costs.cost(),
        )

    def _idle(self) -> Idle:
        reason = IdleReason.NO_WORK
        if self.has_work:
            reason = IdleReason.PAUSED if self._lifecycle.paused else IdleReason.NO_ROOM
        self._counters.idle[reason] += 1
        return Idle(reason, self._requests.deadlines.next)

    def _scheduled(self, placed: Sequence[Placed]) -> tuple[Scheduled, ...]:
        """Who begins runs from here on. Who is about to choose its first token has its siblings with it."""
        scheduled = [
            Scheduled(
                intent.running
                if isinstance(intent, Continue)
                else self._requests.begin(intent.waiting, holding),
                intent.span,
            )
            for intent, holding in placed
        ]
        if len(self._requests.siblings):
            scheduled = [self._with_siblings(one) for one in scheduled]
        return tuple(scheduled)

    def _with_siblings(self, scheduled: Scheduled) -> Scheduled:
        progress = scheduled.running.progress
        if not progress.samples_at(scheduled.span.end):
            return scheduled
        return scheduled._replace(siblings=self._requests.siblings.of(progress.id))

    def _place(self, plan: Plan, transaction: Transaction) -> list[Placed]:
        """References first, then pages: no page that an admission counts on is reclaimed for a span.

        Only the copy of a partial page is taken before all references are; should it cost a later admission
        its hit, that one waits for the next step.
        """
        held: list[Placed] = []
        for intent in plan.spans:
            if isinstance(intent, Continue):
                held.append((intent, intent.running.holding))
                continue
            savepoint = transaction.savepoint()
            try:
                held.append((intent, self._hold(intent)))
            except NoSpace:
                transaction.rollback(savepoint)
        return [
            (intent, holding)
            for intent, holding in held
            if intent.span.end <= holding.allocated or self._extend(intent, holding, transaction)
        ]

    def _hold(self, intent: Admit) -> Holding:
        progress = intent.waiting.progress
        return self._cache.admit(
            progress.id,
            intent.namespace,
            progress.tokens(),
            intent.offer,
            priority=progress.request.priority,
        )

    def _extend(self, intent: Continue | Admit, holding: Holding, transaction: Transaction) -> bool:
        """Whether `holding` has pages for the span; without, it is as it was before the plan.

        Whole pages are taken, so that most decodes take none.
        """
        layout = self._cache.layout
        pages_end = intent.span.end + -intent.span.end % layout.page_size
        savepoint = transaction.savepoint()
        try:
            self._cache.extend(holding, min(pages_end, layout.context))
        except NoSpace:
            transaction.rollback(savepoint)
            if isinstance(intent, Admit):
                self._cache.drop(holding)
            return False
        if isinstance(intent, Continue):
            self._requests.running.refresh(intent.running)
        return True


def _work(running: Running, span: Span, siblings: tuple[Progress, ...]) -> SpanWork:
    progress, holding = running.progress, running.holding
    request = progress.request
    return SpanWork(  # by place: with names, planning and committing 256 of them takes a twelfth longer
        request.id,
        holding.row,
        span.start,
        progress.slice(span),
        request.sampling if progress.samples_at(span.end) else None,
        holding.clip,
        holding.full_until,
        tuple([sibling.request.sampling for sibling in siblings]) if siblings else (),
        progress.scoring(span),
        request.logprobs.top,
    )

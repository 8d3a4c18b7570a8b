"""Continuous batching with chunked prefill: plans a step, commits it, and applies its result."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from transom.errors import BadRequest, ConfigError, NoSpace
from transom.kv.cache import Holding, HybridCache
from transom.sched.commands import Lifecycle, outputs_of, require_servable
from transom.sched.config import SchedulerConfig
from transom.sched.plan import Admit, Continue, Plan, SchedulerView
from transom.sched.planner import plan
from transom.sched.request import Idle, Progress, Running, Scheduled, Seniority, Span, Step
from transom.sched.requests import Requests
from transom.sched.results import Results, span_result
from transom.sched.step_cost import CostLearner, counts_of
from transom.steps import Constraint, RuledOutput, SpanWork, StepResult, StepWork
from transom.values import Ended, Event, FinishReason, IdleReason, PauseMode, Request, RequestId, UpdateMode
from transom.wire import Counters, Drain, Stats, UpdateWeights

Allocated = tuple[Continue | Admit, Holding]
"""An entry of a plan, and the holding that has pages for its span."""


class Scheduler:
    """Owns all unfinished requests and their states. Mutable; at most one step is in flight.

    Per iteration: `tick` and `expire`; commands; `plan`; `commit`; then, if there is a step, `apply` or
    `fail`. A request may end while its step is in flight; its pages are freed when the step has landed.
    """

    def __init__(self, cache: HybridCache, config: SchedulerConfig) -> None:
        """Raises ConfigError if a request as long as the context would not fit alone."""
        fits = cache.longest_alone(1)
        if config.context > fits:
            raise ConfigError(f"a context of {config.context} tokens does not fit in the cache; {fits} do")
        self._cache = cache
        self._config = config
        self._arrivals = 0
        self._costs = CostLearner()
        self._counters = Counters()
        self._requests = Requests(cache, self._counters, config)
        self._results = Results(cache, self._requests, self._counters, config.max_running)
        self._lifecycle = Lifecycle()

    # ------------------------------------------------------------ commands

    def submit(self, request: Request) -> None:
        """Queues the request. Raises BadRequest, or RequestTooLarge with the numbers if it can never run.

        After a MemoryError it is not queued.
        """
        self._lifecycle.require_open()
        require_servable(request, self._config.context, self._config.vocabulary)
        first, *siblings = outputs_of(request)
        # All ids are checked before any output is added, so that a refused request leaves no trace.
        for output in (first, *siblings):
            if output.id in self._requests:
                raise BadRequest(f"a request with id {output.id} is unfinished", param="id")
        progress = self._progress(first), [self._progress(sibling) for sibling in siblings]
        with _no_way_back("a request was half queued"):
            self._requests.add(*progress)

    def abort(self, request: RequestId) -> tuple[Ended, ...]:
        """Ends the request in any state; () if it is unknown or has ended."""
        return self._requests.stop(request, FinishReason.ABORT)

    def abort_all(self) -> tuple[Ended, ...]:
        return tuple(end for request in self.unfinished() for end in self.abort(request))

    def flush(self) -> None:
        """Forgets all cached prefixes. Running requests continue."""
        self._cache.flush()

    def pause(self, mode: PauseMode) -> tuple[Ended, ...]:
        """Plans no step until `resume`. Commands and deadlines still take effect."""
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
        """Prepares for new weights: see `update_due`. Raises BadRequest if that could never become due."""
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
        """Refuses new requests from now on. Unfinished requests continue."""
        self._lifecycle.drain = drain

    # ------------------------------------------------------------ commands that take time

    def update_due(self) -> UpdateWeights | None:
        """The requested update, if no request computes with the old weights any more.

        The caller then loads the weights and calls `weights_changed` or `update_failed`.
        """
        update = self._lifecycle.update
        if update is None or len(self._requests.running) or self._requests.in_flight is not None:
            return None
        # In mode drain, requests that have begun and wait again are readmitted and finish before the update.
        return None if self._requests.waiting.senior(self._lifecycle.may_admit) is not None else update

    def weights_changed(self) -> int:
        """Forgets all cached prefixes, so that no KV of the old weights is read. Returns the new epoch.

        Retracted requests continue from their tokens, computed again with the new weights.
        """
        assert not len(self._requests.running) and self._requests.in_flight is None, (
            "KV of two sets of weights"
        )
        self._lifecycle.update = None
        self._cache.flush()
        return self._cache.epoch

    def update_failed(self) -> None:
        """The old weights stay, and so do the cached prefixes."""
        self._lifecycle.update = None

    def drained(self) -> Drain | None:
        """The `Drain` in effect, if no request is left."""
        return None if self.has_work else self._lifecycle.drain

    # ------------------------------------------------------------ an iteration

    def tick(self, now: float) -> None:
        """Sets the time of this iteration. A clock that jumps back counts as one that stands still."""
        self._requests.now = max(self._requests.now, now)

    def expire(self) -> tuple[Ended, ...]:
        """Ends every request that is past its deadline, with the tokens that it has."""
        passed = self._requests.deadlines.passed(self._requests.now)
        return tuple(end for request in passed for end in self._requests.stop(request, FinishReason.DEADLINE))

    def unfinished(self) -> tuple[RequestId, ...]:
        """Every unfinished request: running, waiting, or waiting for the first output of its prompt."""
        return self._requests.unfinished()

    @property
    def has_work(self) -> bool:
        """Whether any request is unfinished: if so, and unless paused, the next iteration computes a step."""
        return self._requests.has_work

    def plan(self) -> Plan:
        """Plans the next step. Changes nothing."""
        if self._lifecycle.paused:
            return Plan((), ())
        return plan(self._view())

    def commit(self, plan: Plan) -> Step | Idle:
        """Retracts, admits and allocates pages, in one transaction.

        A span that finds no page is left out of the step, and its request is as it was before. After a
        MemoryError nothing has changed.
        """
        assert self._requests.in_flight is None, self._requests.in_flight
        self._requests.iterations += 1
        # Here and not in `plan`, which changes nothing.
        self._requests.waiting.look_again()
        self._requests.waiting.refuse(plan.refused)
        if not plan.entries:
            assert not plan.retract, plan
            return self._idle()
        try:
            with self._cache.transaction():
                for victim in plan.retract:
                    self._requests.publish_and_drop(victim)
                allocated = self._allocate(plan)
        except BaseException:
            # The columns of running requests are no part of the transaction.
            for running in self._requests.running:
                self._requests.running.refresh(running)
            raise
        # Requests change state only after the transaction, so that an exception in it changes nothing.
        with _no_way_back("a step was half committed"):
            return self._begin(plan, allocated)

    def _begin(self, plan: Plan, allocated: Sequence[Allocated]) -> Step | Idle:
        """The step of the spans that found pages."""
        for victim in plan.retract:
            self._requests.retract(victim)
        scheduled = self._scheduled(allocated)
        self._counters.deferred_spans += len(plan.entries) - len(scheduled)
        if not scheduled:
            return self._idle()
        self._counters.steps += 1
        self._counters.spans += len(scheduled)
        # After all allocations: both admissions and evictions add to them.
        copies, discards = self._cache.pending_copies(), self._cache.pending_discards()
        step = Step(StepWork(tuple([_work(*one) for one in scheduled]), copies, discards), scheduled)
        self._requests.in_flight = step
        return step

    def apply(self, step: Step, result: StepResult) -> tuple[Event, ...]:
        """Applies the result of a step: advances, publishes, slides or ends each request.

        Returns tokens and ends in the order of the spans.
        """
        self._requests.land(step)
        self._cache.copies_done()  # first: `advance` refuses a request whose copies have not run
        # Looking up each request is needed only if one was ended while the step was in flight.
        all_unfinished = not self._requests.drop_ended_in_flight()
        events: list[Event] = []
        for number, scheduled in enumerate(step.scheduled):
            if all_unfinished or self._requests.is_unfinished(scheduled.running):
                self._results.apply(scheduled, step.work.spans[number], span_result(result, number), events)
        if self._config.target_seconds is not None:
            self._costs.observe(counts_of(step.work), result.seconds)
        return tuple(events)

    def fail(self, step: Step, message: str) -> tuple[Event, ...]:
        """The step was not computed: ends its requests with an error and publishes nothing of it.

        Requests outside the step that wait for a copy of its copies end as well, since it is not known
        whether the copy was made.
        """
        self._counters.failed_steps += 1
        self._requests.land(step)
        copied = self._cache.copies_failed()
        self._requests.drop_ended_in_flight()
        # Siblings end first: the end of a first output would put the next sibling into the queue.
        siblings = [sibling.id for scheduled in step.scheduled for sibling in scheduled.siblings]
        lost = (*siblings, *(scheduled.running.progress.id for scheduled in step.scheduled), *sorted(copied))
        return tuple(
            end for request in lost for end in self._requests.stop(request, FinishReason.ERROR, message)
        )

    def shed(self, message: str) -> tuple[Event, ...]:
        """No step could be planned or committed: ends the junior request with an error.

        The older ones fitted into memory before it came. Called again and again, it leaves no request.
        """
        self._counters.failed_steps += 1
        states = (*self._requests.running, *self._requests.waiting)
        if not states:
            return ()
        junior = max((state.progress for state in states), key=lambda progress: progress.seniority)
        return self._requests.stop(junior.id, FinishReason.ERROR, message)

    def stats(self) -> Stats:
        waiting = len(self._requests.waiting) + len(self._requests.siblings)
        return self._counters.snapshot(running=len(self._requests.running), waiting=waiting)

    # ------------------------------------------------------------ submit

    def _progress(self, request: Request) -> Progress:
        limit = min(len(request.prompt) + request.max_tokens, self._config.context)
        progress = Progress(request, self._seniority(request), limit)
        self._arrivals += 1
        return progress

    def _seniority(self, request: Request) -> Seniority:
        return (self._arrivals - self._config.priority_bonus * request.priority, request.id)

    # ------------------------------------------------------------ plan and commit

    def _view(self) -> SchedulerView:
        waiting = self._requests.waiting
        may_admit = self._lifecycle.may_admit
        lowest_class = self._requests.running.lowest_class()
        return SchedulerView(
            cache=self._cache,
            config=self._config,
            iterations=self._requests.iterations,
            queue=waiting,
            may_admit=may_admit,
            senior=waiting.senior(may_admit),
            class_seniors=waiting.class_seniors(lowest_class, may_admit),
            running=self._requests.running.states(),
            lowest_class=lowest_class,
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

    def _scheduled(self, allocated: Sequence[Allocated]) -> tuple[Scheduled, ...]:
        """Admitted requests run from here on. A span that samples a first token also serves the siblings."""
        scheduled = [
            Scheduled(
                entry.running
                if isinstance(entry, Continue)
                else self._requests.admit(entry.waiting, holding),
                entry.span,
            )
            for entry, holding in allocated
        ]
        if len(self._requests.siblings):
            scheduled = [self._with_siblings(one) for one in scheduled]
        return tuple(scheduled)

    def _with_siblings(self, scheduled: Scheduled) -> Scheduled:
        progress = scheduled.running.progress
        if not progress.samples_at(scheduled.span.end):
            return scheduled
        return scheduled._replace(siblings=self._requests.siblings.of(progress.id))

    def _allocate(self, plan: Plan) -> list[Allocated]:
        """The entries of the plan, except those that found no pages.

        First all admissions reference the pages of their hits, then pages are allocated. In the other order,
        an allocation could evict pages that a later admission counts on. One case remains: an admission may
        allocate a page to copy a partial page into. If this evicts a later admission's hit, that request
        waits for the next step.
        """
        held: list[Allocated] = []
        for entry in plan.entries:
            if isinstance(entry, Continue):
                held.append((entry, entry.running.holding))
                continue
            # The cache refuses before it changes anything.
            with suppress(NoSpace):
                held.append((entry, self._hold(entry)))
        return [
            (entry, holding)
            for entry, holding in held
            if entry.span.end <= holding.allocated or self._extend(entry, holding)
        ]

    def _hold(self, entry: Admit) -> Holding:
        progress = entry.waiting.progress
        return self._cache.admit(
            progress.id,
            entry.namespace,
            progress.tokens(),
            entry.offer,
            priority=progress.request.priority,
        )

    def _extend(self, entry: Continue | Admit, holding: Holding) -> bool:
        """Allocates the pages for the span. False if they are not available: then an admission is taken back.

        Whole pages are allocated, so that most decodes need none.
        """
        layout = self._cache.layout
        pages_end = entry.span.end + -entry.span.end % layout.page_size
        try:
            self._cache.extend(holding, min(pages_end, layout.context))
        except NoSpace:
            if isinstance(entry, Admit):
                self._cache.drop(holding)
            return False
        if isinstance(entry, Continue):
            self._requests.running.refresh(entry.running)
        return True


@contextmanager
def _no_way_back(place: str) -> Iterator[None]:
    """A lack of memory in this block leaves a state that no caller may go on with."""
    try:
        yield
    except MemoryError as error:
        raise RuntimeError(f"{place} when memory ran out") from error


def _work(running: Running, span: Span, siblings: tuple[Progress, ...]) -> SpanWork:
    progress, holding = running.progress, running.holding
    request = progress.request
    return SpanWork(  # positional: keyword arguments make planning and committing 256 spans a twelfth slower
        request.id,
        holding.row,
        span.start,
        progress.slice(span),
        request.sampling if progress.samples_at(span.end) else None,
        holding.clip,
        holding.full_until,
        tuple([sibling.request.sampling for sibling in siblings]) if siblings else (),
        progress.prompt_logprobs(span),
        request.logprobs.top,
        _ruled(progress) if request.rules is not None and progress.samples_at(span.end) else None,
        Constraint(request.grammar, progress.output_tokens) if request.grammar else None,
    )


def _ruled(progress: Progress) -> RuledOutput:
    request = progress.request
    assert request.rules is not None, request.id
    return RuledOutput(request.rules, progress.tokens(), len(request.prompt), request.stop_ids)

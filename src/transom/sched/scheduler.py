"""Continuous batching with chunked prefill: plan, commit, and apply what was computed."""

from transom.errors import BadRequest, ConfigError, NoSpace, RequestTooLarge
from transom.kv.cache import Holding, HybridCache, Transaction
from transom.sched.costs import CostLearner, counts_of
from transom.sched.intents import CONSIDERED, Admit, Continue, Plan, Situation
from transom.sched.limits import Limits
from transom.sched.order import Ranker
from transom.sched.outputs import Outputs
from transom.sched.planning import plan
from transom.sched.queue import Queue
from transom.sched.running import RunningSet
from transom.sched.states import Idle, IdleReason, Progress, Running, Scheduled, Seniority, Step, Waiting
from transom.sched.stats import Counters, SchedulerStats
from transom.sched.tenants import OUTPUT_WEIGHT
from transom.values import (
    Choice,
    Ended,
    Event,
    FinishReason,
    Request,
    RequestId,
    SpanWork,
    StepResult,
    StepWork,
    TokenChosen,
)

Placed = tuple[Continue | Admit, Holding]
"""A span of a plan, and the holding that has pages for it."""


class Scheduler:
    """Owns the queue and the running set. Mutable; one step is in flight at a time.

    Per turn: `tick`; `submit`, `abort`, `flush`; `plan`; `commit`; then, with a step, `apply` or `fail`.
    """

    def __init__(self, cache: HybridCache, limits: Limits) -> None:
        """Raises ConfigError if a request as long as the context would not fit alone."""
        fits = cache.longest_alone(1)
        if limits.context > fits:
            raise ConfigError(f"a context of {limits.context} tokens does not fit in the cache; {fits} do")
        self._cache = cache
        self._limits = limits
        self._outputs = Outputs(limits.first_outputs_expected)
        self._waiting = Queue(limits, Ranker(limits.policy, cache, self._outputs))
        self._running = RunningSet(cache.layout.rows, len(cache.grids))
        self._costs = CostLearner()
        self._arrivals = 0
        self._turns = 0
        self._now = 0.0
        self._counters = Counters()

    # ------------------------------------------------------------ commands

    def submit(self, request: Request) -> None:
        """Queues the request. Raises BadRequest; RequestTooLarge, with the numbers, if it can never run."""
        self._require_servable(request)
        progress = Progress(
            request,
            self._seniority(request),
            limit=min(len(request.prompt) + request.max_tokens, self._limits.context),
        )
        self._arrivals += 1
        self._waiting.add(Waiting(progress, self._turns))

    def abort(self, request: RequestId) -> tuple[Ended, ...]:
        """Ends the request, whatever it is doing; nothing if it is unknown or has ended."""
        waiting = self._waiting.find(request)
        if waiting is not None:
            self._waiting.remove(waiting)
            return (self._ended(waiting.progress, FinishReason.ABORT),)
        running = self._running.find(request)
        if running is None:
            return ()
        return (self._end(running, FinishReason.ABORT),)

    def flush(self) -> None:
        """Forgets all cached prefixes. Running requests go on."""
        self._cache.flush()

    # ------------------------------------------------------------ a turn

    def tick(self, now: float) -> None:
        """The time of this turn. A clock that jumps back is taken as one that stands still."""
        self._now = max(self._now, now)

    def unfinished(self) -> tuple[RequestId, ...]:
        """Every request that has not ended, those that run first."""
        return tuple(state.progress.id for states in (self._running, self._waiting) for state in states)

    @property
    def has_work(self) -> bool:
        """Whether any request is unfinished: if so, the next turn computes something."""
        return bool(len(self._waiting) or len(self._running))

    def plan(self) -> Plan:
        """What the next step should be. Changes nothing."""
        return plan(self._situation())

    def commit(self, plan: Plan) -> Step | Idle:
        """Retracts, admits and takes pages, in one transaction. A span without a page is not in the step."""
        self._turns += 1
        self._waiting.look_again()
        if not plan.spans:
            assert not plan.retract, plan
            return self._idle()
        with self._cache.transaction() as transaction:
            for victim in plan.retract:
                self._give_back(victim)
            placed = self._place(plan, transaction)
        for victim in plan.retract:
            self._move_to_waiting(victim)
        scheduled = tuple(
            Scheduled(self._running_for(intent, holding), intent.span) for intent, holding in placed
        )
        self._counters.deferred_spans += len(plan.spans) - len(scheduled)
        if not scheduled:
            return self._idle()
        self._counters.steps += 1
        self._counters.spans += len(scheduled)
        copies, discards = self._cache.pending_copies(), self._cache.pending_discards()
        return Step(StepWork(tuple(map(_work, scheduled)), copies, discards), scheduled)

    def apply(self, step: Step, result: StepResult) -> tuple[Event, ...]:
        """What was computed is computed: advance, publish, slide or end. Tokens and ends, in span order."""
        self._cache.copies_done()
        events: list[Event] = []
        for scheduled, choice in zip(step.scheduled, result.choices, strict=True):
            self._advance(scheduled)
            events += self._outcome(scheduled, choice)
        self._account(step, result)
        return tuple(events)

    def fail(self, step: Step, message: str) -> tuple[Event, ...]:
        """The step was not computed: its requests end with an error, and nothing of it is published."""
        self._counters.failed_steps += 1
        ends = tuple(self._end(s.running, FinishReason.ERROR, message) for s in step.scheduled)
        self._cache.copies_done()
        return ends

    def stats(self) -> SchedulerStats:
        return self._counters.snapshot(running=len(self._running), waiting=len(self._waiting))

    # ------------------------------------------------------------ submit

    def _require_servable(self, request: Request) -> None:
        prompt, context = len(request.prompt), self._limits.context
        if request.id in self._waiting or request.id in self._running:
            raise BadRequest(f"a request with id {request.id} is unfinished", param="id")
        if prompt == 0:
            raise BadRequest("the prompt is empty", param="prompt")
        if request.max_tokens < 0:
            raise BadRequest(f"max_tokens is {request.max_tokens}; it cannot be negative", param="max_tokens")
        if prompt > context:
            raise RequestTooLarge(
                f"the prompt has {prompt} tokens; this server's context is {context} tokens"
            )
        if prompt == context and request.max_tokens > 0:
            raise RequestTooLarge(
                f"the prompt has {prompt} tokens, which leaves no place for output: "
                f"this server's context is {context} tokens"
            )

    def _seniority(self, request: Request) -> Seniority:
        return (self._arrivals - self._limits.priority_bonus * request.priority, request.id)

    # ------------------------------------------------------------ plan

    def _situation(self) -> Situation:
        is_full = len(self._running) >= min(self._limits.max_running, self._cache.layout.rows)
        considered = () if is_full else self._waiting.considered(CONSIDERED)
        return Situation(
            cache=self._cache,
            limits=self._limits,
            turns=self._turns,
            waiting=considered,
            firm=frozenset([w.progress.id for w in considered if self._waiting.is_firm(w)]),
            senior=self._waiting.senior(),
            running=self._running.states(),
            columns=self._running.columns(),
            outputs=self._outputs.lengths(),
            cost=self._costs.cost(),
        )

    # ------------------------------------------------------------ commit

    def _idle(self) -> Idle:
        reason = IdleReason.NO_ROOM if self.has_work else IdleReason.NO_WORK
        self._counters.idle[reason] += 1
        return Idle(reason)

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
            self._running.refresh(intent.running)
        return True

    def _running_for(self, intent: Continue | Admit, holding: Holding) -> Running:
        if isinstance(intent, Continue):
            return intent.running
        self._waiting.admit(intent.waiting)
        running = Running(intent.waiting.progress, holding)
        self._running.add(running)
        self._count_admission(running.progress, holding)
        return running

    def _count_admission(self, progress: Progress, holding: Holding) -> None:
        if not progress.admissions:
            progress.cached_tokens = holding.start
            self._counters.cached_tokens += holding.start
            self._counters.prompt_tokens += len(progress.request.prompt)
            self._waiting.charge(progress.request.tenant, len(progress.request.prompt) - holding.start)
        progress.admissions += 1
        progress.computed_peak = max(progress.computed_peak, holding.start)

    # ------------------------------------------------------------ retract

    def _give_back(self, victim: Running) -> None:
        """Publishes what is computed, so that coming back is a hit as long as the memory is not needed."""
        holding = victim.holding
        self._cache.truncate(holding, holding.computed)
        self._cache.publish(holding, victim.progress.tokens(holding.computed))
        self._cache.drop(holding)

    def _move_to_waiting(self, victim: Running) -> None:
        self._running.remove(victim)
        victim.progress.retractions += 1
        self._counters.retractions += 1
        self._waiting.add(Waiting(victim.progress, self._turns))

    # ------------------------------------------------------------ apply

    def _account(self, step: Step, result: StepResult) -> None:
        """Learns what steps take, if anybody asks; charges outputs, if there are tenants to be fair to."""
        if self._limits.target_seconds is not None:
            self._costs.observe(counts_of(step.work), result.seconds)
        if self._waiting.has_tenants:
            for scheduled, choice in zip(step.scheduled, result.choices, strict=True):
                if choice is not None:
                    self._waiting.charge(scheduled.running.progress.request.tenant, OUTPUT_WEIGHT)

    def _advance(self, scheduled: Scheduled) -> None:
        """A page that is whole now goes to the tree, so that others find it from the next step on."""
        running, span = scheduled.running, scheduled.span
        self._cache.advance(running.holding, span.end)
        page = self._cache.layout.page_size
        if span.end // page > span.start // page:
            self._cache.publish(running.holding, running.progress.tokens(span.end))
            self._cache.slide(running.holding)
            self._running.refresh(running)
        progress = running.progress
        self._counters.computed_tokens += len(span)
        if running.holding.clip:
            self._counters.repaired_tokens += max(0, min(span.end, running.holding.full_until) - span.start)
        self._counters.recomputed_tokens += max(0, min(span.end, progress.computed_peak) - span.start)
        progress.computed_peak = max(progress.computed_peak, span.end)

    def _outcome(self, scheduled: Scheduled, choice: Choice | None) -> tuple[Event, ...]:
        running = scheduled.running
        progress = running.progress
        if choice is None:
            done = scheduled.span.end == progress.limit
            return (self._end(running, FinishReason.LENGTH),) if done else ()
        progress.append(choice.token)
        self._counters.generated_tokens += 1
        chosen = TokenChosen(progress.id, choice.token, choice.logprob)
        reason = _finish_reason(progress, choice.token)
        return (chosen,) if reason is None else (chosen, self._end(running, reason))

    # ------------------------------------------------------------ end

    def _end(self, running: Running, reason: FinishReason, message: str = "") -> Ended:
        self._running.remove(running)
        self._cache.drop(running.holding)
        return self._ended(running.progress, reason, message)

    def _ended(self, progress: Progress, reason: FinishReason, message: str = "") -> Ended:
        self._counters.finished += 1
        if progress.outputs:
            self._outputs.ended(progress.outputs)
        return progress.ended(reason, message)


def _work(scheduled: Scheduled) -> SpanWork:
    """Logits are wanted where the span reaches the last known token and another may follow."""
    progress, holding, span = scheduled.running.progress, scheduled.running.holding, scheduled.span
    wanted = span.end == progress.length and progress.wants_token
    return SpanWork(
        request=progress.id,
        row=holding.row,
        start=span.start,
        tokens=progress.slice(span),
        sampling=progress.request.sampling if wanted else None,
        clip=holding.clip,
        store_from=holding.full_until,
    )


def _finish_reason(progress: Progress, token: int) -> FinishReason | None:
    if token in progress.request.stop_ids:
        return FinishReason.STOP
    return FinishReason.LENGTH if progress.length == progress.limit else None

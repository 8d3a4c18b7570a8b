"""The requests there are, in which state each is, and how they end."""

from transom.kv.cache import Holding, HybridCache
from transom.sched.config import SchedulerConfig
from transom.sched.deadlines import Deadlines
from transom.sched.order import Ranker
from transom.sched.output_lengths import Outputs
from transom.sched.queue import Queue
from transom.sched.request import Progress, Running, Step, Waiting
from transom.sched.running import RunningSet
from transom.sched.siblings import Siblings
from transom.values import Ended, FinishReason, RequestId
from transom.wire import Counters


class Requests:
    """Owns every request that has not ended, and the step in flight. Mutable, the scheduler's.

    What ends while a step writes to its pages is told at once, and keeps them until the step has landed.
    """

    def __init__(self, cache: HybridCache, counters: Counters, limits: SchedulerConfig) -> None:
        self.outputs = Outputs(limits.first_outputs_expected)
        self.waiting = Queue(limits, Ranker(limits.policy, cache, self.outputs))
        self.running = RunningSet(cache.layout.rows)
        self.siblings = Siblings()
        self.deadlines = Deadlines()
        self.iterations = 0
        self.now = 0.0
        self.in_flight: Step | None = None
        self._leaving: list[Holding] = []
        self._cache = cache
        self._counters = counters

    # ------------------------------------------------------------ queries

    def __contains__(self, request: RequestId) -> bool:
        return request in self.waiting or request in self.running or request in self.siblings

    def unfinished(self) -> tuple[RequestId, ...]:
        """Every request that has not ended: those that run, those that wait, those not born yet."""
        ids = (state.progress.id for states in (self.running, self.waiting) for state in states)
        return (*ids, *self.siblings)

    @property
    def has_work(self) -> bool:
        """Whether any request is unfinished."""
        return bool(len(self.waiting) or len(self.running))

    def goes_on(self, running: Running) -> bool:
        """Whether a request of the step that has landed did not end in the meantime."""
        return self.running.find(running.progress.id) is running

    # ------------------------------------------------------------ come, begin, give way

    def add(self, first: Progress, siblings: list[Progress]) -> None:
        """Requests that come in. The siblings wait for what `first` computes."""
        self.wait(first)
        self.siblings.add(first.id, siblings)
        for progress in (first, *siblings):
            progress.arrived = self.now
            self.deadlines.add(progress.id, progress.request.deadline)

    def wait(self, progress: Progress) -> None:
        self.waiting.add(Waiting(progress, self.iterations, self.now))

    def begin(self, waiting: Waiting, holding: Holding) -> Running:
        """An admission."""
        self.waiting.admit(waiting)
        progress = waiting.progress
        self._counters.admissions += 1
        self._counters.queue_seconds += self.now - waiting.clock
        if not progress.admissions:
            self._counters.prompt_tokens += len(progress.request.prompt)
            self._counters.cached_tokens += holding.start
            progress.cached_tokens = holding.start
            progress.queue_seconds = self.now - progress.arrived
            self.waiting.charge(progress.request.tenant, len(progress.request.prompt) - holding.start)
        progress.admissions += 1
        progress.computed_peak = max(progress.computed_peak, holding.start)
        return self.run(progress, holding)

    def run(self, progress: Progress, holding: Holding) -> Running:
        running = Running(progress, holding)
        self.running.add(running)
        return running

    def give_back(self, victim: Running) -> None:
        """Publishes what is computed, so that coming back is a hit as long as the memory is not needed."""
        holding = victim.holding
        self._cache.truncate(holding, holding.computed)
        self._cache.publish(holding, victim.progress.tokens(holding.computed))
        self._cache.drop(holding)

    def retract(self, victim: Running) -> None:
        """It waits again, having given back its pages."""
        self.running.remove(victim)
        victim.progress.retractions += 1
        self._counters.retractions += 1
        self.wait(victim.progress)

    def retract_all(self) -> None:
        assert self.in_flight is None, "a step still writes to the pages"
        for running in tuple(self.running):
            self.give_back(running)
            self.retract(running)

    # ------------------------------------------------------------ end

    def stop(self, request: RequestId, reason: FinishReason, message: str = "") -> tuple[Ended, ...]:
        """Ends the request, whatever it is doing; nothing if it is unknown or has ended."""
        if request in self.siblings:
            return (self.ended(self.siblings.remove(request), reason, message),)
        waiting = self.waiting.find(request)
        if waiting is not None:
            self.waiting.remove(waiting)
            return (self.ended(waiting.progress, reason, message),)
        running = self.running.find(request)
        return () if running is None else (self.end(running, reason, message),)

    def end(self, running: Running, reason: FinishReason, message: str = "") -> Ended:
        self.running.remove(running)
        if self._is_in_flight(running):
            self._leaving.append(running.holding)
        else:
            self._cache.drop(running.holding)
        return self.ended(running.progress, reason, message)

    def ended(self, progress: Progress, reason: FinishReason, message: str = "") -> Ended:
        """It is in no state any more. Whoever was to be born of it waits in its place."""
        if not progress.has_begun:
            progress.queue_seconds = self.now - progress.arrived
        self._counters.requests_finished += 1
        self._counters.aborted += reason is FinishReason.ABORT
        self._counters.expired += reason is FinishReason.DEADLINE
        self.deadlines.forget(progress.id)
        if progress.outputs:
            self.outputs.ended(progress.outputs)
        heir = self.siblings.inherit(progress.id)
        if heir is not None:
            self.wait(heir)
        return progress.ended(reason, message)

    # ------------------------------------------------------------ in flight

    def land(self, step: Step) -> None:
        """The step writes no more."""
        assert self.in_flight is step, (self.in_flight, step)
        self.in_flight = None

    def drop_those_that_left(self) -> int:
        """The pages of requests that ended in flight. Returns how many there were."""
        leaving = len(self._leaving)
        for holding in self._leaving:
            self._cache.drop(holding)
        self._leaving.clear()
        return leaving

    def _is_in_flight(self, running: Running) -> bool:
        step = self.in_flight
        return step is not None and any(scheduled.running is running for scheduled in step.scheduled)

"""The requests table: every unfinished request, its state, its deadline, and how it ends."""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from transom.kv.cache import Holding, HybridCache
from transom.sched.config import SchedulerConfig
from transom.sched.output_lengths import OutputHistory
from transom.sched.queue import Queue
from transom.sched.request import Progress, Running, Step, Waiting
from transom.sched.running import RunningSet
from transom.values import Ended, FinishReason, RequestId
from transom.wire import Counters

HEAP_SLACK = 64
"""Heap entries of ended requests that are kept before the heap is rebuilt."""


class Requests:
    """Owns every unfinished request, and the step in flight. Mutable, the scheduler's.

    A request that ends while a step writes to its pages ends at once for its client. Its pages are freed when
    the step has landed.
    """

    def __init__(self, cache: HybridCache, counters: Counters, config: SchedulerConfig) -> None:
        self.outputs = OutputHistory(config.first_outputs_expected)
        self.waiting = Queue(config, cache, self.outputs)
        self.running = RunningSet(cache.layout.rows)
        self.siblings = Siblings()
        self.deadlines = Deadlines()
        self.iterations = 0
        self.now = 0.0
        self.in_flight: Step | None = None
        self._ended_in_flight: list[Holding] = []
        self._cache = cache
        self._counters = counters

    # ------------------------------------------------------------ queries

    def __contains__(self, request: RequestId) -> bool:
        return request in self.waiting or request in self.running or request in self.siblings

    def unfinished(self) -> tuple[RequestId, ...]:
        """Every unfinished request: running, waiting, or waiting for the first output of its prompt."""
        ids = (state.progress.id for states in (self.running, self.waiting) for state in states)
        return (*ids, *self.siblings)

    @property
    def has_work(self) -> bool:
        """Whether any request is unfinished. Siblings always have a first output that waits or runs."""
        return bool(len(self.waiting) or len(self.running))

    def is_unfinished(self, running: Running) -> bool:
        """Whether a request of the step that has landed was not ended in the meantime."""
        return self.running.find(running.progress.id) is running

    # ------------------------------------------------------------ add, admit, retract

    def add(self, first: Progress, siblings: list[Progress]) -> None:
        """Adds a submitted request. Its siblings wait until `first` has computed the prompt."""
        self.wait(first)
        self.siblings.add(first.id, siblings)
        for progress in (first, *siblings):
            progress.arrived = self.now
            self.deadlines.add(progress.id, progress.request.deadline)

    def wait(self, progress: Progress) -> None:
        self.waiting.add(Waiting(progress, self.iterations, self.now))

    def admit(self, waiting: Waiting, holding: Holding) -> Running:
        self.waiting.admit(waiting)
        progress = waiting.progress
        self._counters.admissions += 1
        self._counters.queue_seconds += self.now - waiting.clock
        if not progress.admissions:
            # A retraction is not the client's doing, so only the first admission counts for usage and charge.
            prompt = len(progress.request.prompt)
            # A request that arrived with outputs can hit those as well; they are not part of the prompt.
            progress.cached_tokens = min(holding.start, prompt)
            self._counters.prompt_tokens += prompt
            self._counters.cached_tokens += progress.cached_tokens
            progress.queue_seconds = self.now - progress.arrived
            self.waiting.charge(progress.request.tenant, prompt - progress.cached_tokens)
        progress.admissions += 1
        progress.computed_peak = max(progress.computed_peak, holding.start)
        return self.run(progress, holding)

    def run(self, progress: Progress, holding: Holding) -> Running:
        running = Running(progress, holding)
        self.running.add(running)
        return running

    def publish_and_drop(self, victim: Running) -> None:
        """Publishes the computed pages and drops the holding. A readmission hits them unless evicted.

        Pages beyond `computed` are cut off first: they were allocated for a span that is not computed.
        """
        holding = victim.holding
        self._cache.truncate(holding, holding.computed)
        self._cache.publish(holding, victim.progress.tokens(holding.computed))
        self._cache.drop(holding)

    def retract(self, victim: Running) -> None:
        """Puts a running request back into the queue, after its holding was dropped."""
        self.running.remove(victim)
        self._counters.retractions += 1
        self.wait(victim.progress)

    def retract_all(self) -> None:
        assert self.in_flight is None, "a step still writes to the pages"
        for running in tuple(self.running):
            self.publish_and_drop(running)
            self.retract(running)

    # ------------------------------------------------------------ end

    def stop(self, request: RequestId, reason: FinishReason, message: str = "") -> tuple[Ended, ...]:
        """Ends the request in any state; () if it is unknown or has ended."""
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
        # Freed pages could be allocated in the next iteration, and the step in flight still writes to them.
        if self._is_in_flight(running):
            self._ended_in_flight.append(running.holding)
        else:
            self._cache.drop(running.holding)
        return self.ended(running.progress, reason, message)

    def ended(self, progress: Progress, reason: FinishReason, message: str = "") -> Ended:
        """Accounts for a request that has left all states. Its next sibling takes its place in the queue."""
        if not progress.has_begun:  # it has waited until now
            progress.queue_seconds = self.now - progress.arrived
        self._counters.requests_finished += 1
        self._counters.aborted += reason is FinishReason.ABORT
        self._counters.expired += reason is FinishReason.DEADLINE
        self.deadlines.forget(progress.id)
        # A request without outputs, such as one aborted in its prefill, shows nothing about their lengths.
        if progress.outputs:
            self.outputs.add(progress.outputs)
        next_in_line = self.siblings.replace_first(progress.id)
        if next_in_line is not None:
            self.wait(next_in_line)
        return progress.ended(reason, message)

    # ------------------------------------------------------------ in flight

    def land(self, step: Step) -> None:
        """The step has landed: it writes no more."""
        assert self.in_flight is step, (self.in_flight, step)
        self.in_flight = None

    def drop_ended_in_flight(self) -> int:
        """Drops the holdings of requests that ended in flight. Returns their number."""
        ended = len(self._ended_in_flight)
        for holding in self._ended_in_flight:
            self._cache.drop(holding)
        self._ended_in_flight.clear()
        return ended

    def _is_in_flight(self, running: Running) -> bool:
        step = self.in_flight
        return step is not None and any(scheduled.running is running for scheduled in step.scheduled)


class Siblings:
    """Owns the further outputs of prompts, until the first output of the prompt samples a token. Mutable.

    submit -> sibling -> first token, from the first output's logits -> Running, by a fork
                                                                     -> Waiting, if a row or a page is missing
    If the first output ends before that, the next sibling takes its place in the queue.
    """

    def __init__(self) -> None:
        self._by_first: dict[RequestId, list[Progress]] = {}
        self._waiting_for_first: dict[RequestId, RequestId] = {}
        """The first output of each sibling."""

    def __len__(self) -> int:
        return len(self._waiting_for_first)

    def __iter__(self) -> Iterator[RequestId]:
        return iter(self._waiting_for_first)

    def __contains__(self, request: RequestId) -> bool:
        return request in self._waiting_for_first

    def of(self, first: RequestId) -> tuple[Progress, ...]:
        """The siblings that wait for `first`, senior first."""
        return tuple(self._by_first.get(first, ()))

    def add(self, first: RequestId, siblings: list[Progress]) -> None:
        if siblings:
            assert first not in self._by_first and first not in self._waiting_for_first, first
            self._by_first[first] = siblings
            self._waiting_for_first.update((sibling.id, first) for sibling in siblings)

    def remove(self, request: RequestId) -> Progress:
        """Removes a sibling that has its first token, or has ended."""
        first = self._waiting_for_first.pop(request)
        siblings = self._by_first[first]
        (found,) = [sibling for sibling in siblings if sibling.id == request]
        siblings.remove(found)
        if not siblings:
            del self._by_first[first]
        return found

    def replace_first(self, first: RequestId) -> Progress | None:
        """Removes and returns the next sibling, if any, of a `first` that ended before it sampled a token.

        The remaining siblings now wait for the returned one.
        """
        if first not in self._by_first:
            return None
        following, *siblings = self._by_first.pop(first)
        for sibling in (following, *siblings):
            del self._waiting_for_first[sibling.id]
        self.add(following.id, siblings)
        return following


class Deadlines:
    """Owns the deadlines of unfinished requests. Mutable."""

    def __init__(self) -> None:
        self._by_request: dict[RequestId, float] = {}
        self._heap: list[tuple[float, RequestId]] = []
        """The earliest first; may hold requests that have ended."""

    @property
    def next(self) -> float | None:
        """The earliest deadline."""
        return min(self._by_request.values(), default=None)

    def add(self, request: RequestId, deadline: float | None) -> None:
        if deadline is not None:
            self._by_request[request] = deadline
            heappush(self._heap, (deadline, request))

    def forget(self, request: RequestId) -> None:
        """Removes a request that has ended."""
        self._by_request.pop(request, None)
        # The entry in the heap stays until its time comes: most requests end long before their deadlines, and
        # rebuilding the heap now and then is cheaper than searching it for each of them.
        if len(self._heap) > HEAP_SLACK + 2 * len(self._by_request):
            self._heap = [(deadline, other) for other, deadline in self._by_request.items()]
            heapify(self._heap)

    def passed(self, now: float) -> tuple[RequestId, ...]:
        """Removes and returns the requests that are past their deadlines, the earliest first."""
        found = []
        while self._heap and self._heap[0][0] <= now:
            _, request = heappop(self._heap)
            if self._by_request.pop(request, None) is not None:
                found.append(request)
        return tuple(found)

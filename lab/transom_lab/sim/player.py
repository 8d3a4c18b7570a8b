"""Plays a trace through the real scheduler and cache in virtual time. A cost model replaces the model."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from transom.config import EngineConfig
from transom.engine.engine import scheduler_config
from transom.engine.sizing import Sizing, size_pools
from transom.kv.cache import HybridCache
from transom.kv.check import check
from transom.models.spec import ModelSpec
from transom.sched.loop import Iteration, iterate
from transom.sched.scheduler import Scheduler
from transom.steps import SpanWork, StepResult, StepWork
from transom.values import (
    Ended,
    IdleReason,
    Request,
    RequestId,
    SampledToken,
    Sampling,
    Sibling,
    TokenSampled,
)
from transom.wire import Stats, Submit
from transom_lab.sim.costs import MachineCost
from transom_lab.sim.records import RequestRecord, Sample, StartKind, Timeline, memory_of
from transom_lab.sim.trace import Arrival, Trace, followers, siblings

STOP = 1
"""Last token of each output of a request with several outputs, which have one common limit: all but the
longest must stop before it."""

Progress = Callable[[int, int], None]
"""Called with the number of answers that have ended, and of all."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The simulated server. `turnaround_s` passes from an answer's end to the client's next request."""

    spec: ModelSpec
    engine: EngineConfig
    cost: MachineCost
    turnaround_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Played:
    """The result: one record per arrival, in the order of the trace, and samples over time.

    `ended_at` and `busy_s` are virtual seconds: the end of the last answer, and the time spent in steps.
    """

    trace: Trace
    sizing: Sizing
    records: tuple[RequestRecord, ...]
    samples: tuple[Sample, ...]
    stats: Stats
    ended_at: float
    busy_s: float


class Hang(AssertionError):
    """The scheduler has requests but plans no step. A bug: requests that cannot fit are refused at once."""


def play(trace: Trace, setting: Setting, progress: Progress | None = None) -> Played:
    """Plays the whole trace. Raises ConfigError if the memory is too small for any request."""
    player = Player(trace, setting)
    ended = 0
    while player.iterate():
        if progress is not None and player.ended != ended:
            ended = player.ended
            progress(ended, len(trace.arrivals))
    return player.played()


class Player:
    """Owns a simulated server and its clients. Mutable. The id of a request is the index of its arrival."""

    def __init__(self, trace: Trace, setting: Setting) -> None:
        self.trace = trace
        self.sizing = size_pools(setting.spec, setting.engine)
        self.cache = HybridCache(self.sizing.layout)
        self.scheduler = Scheduler(self.cache, scheduler_config(setting.engine, self.sizing))
        self.records: dict[int, RequestRecord] = {}
        self.ended = 0
        self._clients = Clients(trace, setting.turnaround_s)
        self._siblings = siblings(trace.arrivals)
        self._runner = CostRunner(trace, setting.cost, self.cache, self.records)
        self._page_bytes = tuple(shape.page_bytes for shape in self.sizing.shapes)
        self._paranoid = setting.engine.paranoid
        self._timeline = Timeline()
        self._tokens = dict.fromkeys(StartKind, 0)

    @property
    def now(self) -> float:
        return self._runner.now

    def iterate(self) -> bool:
        """One iteration of the engine, or a jump to the next arrival. False when all answers have ended."""
        arriving = self._clients.due(self.now)
        if not arriving and not self.scheduler.has_work:
            at = self._clients.next_at()
            if at is None:
                return False
            self._runner.now = at
            return True
        # As in the engine's loop: a request that arrives during a step is submitted when the step has ended.
        commands = [Submit(self._request(index)) for index in arriving]
        self._record(iterate(self.scheduler, commands, self._runner, self.now))
        if self._paranoid:
            check(self.cache)
        return True

    def played(self) -> Played:
        assert self.ended == len(self.trace.arrivals), (self.ended, len(self.trace.arrivals))
        self._sample()
        return Played(
            trace=self.trace,
            sizing=self.sizing,
            records=tuple(self.records[index] for index in range(len(self.trace.arrivals))),
            samples=tuple(self._timeline.samples),
            stats=self.scheduler.stats(),
            ended_at=self.now,
            busy_s=self._runner.busy_s,
        )

    def _request(self, index: int) -> Request:
        arrival = self.trace.arrivals[index]
        # In an open loop a request arrives while a step runs, so before `now`. Other requests are sent by a
        # client that waited for an answer or for a free place, and that happened just now.
        at = arrival.at if arrival.after is None and self.trace.concurrency is None else self.now
        outputs = self._siblings.get(index, [])
        self.records[index] = RequestRecord(at, len(arrival.prompt))
        for output in outputs:
            self.records[output] = RequestRecord(at, 0)
        return request_of(index, self.trace.arrivals, outputs)

    def _record(self, iteration: Iteration) -> None:
        # A server would fail the requests and continue. Here the runner cannot fail, so this is a bug.
        if iteration.failure is not None:
            raise iteration.failure
        if iteration.idle is not None and iteration.idle.reason is IdleReason.NO_ROOM:
            raise Hang(f"work and no room at {self.now:.3f} s: {self.scheduler.stats()}")
        for rejected in iteration.rejected:
            self.records[rejected.request].refused = str(rejected.error)
            self._end(rejected.request)
        for event in iteration.events:
            if isinstance(event, TokenSampled):
                self.records[event.request].token_times.append(self.now)
            elif isinstance(event, Ended):
                self.records[event.request].reason = event.reason
                self._end(event.request)
        if self._timeline.is_due(self.now):
            self._sample()

    def _end(self, index: int) -> None:
        record = self.records[index]
        assert record.ended_at is None, record
        record.ended_at = self.now
        if record.started_at is not None:  # otherwise it was refused, and its prompt does not count
            self._tokens[record.start_kind] += record.cached_tokens
            self._tokens[StartKind.COLD] += record.prompt_tokens - record.cached_tokens
        self.ended += 1
        self._clients.ended(index, self.now)

    def _sample(self) -> None:
        stats = self.scheduler.stats()
        used, cached = memory_of(self.cache, self._page_bytes)
        self._timeline.add(Sample(self.now, stats.running, stats.waiting, used, cached, dict(self._tokens)))


def request_of(index: int, arrivals: Sequence[Arrival], outputs: Sequence[int] = ()) -> Request:
    """The request of an arrival; `outputs` are the indices of its further outputs (n > 1)."""
    arrival = arrivals[index]
    return Request(
        RequestId(index),
        arrival.prompt,
        max(len(arrivals[output].outputs) for output in (index, *outputs)),
        stop_ids=frozenset({STOP}) if outputs else frozenset(),
        priority=arrival.priority,
        tenant=arrival.tenant,
        # The runner answers a sibling by its index, and sees of it only the seed of its sampling.
        siblings=tuple(Sibling(RequestId(output), Sampling(seed=output)) for output in outputs),
    )


class CostRunner:
    """A runner that computes nothing: it answers with the tokens of the trace and advances the virtual time.

    Mutable. Owns the time.
    """

    def __init__(
        self, trace: Trace, cost: MachineCost, cache: HybridCache, records: dict[int, RequestRecord]
    ) -> None:
        self.now = 0.0
        self.busy_s = 0.0
        self._arrivals = trace.arrivals
        families = siblings(trace.arrivals)
        self._must_stop = {*families, *(index for outputs in families.values() for index in outputs)}
        """Arrivals that share a request and its limit with another: their last token is `STOP`."""
        self._cost = cost
        self._cache = cache
        self._records = records
        self._computed: dict[RequestId, int] = {}
        """Tokens computed, by request. A span that starts elsewhere shows that the request was admitted."""

    def run(self, work: StepWork) -> StepResult:
        # Lists inside: a generator is slower, and this runs for every span of every step.
        choices = tuple([self._choose(span) for span in work.spans])
        first_tokens = tuple([tuple([self._output(s.seed, 0) for s in span.siblings]) for span in work.spans])
        seconds = self._cost.seconds(work, self._cache)
        self.now += seconds
        self.busy_s += seconds
        return StepResult(choices, seconds, first_tokens)

    def _choose(self, span: SpanWork) -> SampledToken | None:
        request, end = span.request, span.end
        # Spans of a request are contiguous from its admission to its end or its retraction.
        if self._computed.get(request) != span.start:
            self._records[request].admitted(span, self.now)
        self._computed[request] = end
        if span.sampling is None:
            return None
        return self._output(request, end - len(self._arrivals[request].prompt))

    def _output(self, index: int, number: int) -> SampledToken:
        arrival = self._arrivals[index]
        is_last = number == len(arrival.outputs) - 1
        return SampledToken(
            STOP if is_last and index in self._must_stop else int(arrival.outputs[number]), 0.0
        )


class Clients:
    """The clients of a trace: owns the arrivals that were not sent yet. Mutable; calls come in order of time.

    `turnaround_s` seconds pass from the end of an answer until the next request that waits for it can be
    sent.
    """

    def __init__(self, trace: Trace, turnaround_s: float = 0.0) -> None:
        self._arrivals = trace.arrivals
        self._followers = followers(trace.arrivals)
        self._turnaround_s = turnaround_s
        self._outputs_left = {first: 1 + len(more) for first, more in siblings(trace.arrivals).items()}
        """By request with several outputs: how many of them have not ended."""
        # Requests with `after` join when that answer ends. Further outputs are part of their request.
        self._pending = [
            (a.at, index) for index, a in enumerate(trace.arrivals) if a.after is None and a.sample_of is None
        ]
        heapify(self._pending)
        places = len(trace.arrivals) if trace.concurrency is None else trace.concurrency
        self._places_free_at = deque([0.0] * places)
        """For each request that could be in flight and is not: since when, ascending."""

    def next_at(self) -> float | None:
        """When the next request is sent; None if that depends on the end of an answer, or if all are sent."""
        if not self._pending or not self._places_free_at:
            return None
        return max(self._pending[0][0], self._places_free_at[0])

    def due(self, now: float) -> list[int]:
        """Takes the arrivals that are sent by `now`, in order. They are in flight from then on."""
        sent = []
        while (at := self.next_at()) is not None and at <= now:
            self._places_free_at.popleft()
            sent.append(heappop(self._pending)[1])
        return sent

    def ended(self, index: int, now: float) -> None:
        """The answer to an arrival is complete or was refused. A request ends with its last output."""
        free_at = now + self._turnaround_s
        sample_of = self._arrivals[index].sample_of
        first = index if sample_of is None else sample_of
        self._outputs_left[first] = self._outputs_left.get(first, 1) - 1
        if not self._outputs_left[first]:
            self._places_free_at.append(free_at)
        for follower in self._followers.get(index, ()):
            heappush(self._pending, (free_at + self._arrivals[follower].at, follower))

"""Plays a trace: the real scheduler and memory core, virtual time, and a price in place of the model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from transom.config import EngineConfig
from transom.engine.engine import limits_of
from transom.engine.sizing import Sizing, size_pools
from transom.kv.cache import HybridCache
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
from transom_lab.sim.clients import Clients
from transom_lab.sim.costs import MachineCost
from transom_lab.sim.records import Cause, Life, Sample, Timeline, memory_of
from transom_lab.sim.trace import Arrival, Trace, samples

END = 1
"""The last token of each of several outputs of a request: one limit is for them all, and most are shorter."""

Progress = Callable[[int, int], None]
"""Told answers that ended, and of how many."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A server that is simulated. `turnaround_s` as in `Clients`."""

    spec: ModelSpec
    engine: EngineConfig
    cost: MachineCost
    turnaround_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Played:
    """What happened: a life for each arrival, in their order."""

    trace: Trace
    sizing: Sizing
    lives: tuple[Life, ...]
    samples: tuple[Sample, ...]
    stats: Stats
    ended_at: float
    busy_s: float


class Hang(AssertionError):
    """The scheduler has work and does nothing: a bug of ours."""


def play(trace: Trace, setting: Setting, progress: Progress | None = None) -> Played:
    """The whole trace, to its last end. Raises ConfigError if the pools could run nothing."""
    player = Player(trace, setting)
    ended = 0
    while player.iterate():
        if progress is not None and player.ended != ended:
            ended = player.ended
            progress(ended, len(trace.arrivals))
    return player.played()


class PricedRunner:
    """Answers with what the trace says, and lets the price of each step pass. Mutable: it owns the time."""

    def __init__(self, trace: Trace, cost: MachineCost, cache: HybridCache, lives: dict[int, Life]) -> None:
        self.now = 0.0
        self.busy_s = 0.0
        self._arrivals = trace.arrivals
        families = samples(trace.arrivals)
        self._several = {*families, *(index for others in families.values() for index in others)}
        """Arrivals that share a request."""
        self._cost = cost
        self._cache = cache
        self._lives = lives
        self._reached: dict[RequestId, int] = {}

    def run(self, work: StepWork) -> StepResult:
        choices = tuple([self._choose(span) for span in work.spans])
        siblings = tuple([tuple([self._output(s.seed, 0) for s in span.siblings]) for span in work.spans])
        seconds = self._cost.seconds(work, self._cache)
        self.now += seconds
        self.busy_s += seconds
        return StepResult(choices, seconds, siblings)

    def _choose(self, span: SpanWork) -> SampledToken | None:
        request, end = span.request, span.end
        if self._reached.get(request) != span.start:
            self._lives[request].begin(span, self.now)
        self._reached[request] = end
        if span.sampling is None:
            return None
        return self._output(request, end - len(self._arrivals[request].prompt))

    def _output(self, index: int, number: int) -> SampledToken:
        arrival = self._arrivals[index]
        is_last = number == len(arrival.outputs) - 1
        return SampledToken(END if is_last and index in self._several else int(arrival.outputs[number]), 0.0)


class Player:
    """Owns a simulated server and its clients. Mutable; one `turn` at a time. A request's id is its index."""

    def __init__(self, trace: Trace, setting: Setting) -> None:
        self.trace = trace
        self.sizing = size_pools(setting.spec, setting.engine)
        self.cache = HybridCache(self.sizing.layout)
        self.scheduler = Scheduler(self.cache, limits_of(setting.engine, self.sizing))
        self.lives: dict[int, Life] = {}
        self.ended = 0
        self._clients = Clients(trace, setting.turnaround_s)
        self._samples = samples(trace.arrivals)
        self._runner = PricedRunner(trace, setting.cost, self.cache, self.lives)
        self._page_bytes = tuple(shape.page_bytes for shape in self.sizing.shapes)
        self._paranoid = setting.engine.paranoid
        self._timeline = Timeline()
        self._tokens = dict.fromkeys(Cause, 0)

    @property
    def now(self) -> float:
        return self._runner.now

    def iterate(self) -> bool:
        """One turn, or a wait for the next arrival. False when all has ended."""
        arriving = self._clients.due(self.now)
        if not arriving and not self.scheduler.has_work:
            at = self._clients.next_at()
            if at is None:
                return False
            self._runner.now = at
            return True
        commands = [Submit(self._ask(index)) for index in arriving]
        self._record(iterate(self.scheduler, commands, self._runner, self.now))
        if self._paranoid:
            self.cache.check()
        return True

    def played(self) -> Played:
        assert self.ended == len(self.trace.arrivals), (self.ended, len(self.trace.arrivals))
        self._sample()
        return Played(
            trace=self.trace,
            sizing=self.sizing,
            lives=tuple(self.lives[index] for index in range(len(self.trace.arrivals))),
            samples=tuple(self._timeline.samples),
            stats=self.scheduler.stats(),
            ended_at=self.now,
            busy_s=self._runner.busy_s,
        )

    def _ask(self, index: int) -> Request:
        arrival = self.trace.arrivals[index]
        at = arrival.at if arrival.after is None and self.trace.concurrency is None else self.now
        others = self._samples.get(index, [])
        self.lives[index] = Life(at, len(arrival.prompt))
        for output in others:
            self.lives[output] = Life(at, 0)
        return request_of(index, self.trace.arrivals, others)

    def _record(self, taken: Iteration) -> None:
        if taken.failure is not None:
            raise taken.failure
        if taken.idle is not None and taken.idle.reason is IdleReason.NO_ROOM:
            raise Hang(f"work and no room at {self.now:.3f} s: {self.scheduler.stats()}")
        for refused in taken.rejected:
            self.lives[refused.request].refused = str(refused.error)
            self._end(refused.request)
        for event in taken.events:
            if isinstance(event, TokenSampled):
                self.lives[event.request].token_times.append(self.now)
            elif isinstance(event, Ended):
                self.lives[event.request].reason = event.reason
                self._end(event.request)
        if self._timeline.wants(self.now):
            self._sample()

    def _end(self, index: int) -> None:
        life = self.lives[index]
        assert life.ended_at is None, life
        life.ended_at = self.now
        if life.begun_at is not None:
            self._tokens[life.found] += life.cached_tokens
            self._tokens[Cause.COLD] += life.prompt_tokens - life.cached_tokens
        self.ended += 1
        self._clients.ended(index, self.now)

    def _sample(self) -> None:
        stats = self.scheduler.stats()
        used, cached = memory_of(self.cache, self._page_bytes)
        self._timeline.add(Sample(self.now, stats.running, stats.waiting, used, cached, dict(self._tokens)))


def request_of(index: int, arrivals: Sequence[Arrival], others: Sequence[int] = ()) -> Request:
    """`others` are further outputs of it."""
    arrival = arrivals[index]
    return Request(
        RequestId(index),
        arrival.prompt,
        max(len(arrivals[output].outputs) for output in (index, *others)),
        stop_ids=frozenset({END}) if others else frozenset(),
        priority=arrival.priority,
        tenant=arrival.tenant,
        siblings=tuple(Sibling(RequestId(output), Sampling(seed=output)) for output in others),
    )

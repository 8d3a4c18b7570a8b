"""A scheduler on a checked cache, driven one iteration at a time.

Fault campaigns, scheduler tests and stories share this world. They differ in their expectations: a
campaign judges every event by rank and by bound, a test asserts one scenario, a story draws it.
"""

from collections.abc import Callable, Mapping

import numpy as np

from transom.errors import BadRequest, NoSpace
from transom.kv.cache import CacheLayout, HybridCache
from transom.kv.check import check, evict, inside
from transom.sched.config import SchedulerConfig
from transom.sched.loop import Iteration, iterate
from transom.values import RequestId
from transom.wire import Command, Flush
from transom_lab.worlds.cache_world import CacheWorld
from transom_lab.worlds.checked_scheduler import CheckedScheduler
from transom_lab.worlds.expected import ExpectedOutput
from transom_lab.worlds.runner import ContentRunner, RunnerFailed, Siblings, siblings_by_seed

UNFIT, MISSING = "unfit", "missing"
"""Weights that are refused at once, and weights that fail when they are loaded."""

INJECTED = (RunnerFailed, ValueError)
"""Errors of a step with an injected failure. An answer that does not fit its step is a ValueError."""


class StubWeights:
    """Counts loads of weights that change nothing. Mutable."""

    def __init__(self, cache: HybridCache) -> None:
        self._cache = cache
        self.loaded: list[str] = []

    def check(self, source: str) -> None:
        if source == UNFIT:
            raise BadRequest("not of this model", param="model_path")

    def load(self, source: str) -> None:
        assert not any(inside(self._cache).holdings), ("weights change under", self._cache)
        if source == MISSING:
            raise BadRequest("there is no such file", param="model_path")
        self.loaded.append(source)


class SchedulerWorld:
    """Owns a cache, a scheduler, a content runner, and commands for the next iteration. Mutable."""

    check_every = 1
    """Iterations from one check of the cache's invariants to the next."""

    def __init__(
        self,
        layout: CacheLayout,
        config: SchedulerConfig,
        outputs: Mapping[RequestId, ExpectedOutput],
        *,
        siblings: Siblings = siblings_by_seed,
        in_flight: Callable[[], None] = lambda: None,
    ) -> None:
        self.memory = CacheWorld(layout)
        self.cache = self.memory.cache
        self.scheduler = CheckedScheduler(self.cache, config)
        self.runner = ContentRunner(
            self.memory, outputs, epoch=self.epoch, siblings=siblings, in_flight=in_flight
        )
        self.weights = StubWeights(self.cache)
        self.inbox: list[Command] = []
        self.clock = 0.0
        self.is_starved = False
        """Set while memory runs out between steps: a MemoryError is then no finding."""
        self._flushes = self._iterations = 0

    def epoch(self) -> int:
        """How often the cache was emptied, by flushes and by new weights."""
        return self._flushes + len(self.weights.loaded)

    def send(self, command: Command) -> None:
        """Queues a command for the next iteration."""
        self._flushes += isinstance(command, Flush)
        self.inbox.append(command)

    def iterate(self) -> Iteration:
        """Runs one iteration, and checks every invariant of the cache after it (see `check_every`).

        Raises the error that failed the step, unless it was injected.
        """
        commands, self.inbox = self.inbox, []
        self.runner.begin_iteration()
        done = iterate(self.scheduler, commands, self.runner, self.clock, self.weights)
        failure = done.failure
        starved = self.is_starved and isinstance(failure, MemoryError)
        if failure is not None and not starved and not (self.runner.failed and isinstance(failure, INJECTED)):
            raise failure
        assert starved or self.runner.failed == (failure is not None), ("a broken answer was accepted", done)
        self.runner.settle()
        self._iterations += 1
        if self._iterations % self.check_every == 0:
            check(self.cache)
        return done

    def pin(self, tokens: tuple[int, ...], steps: int) -> None:
        """Pins the cached prefix of `tokens`, as far as the limit on pins allows."""
        try:
            self.cache.pin(self.cache.namespace(RequestId(0), ""), np.array(tokens, np.int32), steps)
        except NoSpace as refused:
            assert refused.args, refused

    def evict(self, component: int, pages: int) -> None:
        """Memory pressure: evicts up to `pages` pages of a component that no request reads."""
        if count := min(pages, inside(self.cache).pools[component].idle):
            evict(self.cache, component, count)

    def require_empty(self) -> None:
        """At idle no page is referenced or private, no row is used, no copy is pending, no page is lost."""
        stats = self.cache.stats()
        assert stats.rows_used == 0 and not any(inside(self.cache).holdings), stats
        for component in stats.components:
            assert component.referenced == 0 and component.private == 0, component
            assert component.free + component.unreferenced == component.capacity, component
        assert self.cache.available.bytes == (self.cache.layout.budget or 0), self.cache.available
        assert self.cache.pending_copies() == (), self.cache.pending_copies()

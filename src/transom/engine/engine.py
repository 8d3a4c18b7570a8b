"""An engine: model, KV cache, scheduler and runner, built from a configuration and driven by one thread."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from transom import wire
from transom.config import EngineConfig, cores_available
from transom.engine.masks import GrammarGate, Masks, ReadVocabulary
from transom.engine.memory import check_pools, memory_available
from transom.engine.reload import DiskWeights, identity_of
from transom.engine.runner import ModelRunner
from transom.engine.sizing import Sizing, size_pools
from transom.errors import require_assertions
from transom.kv.cache import HybridCache
from transom.kv.check import Work, check, check_slices
from transom.kv.stats import ComponentStats
from transom.models.load import load_model
from transom.models.spec import Model, weights_bytes
from transom.ops.backend import choose_ops
from transom.ops.protocol import Ops
from transom.ops.store import KVStore
from transom.sched import loop as sched
from transom.sched.config import SchedulerConfig
from transom.sched.policy import SchedulePolicy
from transom.sched.scheduler import Scheduler
from transom.steps import StepResult, StepWork
from transom.values import RequestId
from transom.weights.builtin import resolve_model
from transom.weights.gguf import read_gguf

Computing = Callable[[tuple[RequestId, ...]], None]
"""Called before each step with the requests that it computes."""


def _tell_nobody(requests: tuple[RequestId, ...]) -> None:
    pass


class _Announced(NamedTuple):
    """A runner that first tells which requests it computes."""

    runner: ModelRunner
    computing: Computing

    def run(self, work: StepWork) -> StepResult:
        self.computing(tuple([span.request for span in work.spans]))
        return self.runner.run(work)


class Engine:
    """Owns the model, the KV pools and the queue. Mutable, for one thread."""

    def __init__(self, config: EngineConfig, model: Model, ops: Ops) -> None:
        require_assertions()
        self.config = config
        self.ops = ops
        self.sizing = size_pools(model.spec, config)
        layout = self.sizing.layout
        check_pools(layout.budget or sum(self.sizing.bytes), memory_available())
        self.cache = HybridCache(self.sizing.layout)
        self.store = KVStore(self.sizing.shapes, self.sizing.layout.pages)
        tables = list(self.cache.page_tables)
        self.runner = ModelRunner(ops, model, self.store, tables, [rule.clips for rule in self.cache.rules])
        self.disk = DiskWeights(self.runner)
        self.scheduler = Scheduler(self.cache, scheduler_config(config, self.sizing, model.spec.vocabulary))
        self._gate = GrammarGate(None)
        self._check: Work | None = None
        """The check in progress. None after every iteration, because the cache may have changed."""

    @property
    def model(self) -> Model:
        """The model, with its current weights."""
        return self.runner.model

    def iterate(
        self, commands: Sequence[wire.Command], computing: Computing = _tell_nobody
    ) -> sched.Iteration:
        """Applies the commands and computes one step: see `transom.sched.loop`."""
        runner = _Announced(self.runner, computing)
        passed = self._gate.pass_on(commands, idle=not self.scheduler.has_work)
        iteration = sched.iterate(self.scheduler, passed.commands, runner, time.monotonic(), self.disk)
        if passed.rejected:
            iteration = replace(iteration, rejected=passed.rejected + iteration.rejected)
        self._check = None
        if self.config.paranoid:
            check(self.cache)
        return iteration

    def allow_grammars(self, vocabulary: ReadVocabulary) -> None:
        """Outputs can be constrained from now on. `vocabulary` is read when the first one is."""
        masks = Masks(vocabulary, self.model.spec.vocabulary, self.config.max_running_requests)
        self.runner.masks, self._gate = masks, GrammarGate(masks)

    def check_slice(self) -> bool:
        """Checks the next slice of the cache's invariants. False once all hold since the last iteration.

        Raises AssertionError if one is broken. A slice delays a request that arrives meanwhile by about a
        millisecond, however large the cache is.
        """
        if self._check is None:
            self._check = check_slices(self.cache)
        return next(self._check, None) is not None

    def weights(self) -> str:
        """Identity of the file of the current weights; empty for weights that were not read from a file."""
        return self.disk.identity

    def stats(self) -> wire.Stats:
        """The scheduler's counters and state, with the use of each KV pool in tokens."""
        stats = self.scheduler.stats()
        # To clients, a request that waits for its grammar waits like any other.
        stats.waiting += len(self._gate)
        stats.components = tuple(map(self._component_use, self.cache.stats().components))
        return stats

    def _component_use(self, pool: ComponentStats) -> wire.ComponentUse:
        size = self.config.page_size
        # Requests use private pages, which are not in the tree, and referenced ones, which are.
        used = pool.referenced + pool.private
        return wire.ComponentUse(pool.name, pool.capacity * size, used * size, pool.unreferenced * size)


def load_engine(config: EngineConfig) -> tuple[wire.Ready, Engine]:
    """Loads a model and builds its engine. Raises ModelFileError and ConfigError."""
    started = time.monotonic()
    path = resolve_model(config.model)
    threads = config.threads or cores_available()
    ops = choose_ops(threads)
    model = load_model(read_gguf(path))
    engine = Engine(config, model, ops)
    engine.disk.source, engine.disk.identity = str(path), identity_of(path)
    engine.allow_grammars(engine.disk.vocabulary)
    return _ready(engine, path, threads, time.monotonic() - started), engine


def scheduler_config(config: EngineConfig, sizing: Sizing, vocabulary: int | None = None) -> SchedulerConfig:
    return SchedulerConfig(
        max_running=config.max_running_requests,
        chunk_tokens=config.chunked_prefill_size,
        context=sizing.layout.context,
        vocabulary=vocabulary,
        policy=SchedulePolicy(config.schedule_policy),
        target_seconds=None if config.target_itl_ms is None else config.target_itl_ms / 1000,
    )


def _ready(engine: Engine, path: Path, threads: int, seconds: float) -> wire.Ready:
    spec, layout = engine.model.spec, engine.sizing.layout
    return wire.Ready(
        pid=os.getpid(),
        model=path.stem,
        architecture=spec.architecture,
        context=layout.context,
        weights_bytes=weights_bytes(engine.model.weights),
        components=tuple(_component_info(engine, number) for number in range(len(spec.components))),
        page_size=layout.page_size,
        threads=threads,
        isa=engine.ops.isa,
        max_running_requests=layout.rows,
        chunked_prefill_size=engine.config.chunked_prefill_size,
        load_seconds=seconds,
        weights=engine.weights(),
    )


def _component_info(engine: Engine, number: int) -> wire.ComponentInfo:
    # All layers of a component have the same window; the first one's stands for them.
    layers = engine.model.spec.layers_of(number)
    return wire.ComponentInfo(
        name=engine.model.spec.components[number].name,
        layers=len(layers),
        window=layers[0].attention.window,
        tokens=engine.sizing.layout.pages[number] * engine.config.page_size,
        bytes=engine.sizing.bytes[number],
        shared=engine.sizing.layout.budget is not None,
    )

"""GET /metrics in Prometheus format: the engine's latest statistics, and latencies measured by the server.

Names follow SGLang's where SGLang has the metric, with the prefix `transom:`. The engine's counters restart
from 0 with each new engine; Prometheus handles counter resets.
"""

from collections.abc import Callable, Iterator
from typing import get_type_hints

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from transom import wire
from transom.engine.supervisor import Supervisor
from transom.values import FinishReason

LATENCY_BUCKETS_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 400)
TOKEN_BUCKETS_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
LABELS = ("model_name",)

_COUNTERS: tuple[tuple[str, wire.Metric], ...] = tuple(
    (field, metric)
    for field, hint in get_type_hints(wire.Counters, include_extras=True).items()
    for metric in getattr(hint, "__metadata__", ())
    if isinstance(metric, wire.Metric)
)
"""Fields of the engine's counters that are exposed, each under the name and help text of its definition."""

Counts = tuple[tuple[str, str, Callable[[wire.Stats], float]], ...]

_GAUGES: Counts = (
    ("num_running_reqs", "Requests that hold pages", lambda s: s.running),
    ("num_queue_reqs", "Requests that wait for admission", lambda s: s.waiting),
)
_SHORT_NAMES = {"full": "full", "window": "swa"}
"""SGLang calls the sliding-window pool swa."""


class Metrics:
    """The Prometheus registry with all metrics. Mutable."""

    def __init__(self, model: str, engine: Supervisor) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_EngineCollector(model, engine))
        self._first_token = self._histogram(
            model, "time_to_first_token_seconds", "Arrival to first token", LATENCY_BUCKETS_SECONDS
        )
        self._latency = self._histogram(
            model, "e2e_request_latency_seconds", "Arrival to last token", LATENCY_BUCKETS_SECONDS
        )
        self._token_time = self._histogram(
            model,
            "time_per_output_token_seconds",
            "Mean over a request's output tokens",
            TOKEN_BUCKETS_SECONDS,
        )
        self._queue_time = self._histogram(
            model, "queue_time_seconds", "Arrival at the engine to first step", LATENCY_BUCKETS_SECONDS
        )
        counter = Counter(
            "transom:request_finish",
            "Outputs by finish reason",
            (*LABELS, "reason"),
            registry=self._registry,
        )
        # Every reason is exported as 0 from the start, so that rates are defined before it first occurs.
        self._finish = {
            reason: counter.labels(model, reason)
            for reason in (*(reason.value for reason in FinishReason), "disconnect")
        }

    def first_token(self, seconds: float) -> None:
        self._first_token.observe(seconds)

    def queued(self, seconds: float) -> None:
        self._queue_time.observe(seconds)

    def finished(self, reason: str, seconds: float, tokens: int) -> None:
        self._finish[reason].inc()
        self._latency.observe(seconds)
        if tokens:
            self._token_time.observe(seconds / tokens)

    def failed(self, requests: int) -> None:
        self._finish["error"].inc(requests)

    def disconnected(self, requests: int) -> None:
        self._finish["disconnect"].inc(requests)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def _histogram(self, model: str, name: str, meaning: str, buckets: tuple[float, ...]) -> Histogram:
        family = Histogram(f"transom:{name}", meaning, LABELS, buckets=buckets, registry=self._registry)
        return family.labels(model)


class _EngineCollector(Collector):
    """Turns the latest statistics into metric families at each scrape, so that tokens cost nothing here."""

    def __init__(self, model: str, engine: Supervisor) -> None:
        self._model = model
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        engine, stats = self._engine, self._engine.stats
        yield self._gauge("engine_up", "1 while an engine serves, else 0", engine.trouble is None)
        yield self._counter(
            "engine_restarts", "Engines started to replace one that had crashed", engine.restarts
        )
        version = GaugeMetricFamily(
            "transom:weights", "1 for the weights that were accepted last", labels=(*LABELS, "version")
        )
        version.add_metric([self._model, engine.weights_version], 1)
        yield version
        for name, meaning, value in _GAUGES:
            yield self._gauge(name, meaning, value(stats))
        for field, metric in _COUNTERS:
            yield self._counter(metric.name, metric.help, getattr(stats, field))
        idle = CounterMetricFamily(
            "transom:num_idle_passes", "Iterations without a step, by reason", labels=(*LABELS, "reason")
        )
        for reason, count in stats.idle.items():
            idle.add_metric([self._model, reason], count)
        yield idle
        yield self._gauge("context_len", "Served context in tokens", engine.ready.context)
        yield self._gauge("page_size", "Tokens per page", engine.ready.page_size)
        yield self._gauge("weights_bytes", "Bytes of the weights", engine.ready.weights_bytes)
        for use in stats.components:
            yield from self._component(use)

    def _component(self, use: wire.ComponentUse) -> Iterator[Metric]:
        name = _SHORT_NAMES.get(use.name, use.name)
        share = use.used / use.capacity if use.capacity else 0.0
        # With a shared budget, `capacity` is the pool's size if it had all bytes. The free tokens are then an
        # upper bound: the other pool may take the same bytes.
        free = use.capacity - use.used - use.cached
        yield self._gauge(
            f"{name}_token_usage", f"Share of the {use.name} pool that requests use, 0 to 1", share
        )
        yield self._gauge(
            f"{name}_capacity_tokens", f"Capacity of the {use.name} pool in tokens", use.capacity
        )
        yield self._gauge(f"{name}_used_tokens", f"Tokens of the {use.name} pool that requests use", use.used)
        yield self._gauge(
            f"{name}_evictable_tokens",
            f"Cached tokens of the {use.name} pool that no request uses",
            use.cached,
        )
        yield self._gauge(f"{name}_available_tokens", f"Free tokens of the {use.name} pool", free)

    def _counter(self, name: str, meaning: str, value: float) -> CounterMetricFamily:
        counter = CounterMetricFamily(f"transom:{name}", meaning, labels=LABELS)
        counter.add_metric([self._model], value)
        return counter

    def _gauge(self, name: str, meaning: str, value: float) -> GaugeMetricFamily:
        gauge = GaugeMetricFamily(f"transom:{name}", meaning, labels=LABELS)
        gauge.add_metric([self._model], value)
        return gauge

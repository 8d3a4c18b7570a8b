"""A scheduler world for tests: requests by id, and the events of each.

It adds to the shared world of the lab. A test names requests by id and sends commands, while a fault campaign
draws events by rank, before it knows which requests there will be.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from transom.kv.cache import Holding
from transom.kv.component_specs import ComponentSpec, Full, Window
from transom.kv.layout import CacheLayout, PrefixCaching, address_space, pages_alone
from transom.sched.config import SchedulerConfig
from transom.sched.loop import Iteration
from transom.sched.policy import SchedulePolicy
from transom.sched.request import Idle
from transom.values import (
    Ended,
    Event,
    FinishReason,
    IdleReason,
    PromptLogprobs,
    Request,
    RequestId,
    Sampling,
    Sibling,
    TokenSampled,
)
from transom.wire import Abort, Flush, Submit
from transom_lab.worlds.events import Failure
from transom_lab.worlds.expected import ExpectedOutput, ToyModel
from transom_lab.worlds.scheduler_world import SchedulerWorld

MODEL = ToyModel(vocabulary=50)


def minimum(components: Sequence[ComponentSpec], page_size: int, context: int) -> tuple[int, ...]:
    """The smallest pools in which a request of the whole context runs alone."""
    return tuple(pages_alone(c, page_size, context, 1) for c in components)


class World(SchedulerWorld):
    """A scheduler world that owns its requests, and the events that clients received. Mutable."""

    def __init__(
        self,
        *,
        page: int = 4,
        windows: Sequence[int] = (4,),
        more: Sequence[ComponentSpec] = (),
        pages: Sequence[int] | None = None,
        rows: int = 8,
        chunk: int = 8,
        context: int = 64,
        caching: PrefixCaching = PrefixCaching.ON,
        patience: int = 8,
        outputs_expected: int = 1,
        prefix_gain_min: int = 1,
        page_bytes: tuple[int, ...] = (),
        layers: tuple[int, ...] = (),
        policy: SchedulePolicy = SchedulePolicy.LPM,
        skipped_max: int = 256,
        target_seconds: float | None = None,
    ) -> None:
        """`pages` sizes the pools. With `page_bytes`, all components share the bytes of these pages."""
        components: tuple[ComponentSpec, ...] = (
            Full(),
            *(Window(w, name=f"window{w}") for w in windows),
            *more,
        )
        least = minimum(components, page, context)
        cut = tuple(least if pages is None else pages)
        budget = sum(n * size for n, size in zip(cut, page_bytes, strict=True)) if page_bytes else None
        layout = CacheLayout(
            components=components,
            pages=cut if budget is None else address_space(budget, page_bytes),
            page_size=page,
            rows=rows,
            context=context,
            prefix_caching=caching,
            budget=budget,
            page_bytes=page_bytes,
            layers=layers,
        )
        self.context = context
        self.config = SchedulerConfig(
            max_running=rows,
            chunk_tokens=chunk,
            context=context,
            patience_steps=patience,
            first_outputs_expected=outputs_expected,
            prefix_gain_min=prefix_gain_min,
            policy=policy,
            skipped_max=skipped_max,
            target_seconds=target_seconds,
        )
        self.outputs: dict[RequestId, ExpectedOutput] = {}
        super().__init__(layout, self.config, self.outputs)
        self.requests: dict[RequestId, Request] = {}
        self.texts: dict[RequestId, list[int]] = {}
        self.ends: dict[RequestId, Ended] = {}
        self.iterations: list[Iteration] = []
        self.scores: dict[RequestId, list[float]] = {}
        self.no_room_expected = 0

    # ------------------------------------------------------------ commands

    def submit(
        self, prompt: Sequence[int], max_tokens: int = 4, siblings: int = 0, **fields: object
    ) -> RequestId:
        """The first of `1 + siblings` outputs, with consecutive ids. A sibling's seed is its id."""
        first, *others = (RequestId(len(self.requests) + 1 + number) for number in range(1 + siblings))
        request = Request(
            first,
            np.array(prompt, np.int32),
            max_tokens,
            siblings=tuple(Sibling(other, Sampling(seed=other)) for other in others),
            **fields,  # type: ignore[arg-type]
        )
        self._expect(replace(request, siblings=()))
        logprobs = replace(request.logprobs, prompt_from=None)
        for other in others:
            sampling = Sampling(seed=other)
            self._expect(replace(request, id=other, sampling=sampling, logprobs=logprobs, siblings=()))
        self.send(Submit(request))
        return first

    def _expect(self, output: Request) -> None:
        self.requests[output.id], self.texts[output.id] = output, []
        self.outputs[output.id] = ExpectedOutput.of(MODEL, output, self.context)

    def abort(self, request: RequestId) -> None:
        self.send(Abort(request))

    def flush(self) -> None:
        self.send(Flush())

    def fail_next_step(self) -> None:
        self.runner.failure = Failure.HALF_WAY

    # ------------------------------------------------------------ iterations

    def step(self) -> Iteration:
        done = self.iterate()
        self.iterations.append(done)
        for event in done.events:
            self.record(event)
        stats = self.scheduler.stats()
        assert stats.idle[IdleReason.NO_ROOM] == self.no_room_expected, stats
        return done

    def record(self, event: Event) -> None:
        """Receives an event as a client does. Asserts that it is the next one of its request."""
        assert event.request not in self.ends, event
        output = self.outputs[event.request]
        match event:
            case Ended():
                self.ends[event.request] = event
            case TokenSampled():
                output.receive(event)
                self.texts[event.request].append(event.token)
            case PromptLogprobs():
                output.score(event)
                self.scores.setdefault(event.request, []).extend(score.logprob for score in event.tokens)

    def drain(self, iterations_max: int = 5000) -> None:
        """Iterates until no work is left."""
        for _ in range(iterations_max):
            if isinstance(self.step().idle, Idle) and not self.inbox:
                assert not self.scheduler.has_work
                return
        raise AssertionError(f"still at work after {iterations_max} iterations: {self.scheduler.stats()}")

    # ------------------------------------------------------------ assertions

    def require_cold(self, request: RequestId) -> None:
        """The output is that of a request alone, or a prefix of it if the request was cut short."""
        text, cold, end = self.texts[request], list(self.outputs[request].text), self.ends[request]
        if end.reason in (FinishReason.STOP, FinishReason.LENGTH):
            assert text == cold, (request, text, cold)
            stopped = bool(cold) and cold[-1] in self.requests[request].stop_ids
            assert end.reason == (FinishReason.STOP if stopped else FinishReason.LENGTH), end
        else:
            assert text == cold[: len(text)], (request, text, cold)
        assert end.usage.prompt_tokens == len(self.requests[request].prompt)
        assert end.usage.completion_tokens == len(text)
        assert end.usage.cached_tokens < end.usage.prompt_tokens

    def require_all_cold(self) -> None:
        assert self.ends.keys() == self.requests.keys()
        for request in self.requests:
            self.require_cold(request)

    def finish(self) -> None:
        self.drain()
        self.require_all_cold()
        self.require_empty()

    # ------------------------------------------------------------ computed spans

    def spans(self, request: RequestId) -> list[tuple[int, int]]:
        """Every span of a request so far, in order."""
        return [(s.start, s.end) for work in self.runner.steps for s in work.spans if s.request == request]

    def last_step(self) -> dict[RequestId, tuple[int, int]]:
        return {s.request: (s.start, s.end) for s in self.runner.steps[-1].spans}

    # ------------------------------------------------------------ interventions

    def set_chunk(self, tokens: int) -> None:
        """Changes the token budget of later steps."""
        self.scheduler._config = replace(self.scheduler._config, chunk_tokens=tokens)

    def ballast(self, rows: int) -> list[Holding]:
        """Holdings of no request, one page each, with which a test can take memory away."""
        held = []
        for number in range(rows):
            request = RequestId(-1 - number)
            tokens = np.full(self.context, 1_000 + number, np.int32)
            namespace = self.cache.namespace(request, f"ballast {number}")
            held.append(self.cache.admit(request, namespace, tokens, self.cache.cold()))
            self.cache.extend(held[-1], 1)
        return held

    def swell(self, ballast: Sequence[Holding]) -> None:
        """Extends `ballast` until at least one component has no page left."""
        for holding in ballast:
            while min(self.cache.available.alone()) > 0 and holding.allocated < self.context:
                self.cache.extend(holding, min(self.context, holding.allocated + self.cache.layout.page_size))
        assert min(self.cache.available.alone()) == 0, self.cache.available.alone()

    def shrink(self, ballast: Sequence[Holding]) -> None:
        for holding in ballast:
            self.cache.drop(holding)

    def retract_all(self) -> None:
        """Retracts every running request, though memory is not short."""
        for running in tuple(self.scheduler._requests.running):
            self.scheduler._requests.publish_and_drop(running)
            self.scheduler._requests.retract(running)

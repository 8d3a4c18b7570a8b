"""A scheduler with a real cache and a runner that checks content instead of computing a model.

What the runner stores for a position is a digest of all tokens up to it. It builds the next digest from the
one it reads through the row, and asserts at every position a query may read that the digest there is the
right one, in every component. Wrong KV, in any way, is a failed assertion; texts are a function of digests.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from transom.errors import BadRequest
from transom.kv.cache import Holding, HybridCache
from transom.kv.check import check
from transom.kv.component_specs import ComponentSpec, From, Full, State, Window
from transom.kv.layout import CacheLayout, PrefixCaching, address_space, pages_alone
from transom.sched.config import SchedulerConfig
from transom.sched.loop import Iteration, iterate
from transom.sched.policy import SchedulePolicy
from transom.sched.request import Idle
from transom.sched.running import ALLOCATED, FULL_UNTIL, ROW
from transom.sched.step_cost import StepCost
from transom.steps import SpanWork, StepResult, StepWork
from transom.values import (
    Ended,
    Event,
    FinishReason,
    IdleReason,
    PromptLogprobs,
    Request,
    RequestId,
    SampledToken,
    Sampling,
    Sibling,
    TokenSampled,
)
from transom.wire import Abort, Command, Flush, Submit
from transom_lab.faults.plans import CheckedScheduler

MODULUS = 2**31 - 1
VOCABULARY = 50


def digest(before: int, token: int) -> int:
    return (before * 48271 + token + 11) % MODULUS


def digests(tokens: Sequence[int]) -> list[int]:
    out: list[int] = []
    for token in tokens:
        out.append(digest(out[-1] if out else 1, int(token)))
    return out


def next_token(last: int, seed: int = 0) -> int:
    return (last + seed) % VOCABULARY


def score(before: int, token: int) -> float:
    """Of a token of a prompt, from the digest of what comes before it."""
    return -float((before * 31 + token) % 1009)


def cold_text(
    prompt: Sequence[int], max_tokens: int, context: int, stop_ids: frozenset[int], seed: int = 0
) -> list[int]:
    """The output of a request that is alone in the world."""
    last = digests(prompt)[-1]
    out: list[int] = []
    while len(out) < min(max_tokens, context - len(prompt)):
        out.append(next_token(last, seed))
        last = digest(last, out[-1])
        if out[-1] in stop_ids:
            break
    return out


class RunnerBroke(RuntimeError):
    pass


class ContentRunner:
    """Stores digests by (component, page, slot). Knows the tokens of requests from outside, as an oracle."""

    def __init__(self, cache: HybridCache) -> None:
        self.cache = cache
        self.page_size = cache.layout.page_size
        self.stored: list[NDArray[np.int64]] = [
            np.full((pages + 1, self.page_size), -1, np.int64) for pages in cache.layout.pages
        ]
        self.known: dict[RequestId, list[int]] = {}
        self.truth: dict[RequestId, list[int]] = {}
        self.steps: list[StepWork] = []
        self.breaks_next = False
        self.cost = StepCost()
        """What steps are said to take."""

    def register(self, request: Request) -> None:
        for output in (request.id, *(sibling.id for sibling in request.siblings)):
            self.known[output] = [int(t) for t in request.prompt]
            self.truth[output] = digests(self.known[output])

    def run(self, work: StepWork) -> StepResult:
        self.steps.append(work)
        if self.breaks_next:
            self.breaks_next = False
            self._scribble(work.spans[0])
            raise RunnerBroke("as told")
        for copy in work.copies:
            pages = self.stored[copy.component]
            pages[copy.target, : copy.tokens] = pages[copy.source, : copy.tokens]
        for discard in work.discards:
            self.stored[discard.component][list(discard.pages)] = -9
        for span in work.spans:
            self._check_tokens(span)
            self._check_content(span, span.start)
        for span in work.spans:
            self._write(span)
        for span in work.spans:
            self._check_content(span, span.end)
        return StepResult(
            tuple(self._choose(span) for span in work.spans),
            self.cost.seconds(work),
            siblings=tuple(
                tuple(choice for sibling in self._of_siblings(span) if (choice := self._choose(sibling)))
                for span in work.spans
            ),
            prompt_logprobs=tuple(self._scores(span) for span in work.spans),
        )

    def _of_siblings(self, span: SpanWork) -> list[SpanWork]:
        """The span as each sibling that chooses from it would have it. A seed says who that is."""
        return [
            span._replace(request=RequestId(sampling.seed), sampling=sampling, siblings=())
            for sampling in span.siblings
        ]

    def _scores(self, span: SpanWork) -> tuple[SampledToken, ...]:
        if span.prompt_logprobs is None:
            return ()
        pages, offsets = self._slots(0, span.row, span.prompt_logprobs.start, span.prompt_logprobs.end)
        read = self.stored[0][pages, offsets].tolist()
        return tuple(
            SampledToken(int(token), score(int(before), int(token)))
            for before, token in zip(read, span.prompt_logprobs.tokens, strict=True)
        )

    def _slots(
        self, component: int, row: int, start: int, end: int
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        positions = np.arange(start, end)
        pages = self.cache.page_tables[component][row, positions // self.page_size]
        assert (pages > 0).all(), (component, row, start, end, pages)
        return pages, positions % self.page_size

    def _check_tokens(self, span: SpanWork) -> None:
        assert span.tokens.dtype == np.int32
        assert list(span.tokens) == self.known[span.request][span.start : span.end], span

    def _check_content(self, span: SpanWork, end: int) -> None:
        """Everything that the queries of `span` read below `end` is what the oracle says."""
        for c, component in enumerate(self.cache.layout.components):
            if isinstance(component, State):
                self._check_state(c, span, end)
                continue
            need = component.needed(span.start)
            assert isinstance(need, From)
            pages, offsets = self._slots(c, span.row, need.start, end)
            found = self.stored[c][pages, offsets]
            assert found.tolist() == self.truth[span.request][need.start : end], (component, span, end)

    def _check_state(self, c: int, span: SpanWork, end: int) -> None:
        """The request's own state is that after `end` tokens; before its first token it may be anything."""
        page = self.cache.page_tables[c][span.row, 0]
        assert page > 0, span
        if end:
            assert self.stored[c][page, 0] == self.truth[span.request][end - 1], (span, end)

    def _write(self, span: SpanWork) -> None:
        last = 1
        if span.start:
            pages, offsets = self._slots(0, span.row, span.start - 1, span.start)
            last = int(self.stored[0][pages[0], offsets[0]])
        values = []
        for token in span.tokens:
            last = digest(last, int(token))
            values.append(last)
        for c, component in enumerate(self.cache.layout.components):
            if isinstance(component, State):
                self.stored[c][self.cache.page_tables[c][span.row, 0], 0] = values[-1]
                continue
            pages, offsets = self._slots(c, span.row, span.start, span.end)
            self.stored[c][pages, offsets] = values

    def _scribble(self, span: SpanWork) -> None:
        for c, component in enumerate(self.cache.layout.components):
            if isinstance(component, State):
                self.stored[c][self.cache.page_tables[c][span.row, 0], 0] = -7
                continue
            pages, offsets = self._slots(c, span.row, span.start, span.end)
            self.stored[c][pages, offsets] = -7

    def _choose(self, span: SpanWork) -> SampledToken | None:
        known = self.known[span.request]
        if span.sampling is None:
            return None
        assert span.end == len(known), (span, len(known))
        pages, offsets = self._slots(0, span.row, span.end - 1, span.end)
        token = next_token(int(self.stored[0][pages[0], offsets[0]]), span.sampling.seed)
        known.append(token)
        self.truth[span.request].append(digest(self.truth[span.request][-1], token))
        return SampledToken(token, -float(token))


def minimum(components: Sequence[ComponentSpec], page_size: int, context: int) -> tuple[int, ...]:
    """The smallest pools in which a request of the whole context runs alone."""
    return tuple(pages_alone(c, page_size, context, 1) for c in components)


class SameWeights:
    """Weights that are loaded and are what they were; those of `missing` there are none. Mutable."""

    def __init__(self) -> None:
        self.loaded: list[str] = []
        self.missing: set[str] = set()

    def check(self, source: str) -> None:
        if source == "wrong":
            raise BadRequest("not of this model", param="model_path")

    def load(self, source: str) -> None:
        if source in self.missing:
            raise BadRequest("there is no such file", param="model_path")
        self.loaded.append(source)


class World:
    """Owns a cache, a scheduler and a content runner, and everything that came out of them."""

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
        """With `page_bytes` all pools share what `pages` would cost; else they are cut so."""
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
        self.cache = HybridCache(layout)
        self.limits = SchedulerConfig(
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
        self.scheduler = CheckedScheduler(self.cache, self.limits)
        self.runner = ContentRunner(self.cache)
        self.requests: dict[RequestId, Request] = {}
        self.inbox: list[Command] = []
        self.texts: dict[RequestId, list[int]] = {}
        self.ends: dict[RequestId, Ended] = {}
        self.iterations: list[Iteration] = []
        self.scores: dict[RequestId, list[float]] = {}
        self.clock = 0.0
        self.no_room_expected = 0
        self.weights = SameWeights()

    # ------------------------------------------------------------ commands

    def submit(
        self, prompt: Sequence[int], max_tokens: int = 4, siblings: int = 0, **fields: object
    ) -> RequestId:
        """The first of `1 + siblings` outputs, with consecutive ids. Siblings have seeds of their own."""
        first, *others = (RequestId(len(self.requests) + 1 + number) for number in range(1 + siblings))
        request = Request(
            first,
            np.array(prompt, np.int32),
            max_tokens,
            siblings=tuple(Sibling(other, Sampling(seed=other)) for other in others),
            **fields,  # type: ignore[arg-type]
        )
        for output in (first, *others):
            seed = Sampling(seed=output) if output != first else request.sampling
            self.requests[output] = replace(request, id=output, sampling=seed, siblings=())
            self.texts[output] = []
        self.runner.register(request)
        self.inbox.append(Submit(request))
        return first

    def abort(self, request: RequestId) -> None:
        self.inbox.append(Abort(request))

    def tell(self, command: Command) -> None:
        self.inbox.append(command)

    def flush(self) -> None:
        self.inbox.append(Flush())

    def break_next_step(self) -> None:
        self.runner.breaks_next = True

    # ------------------------------------------------------------ turns

    def step(self) -> Iteration:
        commands, self.inbox = self.inbox, []
        taken = iterate(self.scheduler, commands, self.runner, self.clock, self.weights)
        self.iterations.append(taken)
        for event in taken.events:
            self._record(event)
        check(self.cache)
        stats = self.scheduler.stats()
        assert stats.idle[IdleReason.NO_ROOM] == self.no_room_expected, stats
        if taken.failure is not None:
            assert isinstance(taken.failure, RunnerBroke), taken.failure
        return taken

    def _record(self, event: Event) -> None:
        assert event.request not in self.ends, event
        match event:
            case Ended():
                self.ends[event.request] = event
            case TokenSampled():
                assert event.logprob == -float(event.token)
                self.texts[event.request].append(event.token)
            case PromptLogprobs():
                self._record_scores(event)

    def _record_scores(self, event: PromptLogprobs) -> None:
        """What a request was told of its prompt comes once, in order, and is what a cold run would say."""
        told = self.scores.setdefault(event.request, [])
        request = self.requests[event.request]
        assert request.logprobs.prompt_from is not None and not self.texts[event.request], event
        assert event.first == max(1, request.logprobs.prompt_from) + len(told), event
        prompt = [int(token) for token in request.prompt]
        before = digests(prompt)
        for position, found in enumerate(event.tokens, event.first):
            assert found.token == prompt[position]
            assert found.logprob == score(before[position - 1], found.token), (event, position)
            told.append(found.logprob)

    def drain(self, turns_max: int = 5000) -> None:
        """Turns until nothing is left to do."""
        for _ in range(turns_max):
            if isinstance(self.step().idle, Idle) and not self.inbox:
                assert not self.scheduler.has_work
                return
        raise AssertionError(f"still at work after {turns_max} turns: {self.scheduler.stats()}")

    # ------------------------------------------------------------ what must hold

    def cold(self, request: RequestId) -> list[int]:
        asked = self.requests[request]
        return cold_text(
            asked.prompt.tolist(), asked.max_tokens, self.context, asked.stop_ids, asked.sampling.seed
        )

    def require_cold(self, request: RequestId) -> None:
        """The text is the cold one, or a prefix of it where the request was cut off."""
        text, cold, end = self.texts[request], self.cold(request), self.ends[request]
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

    def require_empty(self) -> None:
        """At idle nothing is referenced, nothing is private, no row is used."""
        stats = self.cache.stats()
        assert stats.rows_used == 0, stats
        for component in stats.components:
            assert component.referenced == 0 and component.private == 0, component
            assert component.free + component.unreferenced == component.capacity, component
        assert self.cache.available.bytes == (self.cache.layout.budget or 0)
        assert self.cache.pending_copies() == ()

    def finish(self) -> None:
        self.drain()
        self.require_all_cold()
        self.require_empty()

    # ------------------------------------------------------------ what was done

    def spans(self, request: RequestId) -> list[tuple[int, int]]:
        """All spans of a request so far, in order."""
        return [(s.start, s.end) for work in self.runner.steps for s in work.spans if s.request == request]

    def last_step(self) -> dict[RequestId, tuple[int, int]]:
        return {s.request: (s.start, s.end) for s in self.runner.steps[-1].spans}

    # ------------------------------------------------------------ trouble from outside

    def set_chunk(self, tokens: int) -> None:
        """Another budget per step from now on."""
        self.scheduler._config = replace(self.scheduler._config, chunk_tokens=tokens)

    def ballast(self, rows: int) -> list[Holding]:
        """Holdings that are nobody's request, one page each, so that memory can be taken away."""
        held = []
        for number in range(rows):
            request = RequestId(-1 - number)
            tokens = np.full(self.context, 1_000 + number, np.int32)
            namespace = self.cache.namespace(request, f"ballast {number}")
            held.append(self.cache.admit(request, namespace, tokens, self.cache.cold()))
            self.cache.extend(held[-1], 1)
        return held

    def swell(self, ballast: Sequence[Holding]) -> None:
        """`ballast` takes every page of at least one component."""
        for holding in ballast:
            while min(self.cache.available.alone()) > 0 and holding.allocated < self.context:
                self.cache.extend(holding, min(self.context, holding.allocated + self.cache.layout.page_size))
        assert min(self.cache.available.alone()) == 0, self.cache.available.alone()

    def shrink(self, ballast: Sequence[Holding]) -> None:
        for holding in ballast:
            self.cache.drop(holding)

    def held_alone(self) -> NDArray[np.int64]:
        """Pages that each running request holds alone, [components, requests]."""
        columns = self.scheduler._requests.running.columns()
        return self.cache.held_alone(columns[ROW], columns[ALLOCATED], columns[FULL_UNTIL])

    def retract_all(self) -> None:
        """Every running request is retracted, for no reason of its own."""
        for running in tuple(self.scheduler._requests.running):
            self.scheduler._requests.publish_and_drop(running)
            self.scheduler._requests.retract(running)

"""Applies a computed span: publishes pages, records prompt logprobs, tokens and siblings, ends requests."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from transom.errors import NoSpace
from transom.kv.cache import Holding, HybridCache
from transom.sched.queue import OUTPUT_WEIGHT
from transom.sched.request import Progress, Running, Scheduled, Span
from transom.sched.requests import Requests
from transom.steps import SpanFailure, SpanWork, StepResult
from transom.values import Event, FinishReason, PromptLogprobs, SampledToken, TokenSampled
from transom.wire import Counters


class SpanResult(NamedTuple):
    """The part of a step's result that belongs to one span."""

    sampled: SampledToken | None
    siblings: tuple[SampledToken, ...]
    prompt_logprobs: tuple[SampledToken, ...]
    failure: SpanFailure | None = None


def span_result(result: StepResult, number: int) -> SpanResult:
    return SpanResult(
        result.sampled[number],
        result.siblings[number] if result.siblings else (),
        result.prompt_logprobs[number] if result.prompt_logprobs else (),
        result.failures.get(number),
    )


@dataclass(frozen=True, slots=True)
class Results:
    """Applies results to the cache, the requests and the counters."""

    cache: HybridCache
    requests: Requests
    counters: Counters
    max_running: int

    def apply(self, scheduled: Scheduled, work: SpanWork, result: SpanResult, events: list[Event]) -> None:
        """Appends the events of one span: prompt logprobs, its token, its siblings' tokens, its end."""
        running, span, siblings = scheduled
        progress = running.progress
        if result.failure is not None:
            # Before its pages are published: no other request shall continue from them.
            events += self._fail(running, result.failure)
            return
        self._advance(running, span)
        if work.prompt_logprobs is not None:
            progress.logprobs_until = work.prompt_logprobs.end + 1
            events.append(PromptLogprobs(progress.id, work.prompt_logprobs.start + 1, result.prompt_logprobs))
        if result.sampled is None:
            if span.end == progress.limit:  # max_tokens is 0: the prompt was computed for its logprobs
                events.append(self.requests.end(running, FinishReason.LENGTH))
            return
        events.append(self._append(progress, result.sampled))
        for sibling, sampled in zip(siblings, result.siblings, strict=True):
            if sibling.id in self.requests.siblings:  # it may have been ended while the step was in flight
                events += self._start_sibling(running, sibling, sampled)
        # The end comes last: a fork needs the pages that ending the request drops.
        reason = finish_reason(progress, result.sampled.token)
        if reason is not None:
            events.append(self.requests.end(running, reason))

    def _advance(self, running: Running, span: Span) -> None:
        """Marks the span as computed. Pages that it fills are published, for hits from the next step on."""
        self.cache.advance(running.holding, span.end)
        page = self.cache.layout.page_size
        if span.end // page > span.start // page:
            self.cache.publish(running.holding, running.progress.tokens(span.end))
            self.cache.slide(running.holding)
        progress = running.progress
        self._count(span, running.holding, progress.computed_peak)
        progress.computed_peak = max(progress.computed_peak, span.end)

    def _count(self, span: Span, holding: Holding, computed_peak: int) -> None:
        self.counters.computed_tokens += len(span)
        # A repair has full pages up to `full_until` and computes these positions for their windows only.
        if holding.clip:
            self.counters.repaired_tokens += max(0, min(span.end, holding.full_until) - span.start)
        self.counters.recomputed_tokens += max(0, min(span.end, computed_peak) - span.start)

    def _fail(self, running: Running, failure: SpanFailure) -> Iterator[Event]:
        """Ends an output and the siblings that wait for its first token: they have the same logits."""
        first = running.progress.id
        # Siblings first: one of them would take the place of the first output.
        for request in (*(sibling.id for sibling in self.requests.siblings.of(first)), first):
            for end in self.requests.stop(request, FinishReason.ERROR, failure.message):
                self.counters.invalid_logits += failure.code is None
                yield replace(end, code=failure.code)

    def _append(self, progress: Progress, sampled: SampledToken) -> TokenSampled:
        progress.append(sampled.token)
        self.counters.generated_tokens += 1
        if self.requests.waiting.has_tenants:  # saves a call per token if there is one tenant
            self.requests.waiting.charge(progress.request.tenant, OUTPUT_WEIGHT)
        return TokenSampled(progress.id, sampled.token, sampled.logprob, sampled.top)

    # ------------------------------------------------------------ siblings

    def _start_sibling(self, first: Running, sibling: Progress, sampled: SampledToken) -> tuple[Event, ...]:
        """Gives the sibling its first token. Then it runs as a fork of `first`, or waits for memory."""
        self.requests.siblings.remove(sibling.id)
        # As if admitted with `first`: the prompt was computed and charged once, for all outputs.
        sibling.admissions, sibling.cached_tokens = 1, first.progress.cached_tokens
        sibling.queue_seconds = first.progress.queue_seconds
        sibling.computed_peak = first.holding.computed
        event = self._append(sibling, sampled)
        reason = finish_reason(sibling, sampled.token)
        if reason is not None:
            return (event, self.requests.ended(sibling, reason))
        holding = self._fork(first, sibling)
        if holding is None:
            self.counters.forks_put_off += 1
            self.requests.wait(sibling)
        else:
            self.counters.forks += 1
            self.requests.run(sibling, holding)
        return (event,)

    def _fork(self, first: Running, sibling: Progress) -> Holding | None:
        """A holding for the sibling, as far computed as `first`, if a row and the pages are available."""
        if len(self.requests.running) >= self.max_running:
            return None
        computed = first.progress.tokens(first.holding.computed)
        try:
            return self.cache.fork(first.holding, sibling.id, computed)
        except NoSpace:
            return None


def finish_reason(progress: Progress, token: int) -> FinishReason | None:
    """The reason to end, if `token`, just appended, is the last one."""
    if token in progress.request.stop_ids:
        return FinishReason.STOP
    return FinishReason.LENGTH if progress.length == progress.limit else None

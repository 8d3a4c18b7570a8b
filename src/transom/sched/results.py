"""What a computed span brings: pages for the tree, scores, tokens, siblings, an end."""

from dataclasses import dataclass
from typing import NamedTuple

from transom.errors import NoSpace
from transom.kv.cache import Holding, HybridCache
from transom.sched.request import Progress, Running, Scheduled, Span
from transom.sched.requests import Requests
from transom.sched.tenants import OUTPUT_WEIGHT
from transom.steps import SpanWork, StepResult
from transom.values import Event, FinishReason, PromptLogprobs, SampledToken, TokenSampled
from transom.wire import Counters


class OfSpan(NamedTuple):
    """The part of a step's result that is one span's."""

    choice: SampledToken | None
    siblings: tuple[SampledToken, ...]
    scores: tuple[SampledToken, ...]


def of_span(result: StepResult, number: int) -> OfSpan:
    return OfSpan(
        result.sampled[number],
        result.siblings[number] if result.siblings else (),
        result.prompt_logprobs[number] if result.prompt_logprobs else (),
    )


@dataclass(frozen=True, slots=True)
class Results:
    """Works results into cache, roster and counters."""

    cache: HybridCache
    roster: Requests
    counters: Counters
    max_running: int

    def apply(self, scheduled: Scheduled, work: SpanWork, found: OfSpan, events: list[Event]) -> None:
        """Adds what one span brings: what it says of the prompt, its token, its siblings' tokens, its end."""
        running, span, siblings = scheduled
        progress = running.progress
        self._advance(running, span)
        if work.prompt_logprobs is not None:
            progress.scored = work.prompt_logprobs.end + 1
            events.append(PromptLogprobs(progress.id, work.prompt_logprobs.start + 1, found.scores))
        if found.choice is None:
            if span.end == progress.limit:
                events.append(self.roster.end(running, FinishReason.LENGTH))
            return
        events.append(self._chosen(progress, found.choice))
        for sibling, choice in zip(siblings, found.siblings, strict=True):
            if sibling.id in self.roster.siblings:  # else it has ended, unborn
                events += self._bear(running, sibling, choice)
        reason = finish_reason(progress, found.choice.token)
        if reason is not None:
            events.append(self.roster.end(running, reason))

    def _advance(self, running: Running, span: Span) -> None:
        """A page that is whole now goes to the tree, so that others find it from the next step on."""
        self.cache.advance(running.holding, span.end)
        page = self.cache.layout.page_size
        if span.end // page > span.start // page:
            self.cache.publish(running.holding, running.progress.tokens(span.end))
            self.cache.slide(running.holding)
        progress = running.progress
        self._count(span, running.holding, progress.computed_peak)
        progress.computed_peak = max(progress.computed_peak, span.end)

    def _count(self, span: Span, holding: Holding, computed_before: int) -> None:
        self.counters.computed_tokens += len(span)
        if holding.clip:
            self.counters.repaired_tokens += max(0, min(span.end, holding.full_until) - span.start)
        self.counters.recomputed_tokens += max(0, min(span.end, computed_before) - span.start)

    def _chosen(self, progress: Progress, choice: SampledToken) -> TokenSampled:
        progress.append(choice.token)
        self.counters.generated_tokens += 1
        if self.roster.waiting.has_tenants:
            self.roster.waiting.charge(progress.request.tenant, OUTPUT_WEIGHT)
        return TokenSampled(progress.id, choice.token, choice.logprob, choice.top)

    # ------------------------------------------------------------ siblings

    def _bear(self, first: Running, sibling: Progress, choice: SampledToken) -> tuple[Event, ...]:
        """It has its first token, and goes on beside `first` if there is room, else from the queue."""
        self.roster.siblings.remove(sibling.id)
        sibling.admissions, sibling.cached_tokens = 1, first.progress.cached_tokens
        sibling.queue_seconds = first.progress.queue_seconds
        sibling.computed_peak = first.holding.computed
        chosen = self._chosen(sibling, choice)
        reason = finish_reason(sibling, choice.token)
        if reason is not None:
            return (chosen, self.roster.ended(sibling, reason))
        holding = self._forked(first, sibling)
        if holding is None:
            self.counters.forks_put_off += 1
            self.roster.wait(sibling)
        else:
            self.counters.forks += 1
            self.roster.run(sibling, holding)
        return (chosen,)

    def _forked(self, first: Running, sibling: Progress) -> Holding | None:
        """Pages of the sibling's own, where `first` stands; None if there is no row, or no page."""
        if len(self.roster.running) >= self.max_running:
            return None
        computed = first.progress.tokens(first.holding.computed)
        try:
            return self.cache.fork(first.holding, sibling.id, computed)
        except NoSpace:
            return None


def finish_reason(progress: Progress, token: int) -> FinishReason | None:
    """Why `token`, the last chosen, is the last of all, if it is."""
    if token in progress.request.stop_ids:
        return FinishReason.STOP
    return FinishReason.LENGTH if progress.length == progress.limit else None

"""A runner that computes nothing: it stores digests, checks every read, and fails on demand.

In place of a key it writes the digest of the slot (`contents`); in place of logits it answers with the token
that the request must get (`expected`). Wrong KV, of any kind, is a failed assertion.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from transom.kv.check import inside
from transom.kv.holding import Holding
from transom.sched.step_cost import StepCost
from transom.steps import SpanWork, StepResult, StepWork
from transom.values import RequestId, SampledToken
from transom_lab.worlds.cache_world import CacheWorld, Job
from transom_lab.worlds.contents import GARBAGE
from transom_lab.worlds.events import Failure
from transom_lab.worlds.expected import ExpectedOutput
from transom_lab.worlds.repair_oracle import Mask


class RunnerFailed(RuntimeError):
    """An injected failure."""


@dataclass(frozen=True, slots=True)
class Observed:
    """One step as the runner saw it.

    computed  how far each request in the step was computed
    sampled   for each output that got a token: the request that computed its logits
    copied    requests for which pages were copied
    """

    computed: dict[RequestId, int] = field(default_factory=dict)
    sampled: dict[RequestId, RequestId] = field(default_factory=dict)
    copied: frozenset[RequestId] = frozenset()

    def touched(self) -> set[RequestId]:
        """Every request that the step affects."""
        return {*self.computed, *self.sampled, *self.copied}


Siblings = Callable[[SpanWork], Sequence[RequestId]]


def siblings_by_seed(span: SpanWork) -> Sequence[RequestId]:
    """The siblings of a span, if the seed of each sibling is its id."""
    return [RequestId(sampling.seed) for sampling in span.siblings]


class ContentRunner:
    """Owns the page contents of a cache, and how the next step fails. Mutable.

    outputs    the tokens that each request must produce
    epoch      how often the cache was flushed, counted outside the cache
    siblings   the outputs that sample from a span's logits besides its own request
    in_flight  called while a step is being computed
    """

    def __init__(
        self,
        memory: CacheWorld,
        outputs: Mapping[RequestId, ExpectedOutput],
        *,
        epoch: Callable[[], int],
        siblings: Siblings = siblings_by_seed,
        in_flight: Callable[[], None] = lambda: None,
    ) -> None:
        self.memory = memory
        self.outputs = outputs
        self._epoch = epoch
        self._siblings = siblings
        self._in_flight = in_flight
        self._jobs: dict[RequestId, Job] = {}
        self.failure: Failure | None = None
        """How the next step fails. Reset by that step."""
        self.cost = StepCost()
        """How long steps are reported to take."""
        self.steps: list[StepWork] = []
        self.observed: Observed | None = None
        """The step since `begin_iteration`, if there was one."""
        self.failed = False
        """Whether its answer was an error, or does not fit the step."""
        self.exact: list[list[Mask]] = []
        """The last step's spans: by layer, which tokens were exact (`CacheWorld.forward`)."""
        self.inexact_tokens = 0

    def begin_iteration(self) -> None:
        self.observed, self.failed = None, False

    def run(self, work: StepWork) -> StepResult:
        self.steps.append(work)
        jobs = [self._job(span) for span in work.spans]
        self.observed = self._observe(work)
        failure, self.failure = self.failure, None
        self.failed = failure in (Failure.AT_ONCE, Failure.HALF_WAY)
        if failure is Failure.AT_ONCE:
            self._in_flight()
            raise RunnerFailed("at once")
        self.memory.move(work.copies, work.discards)
        if failure is Failure.HALF_WAY:
            self.memory.spoil(jobs[0], work.spans[0].end, GARBAGE)
            self._in_flight()
            raise RunnerFailed("half way")
        for job in jobs:
            self.memory.audit_job(job)  # before any write of this step can make a missing key right
        ends = [span.end for span in work.spans]
        self.exact = self.memory.forward(list(zip(jobs, ends, strict=True)))
        self.inexact_tokens += sum(int((~by_layer[-1]).sum()) for by_layer in self.exact)
        result = self._answer(work)
        self._in_flight()
        answered = _with_failure(result, failure)
        self.failed = answered != result
        return answered

    def settle(self) -> None:
        """After an iteration: forgets requests that lost their row, and empties free pages."""
        holdings = inside(self.memory.cache).holdings
        self._jobs = {id: job for id, job in self._jobs.items() if holdings[job.holding.row] is job.holding}
        for holding in holdings:
            # A sibling that was forked in this iteration has a row before it is in a step.
            if holding is not None and holding.request in self.outputs and holding.request not in self._jobs:
                self._jobs[holding.request] = Job(holding, self.outputs[holding.request].tokens)
        self.memory.jobs = list(self._jobs.values())
        self.memory.clear_free_pages()

    # ---------------------------------------------------------------- spans

    def _job(self, span: SpanWork) -> Job:
        """The request of a span. Asserts that the span agrees with its holding and its tokens."""
        holding, output = inside(self.memory.cache).holdings[span.row], self.outputs[span.request]
        assert holding is not None and holding.request == span.request, (span, holding)
        job = self._jobs.get(span.request)
        if job is None or job.holding is not holding:
            self._require_namespace(holding, output)
            output.admit(holding.start)
            job = self._jobs[span.request] = Job(holding, output.tokens)
        assert span.start == holding.computed < span.end <= holding.allocated, (span, holding)
        assert (span.clip, span.store_from) == (holding.clip, holding.full_until), (span, holding)
        assert span.end <= output.known, ("computes a token that was never sampled", span, output)
        assert span.tokens.dtype == np.int32, span
        assert np.array_equal(span.tokens, output.tokens[span.start : span.end]), (span, output)
        return job

    def _require_namespace(self, holding: Holding, output: ExpectedOutput) -> None:
        """A request that was just admitted reads under the present epoch and its own salt."""
        namespace, salt = holding.namespace, output.request.salt
        assert (namespace.salt, namespace.epoch) == (salt, self._epoch()), ("foreign", namespace, output)

    def _observe(self, work: StepWork) -> Observed:
        """A span samples exactly if it computes the last known token of a request that wants another."""
        sampled: dict[RequestId, RequestId] = {}
        for span in work.spans:
            output = self.outputs[span.request]
            wants = span.end == output.known and output.wants_token
            assert (span.sampling is not None) == wants, ("asks for a token, or does not", span, output)
            if wants:
                sampled.update(dict.fromkeys([span.request, *self._siblings(span)], span.request))
        pending = inside(self.memory.cache).pending
        copied = frozenset(each.holding.request for each in pending if each.snapshot_of is None)
        return Observed({span.request: span.end for span in work.spans}, sampled, copied)

    def _answer(self, work: StepWork) -> StepResult:
        sampled, siblings, scores = [], [], []
        for span in work.spans:
            output = self.outputs[span.request]
            sampled.append(output.next() if span.sampling is not None else None)
            siblings.append(tuple(self.outputs[id].next() for id in self._siblings(span)))
            scores.append(_scores(span, output))
            assert span.top == output.request.logprobs.top, (span, output)
        return StepResult(tuple(sampled), self.cost.seconds(work), tuple(siblings), tuple(scores))


def _scores(span: SpanWork, output: ExpectedOutput) -> tuple[SampledToken, ...]:
    if span.prompt_logprobs is None:
        return ()
    start, end = span.prompt_logprobs.start, span.prompt_logprobs.end
    assert np.array_equal(span.prompt_logprobs.tokens, output.tokens[start + 1 : end + 1]), (span, output)
    return tuple(output.at(position + 1) for position in range(start, end))


def _with_failure(result: StepResult, failure: Failure | None) -> StepResult:
    """The answer after `failure`. It is unchanged where the failure has nothing to remove or to add."""
    sampled = result.sampled
    match failure:
        case Failure.SHORT_ANSWER:
            return replace(result, sampled=sampled[:-1])
        case Failure.MISSING_TOKENS:
            return replace(result, sampled=(None,) * len(sampled))
        case Failure.EXTRA_TOKENS:
            return replace(result, sampled=tuple(token or SampledToken(0, 0.0) for token in sampled))
    return result

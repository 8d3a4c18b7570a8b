"""Judges each iteration from the outside, without any formula of the scheduler.

The bound. Let `share(r) = patience + 2 + tokens of r at most + rows x context`. A request ends within

    sum of share(q) over the request itself and every q that ranks before it and is unfinished in its lifetime

iterations after it was sent, not counting pauses. The reason: while the request that ranks first waits, its
patience ends after `patience + 1` iterations. From then on no request is admitted, and the oldest running
request computes a token in every step and is never retracted, so after rows x context iterations nothing
runs and the first request fits alone. Once it runs it is never retracted, and computes a token in every step.

A pause or a weight update may retract every request, and then the count starts again. A weight update that
waits for running requests is counted as if every unfinished request ran before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from transom.sched.config import SchedulerConfig
from transom.sched.loop import Iteration, Rejected
from transom.steps import SpanWork
from transom.values import (
    Ended,
    Event,
    FinishReason,
    PromptLogprobs,
    Request,
    RequestId,
    Sibling,
    TokenSampled,
)
from transom_lab.worlds.expected import ExpectedOutput, ToyModel
from transom_lab.worlds.runner import Observed

VOCABULARY = 6
"""Small, so that texts of different requests meet, and part inside a page."""

MODEL = ToyModel(VOCABULARY)


@dataclass(slots=True, eq=False)
class Standing:
    """How one accepted output ranks, when it is due, and on which siblings it depends. Mutable."""

    rank: tuple[int, int]
    """Smaller ranks are served first."""
    sent: int
    """Iterations before it was sent."""
    due: int = 0
    """The iteration in which it must have ended."""
    parent: RequestId | None = None
    """The sibling that computes its first logits, until it has sampled its first token."""
    forks: list[RequestId] = field(default_factory=list)
    """Siblings that wait for this one's first token."""


@dataclass(slots=True)
class Judge:
    """Owns every accepted request, and the events that the next iteration must report. Mutable."""

    config: SchedulerConfig
    outputs: dict[RequestId, ExpectedOutput] = field(default_factory=dict)
    unfinished: dict[RequestId, ExpectedOutput] = field(default_factory=dict)
    iterations: int = 0
    clock: float = 0.0
    arrivals: int = 0
    draining: bool = False
    """Whether new requests are refused."""
    paused: bool = False
    updating: bool = False
    """Whether a weight update is pending."""
    rejected: list[RequestId] = field(default_factory=list)
    """Requests that the next iteration must refuse, in order."""
    aborted: set[RequestId] = field(default_factory=set)
    """Requests that the next iteration must end."""
    late: set[RequestId] = field(default_factory=set)
    """Requests that a deadline ends in the next iteration."""
    slowest: float = 0.0
    """The largest part of its bound that a request took, of requests that were not cut short."""
    _standings: dict[RequestId, Standing] = field(default_factory=dict)

    # ------------------------------------------------------------ requests that are sent

    def send(self, request: Request) -> None:
        """Notes the outcome that a request must have: a refusal, or the text of each output."""
        outputs = [request, *(replace(request, id=each.id) for each in request.siblings)]
        if self.draining or self._is_impossible(request) or any(o.id in self.unfinished for o in outputs):
            self.rejected += [output.id for output in outputs]
            return
        first = self._accept(replace(request, siblings=()))
        logprobs = replace(request.logprobs, prompt_from=None)
        for each in request.siblings:
            sibling = replace(request, id=each.id, sampling=each.sampling, logprobs=logprobs, siblings=())
            self._accept(sibling).parent = request.id
            first.forks.append(each.id)

    def _is_impossible(self, request: Request) -> bool:
        prompt, context = len(request.prompt), self.config.context
        too_long = prompt > context or (prompt == context and request.max_tokens > 0)
        empty = prompt == 0 or request.max_tokens < 0 or (request.siblings and request.max_tokens == 0)
        return too_long or bool(empty)

    def _accept(self, request: Request) -> Standing:
        rank = (self.arrivals - self.config.priority_bonus * request.priority, int(request.id))
        output = ExpectedOutput.of(MODEL, request, self.config.context)
        standing = Standing(rank, self.iterations, self.iterations + self._share(output))
        if self.updating:
            standing.due += sum(map(self._share, self.unfinished.values()))
        self.arrivals += 1
        for id, other in self.unfinished.items():
            if self._standings[id].rank < rank:
                standing.due += self._share(other)
            else:
                self._standings[id].due += self._share(output)
        self._standings[request.id] = standing
        self.outputs[request.id] = self.unfinished[request.id] = output
        return standing

    # ------------------------------------------------------------ the bound

    def _share(self, output: ExpectedOutput) -> int:
        config = self.config
        return config.patience_steps + 2 + output.limit + config.max_running * config.context

    def by_rank(self) -> list[ExpectedOutput]:
        """Unfinished outputs, the one that is served first in front."""
        return sorted(self.unfinished.values(), key=lambda output: self._standings[output.request.id].rank)

    def restart_bounds(self) -> None:
        """Every request may be retracted now, and may then wait for all the rest."""
        ahead = sum(map(self._share, self.unfinished.values()))
        for output in self.by_rank():
            ahead += self._share(output)
            standing = self._standings[output.request.id]
            standing.due = max(standing.due, self.iterations) + ahead

    def replay(self, unsent: Sequence[Request]) -> list[Request]:
        """The requests that another engine must get; `unsent` follow them, which no engine has seen yet.

        There they arrive anew, in the same order: each output with tokens as a request of its own, the others
        of a prompt together.
        """
        # A request that no engine has seen was sent since the last iteration; its double is refused.
        seen = [id for id in self.unfinished if self._standings[id].sent < self.iterations]
        requests, self.arrivals = [], 0
        for id in (id for id in seen if self._standings[id].parent is None):
            forks = self._standings[id].forks
            siblings = [Sibling(fork, self.outputs[fork].request.sampling) for fork in forks]
            requests.append(self.outputs[id].continuation(tuple(siblings)))
        arriving = (id for request in (*requests, *unsent) for id in request.ids if id in self.unfinished)
        for self.arrivals, id in enumerate(dict.fromkeys(arriving), 1):
            standing, priority = self._standings[id], self.outputs[id].request.priority
            standing.rank = (self.arrivals - 1 - self.config.priority_bonus * priority, int(id))
            standing.sent = self.iterations
        self.restart_bounds()
        return requests

    # ------------------------------------------------------------ one iteration

    def foresee(self, now: float) -> None:
        """Before an iteration: decides which requests end in it, independently of its step."""
        self.clock = max(self.clock, now)
        self.late = {
            id
            for id, output in self.unfinished.items()
            if self._standings[id].sent < self.iterations and self._is_late(output)
        }
        for request in self.late | self.aborted:
            self._leave_family(request)

    def siblings(self, span: SpanWork) -> Sequence[RequestId]:
        """The siblings that fork from a span: all that wait for its first token. Asserts their seeds."""
        forks = self._standings[span.request].forks if span.sampling is not None else []
        seeds = [sampling.seed for sampling in span.siblings]
        assert seeds == [self.outputs[id].request.sampling.seed for id in forks], (span, forks)
        return forks

    def judge(self, done: Iteration, seen: Observed) -> None:
        """Asserts that one iteration reported everything it had to, and nothing more."""
        self._judge_refusals(done.rejected)
        received = {id: self.outputs[id].received for id in seen.sampled}
        self.iterations += 1
        failed = done.failure is not None
        for event in done.events:
            output = self.unfinished.get(event.request)
            assert output is not None, ("an event of a request that is not running", event)
            self._judge_event(event, output, seen, failed=failed)
        assert not self.aborted and not self.late, ("not ended", self.aborted, self.late)
        self._judge_missing(seen, received, failed=failed)
        for id, output in self.unfinished.items():
            standing = self._standings[id]
            standing.due += self.paused
            assert self.iterations < standing.due, ("not over in time", output, standing)

    def _is_late(self, output: ExpectedOutput) -> bool:
        return output.request.deadline is not None and output.request.deadline <= self.clock

    def _judge_refusals(self, rejected: tuple[Rejected, ...]) -> None:
        assert [refused.request for refused in rejected] == self.rejected, (rejected, self.rejected)
        assert all(str(refused.error) for refused in rejected), rejected
        self.rejected.clear()

    def _judge_event(self, event: Event, output: ExpectedOutput, seen: Observed, *, failed: bool) -> None:
        match event:
            case Ended():
                output.end(event)
                self._judge_reason(event, output, seen, failed=failed)
                del self.unfinished[event.request]
                self._leave_family(event.request)
            case PromptLogprobs(request=request):
                assert request in seen.computed and not failed, ("not computed", event)
                output.score(event)
            case TokenSampled(request=request):
                assert request in seen.sampled and not failed, ("not sampled", event)
                output.receive(event)
                self._fork(request)

    def _judge_reason(self, event: Ended, output: ExpectedOutput, seen: Observed, *, failed: bool) -> None:
        request = event.request
        match event.reason:
            case FinishReason.ABORT:
                assert request in self.aborted, ("no abort was sent", event)
            case FinishReason.DEADLINE:
                assert request in self.late, ("its deadline has not passed", event)
            case FinishReason.ERROR:
                assert failed and request in seen.touched() and event.message, ("its step is sound", event)
            case _:
                computed = request in seen.sampled or seen.computed.get(request) == output.limit
                assert computed and not failed, ("its step was not computed", event, seen)
                assert output.is_complete and event.reason is output.reason, ("too early", event, output)
                assert output.scored == len(output.request.prompt), ("before all scores", event, output)
                standing = self._standings[request]
                share = (self.iterations - standing.sent) / (standing.due - standing.sent)
                self.slowest = max(self.slowest, share)
        self.aborted.discard(request)
        self.late.discard(request)

    def _judge_missing(self, seen: Observed, received: dict[RequestId, int], *, failed: bool) -> None:
        """A failed step has ended its requests. Any other step has streamed every token it sampled."""
        if failed:
            assert self.unfinished.keys().isdisjoint(seen.computed), ("its step failed", seen)
            return
        for request, source in seen.sampled.items():
            output, ended = self.outputs[request], self.outputs[source].ended
            if ended is not None and ended.reason is FinishReason.ABORT:
                continue  # aborted in flight: its siblings do not fork from it
            if output.ended is None:
                assert output.received == received[request] + 1, ("its token was not streamed", output)
                assert not output.is_complete, ("complete, and not ended", output)

    # ------------------------------------------------------------ siblings

    def _fork(self, request: RequestId) -> None:
        """A sibling's first token is its fork: from then on it has the prefix of its parent."""
        standing, output = self._standings[request], self.outputs[request]
        if standing.parent is not None:
            self._standings[standing.parent].forks.remove(request)
            output.cached, output.admissions = self.outputs[standing.parent].cached, 1
            standing.parent = None

    def _leave_family(self, request: RequestId) -> None:
        """A request that ends passes its waiting siblings on to the first of them."""
        standing = self._standings[request]
        if standing.parent is not None:
            self._standings[standing.parent].forks.remove(request)
            standing.parent = None
        if standing.forks:
            heir, *others = standing.forks
            self._standings[heir].parent, self._standings[heir].forks = None, others
            for other in others:
                self._standings[other].parent = heir
            standing.forks = []

"""What must come of each turn, told from outside: no formula of the scheduler.

The bound. A request r ends within

    sum over r and every request senior to r that is unfinished in r's life:
        patience + 2 + tokens it may come to + rows x context

turns after it was sent, pauses not counted. For while the senior of all waits, it is out of patience after
`patience` + 1 turns; then nobody is admitted, and the senior of those that run computes a token in every step
and is never retracted, so that after rows x context turns nothing runs; whatever comes first fits alone. Once
the senior of all runs it is never retracted, and computes a token in every step.

Who retracts everybody, by a pause or new weights, starts the count anew; for weights that wait for those who
have begun, all that are unfinished are counted.
"""

from dataclasses import dataclass, field, replace

from transom.sched.config import SchedulerConfig
from transom.sched.loop import Iteration, Rejected
from transom.values import Ended, Event, FinishReason, PromptLogprobs, Request, RequestId, TokenSampled
from transom_lab.faults.asked import Asked


@dataclass(frozen=True, slots=True)
class Seen:
    """What the runner saw of a step.

    computed  how far each request in it came
    chosen    whose tokens were chosen, each from whose logits: its own, or those of its first
    copied    whom copies were made for
    """

    computed: dict[RequestId, int] = field(default_factory=dict)
    chosen: dict[RequestId, RequestId] = field(default_factory=dict)
    copied: frozenset[RequestId] = frozenset()

    def touched(self) -> set[RequestId]:
        """All who have to do with it."""
        return {*self.computed, *self.chosen, *self.copied}


@dataclass(slots=True)
class Judge:
    """Owns all requests ever accepted, and what is to come of the next turn. Mutable."""

    limits: SchedulerConfig
    asked: dict[RequestId, Asked] = field(default_factory=dict)
    unfinished: dict[RequestId, Asked] = field(default_factory=dict)
    turns: int = 0
    clock: float = 0.0
    arrivals: int = 0
    closed: bool = False
    """Whether nothing is to be taken any more."""
    paused: bool = False
    updating: bool = False
    """Whether new weights are waited for."""
    rejected: list[RequestId] = field(default_factory=list)
    """To come, in order."""
    aborted: set[RequestId] = field(default_factory=set)
    """To end in this turn."""
    late: set[RequestId] = field(default_factory=set)
    """The same, by their deadlines."""
    slowest: float = 0.0
    """Of all requests that ended by themselves, the largest part of its bound that one took."""

    # ------------------------------------------------------------ what is sent

    def send(self, request: Request) -> None:
        """Notes what is to come of it: refusals, or the texts of its outputs."""
        outputs = [request, *(replace(request, id=each.id) for each in request.siblings)]
        if self.closed or self._is_impossible(request) or any(o.id in self.unfinished for o in outputs):
            self.rejected += [output.id for output in outputs]
            return
        first = self._accept(replace(request, siblings=()))
        logprobs = replace(request.logprobs, prompt_from=None)
        for each in request.siblings:
            sibling = replace(request, id=each.id, sampling=each.sampling, logprobs=logprobs, siblings=())
            self._accept(sibling).first = first.request.id
            first.unborn.append(each.id)

    def _is_impossible(self, request: Request) -> bool:
        prompt, context = len(request.prompt), self.limits.context
        too_long = prompt > context or (prompt == context and request.max_tokens > 0)
        nothing = prompt == 0 or request.max_tokens < 0 or (request.siblings and request.max_tokens == 0)
        return too_long or bool(nothing)

    def _accept(self, request: Request) -> Asked:
        limit = min(len(request.prompt) + request.max_tokens, self.limits.context)
        seniority = (self.arrivals - self.limits.priority_bonus * request.priority, int(request.id))
        asked = Asked(request, seniority, limit, self.turns)
        asked.due = self.turns + self._share(asked)
        if self.updating:
            asked.due += sum(map(self._share, self.unfinished.values()))
        self.arrivals += 1
        for other in self.unfinished.values():
            junior, senior = (asked, other) if other.seniority < seniority else (other, asked)
            junior.due += self._share(senior)
        self.asked[request.id] = self.unfinished[request.id] = asked
        return asked

    # ------------------------------------------------------------ how long it may take

    def _share(self, asked: Asked) -> int:
        limits = self.limits
        return limits.patience_steps + 2 + asked.limit + limits.max_running * limits.context

    def by_seniority(self) -> list[Asked]:
        return sorted(self.unfinished.values(), key=lambda asked: asked.seniority)

    def count_anew(self) -> None:
        """Everybody may have been retracted, and may have to wait for everybody who has begun."""
        ahead = sum(map(self._share, self.unfinished.values()))
        for asked in self.by_seniority():
            ahead += self._share(asked)
            asked.due = max(asked.due, self.turns) + ahead

    # ------------------------------------------------------------ what came of it

    def foresee(self, now: float) -> None:
        """Before a turn: who ends in it, whatever is computed. Their families know when it is."""
        self.clock = max(self.clock, now)
        self.late = {id for id, a in self.unfinished.items() if a.sent < self.turns and self._is_late(a)}
        for request in self.late | self.aborted:
            self._leave_family(self.asked[request])

    def judge(self, taken: Iteration, seen: Seen) -> None:
        """Everything that one turn told, and that it told all it had to."""
        self._judge_refusals(taken.rejected)
        heard = {id: self.asked[id].heard for id in seen.chosen}
        self.turns += 1
        for event in taken.events:
            asked = self.unfinished.get(event.request)
            assert asked is not None, ("of nobody, or of one that has ended", event)
            self._judge_event(event, asked, seen, failed=taken.failure is not None)
        assert not self.aborted and not self.late, ("not ended", self.aborted, self.late)
        self._judge_missing(seen, heard, failed=taken.failure is not None)
        for asked in self.unfinished.values():
            asked.due += self.paused
            assert self.turns < asked.due, ("not over in time", asked)

    def _is_late(self, asked: Asked) -> bool:
        return asked.request.deadline is not None and asked.request.deadline <= self.clock

    def _judge_refusals(self, rejected: tuple[Rejected, ...]) -> None:
        assert [refused.request for refused in rejected] == self.rejected, (rejected, self.rejected)
        assert all(str(refused.error) for refused in rejected), rejected
        self.rejected.clear()

    def _judge_event(self, event: Event, asked: Asked, seen: Seen, *, failed: bool) -> None:
        match event:
            case Ended():
                asked.end(event)
                self._judge_reason(event, asked, seen, failed=failed)
                del self.unfinished[event.request]
                self._leave_family(asked)
            case PromptLogprobs(request=request):
                assert request in seen.computed and not failed, ("not computed", event)
                asked.score(event)
            case TokenSampled(request=request):
                assert request in seen.chosen and not failed, ("not chosen", event)
                asked.hear(event)
                if asked.first is not None:
                    self._bear(asked)

    def _judge_reason(self, event: Ended, asked: Asked, seen: Seen, *, failed: bool) -> None:
        request = event.request
        match event.reason:
            case FinishReason.ABORT:
                assert request in self.aborted, ("nobody aborted it", event)
            case FinishReason.DEADLINE:
                assert request in self.late, ("its deadline has not passed", event)
            case FinishReason.ERROR:
                assert failed and request in seen.touched() and event.message, ("nothing broke for it", event)
            case _:
                whole = request in seen.chosen or seen.computed.get(request) == asked.limit
                assert whole and not failed, ("its step was not computed", event, seen)
                assert asked.is_said and event.reason is asked.reason, ("too early", event, asked)
                assert asked.scored == len(asked.request.prompt), ("before all scores", event, asked)
                self.slowest = max(self.slowest, (self.turns - asked.sent) / (asked.due - asked.sent))
        self.aborted.discard(request)
        self.late.discard(request)

    def _judge_missing(self, seen: Seen, heard: dict[RequestId, int], *, failed: bool) -> None:
        """Who was in a step that failed has ended; of another step everything chosen was told."""
        if failed:
            assert self.unfinished.keys().isdisjoint(seen.computed), ("its step failed", seen)
            return
        for request, first in seen.chosen.items():
            asked, ended = self.asked[request], self.asked[first].ended
            if ended is not None and ended.reason is FinishReason.ABORT:
                continue  # in flight, and nobody is born of it
            assert asked.ended is not None or asked.heard == heard[request] + 1, ("not told", asked)
            assert asked.ended is not None or not asked.is_said, ("said all and goes on", asked)

    # ------------------------------------------------------------ families

    def _bear(self, asked: Asked) -> None:
        """It has its first token, from the logits of its first one."""
        assert asked.first is not None, asked
        first = self.asked[asked.first]
        first.unborn.remove(asked.request.id)
        asked.first, asked.cached, asked.admissions = None, first.cached, 1

    def _leave_family(self, asked: Asked) -> None:
        """Those unborn of one that ends wait for the next of them."""
        if asked.first is not None:
            self.asked[asked.first].unborn.remove(asked.request.id)
            asked.first = None
        if asked.unborn:
            heir, *others = asked.unborn
            self.asked[heir].first, self.asked[heir].unborn = None, others
            for other in others:
                self.asked[other].first = heir
            asked.unborn = []

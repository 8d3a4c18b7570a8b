"""What each request must say and when it must be over, told from outside: no formula of the scheduler.

The bound. A request r ends within

    sum over r and every request senior to r that is unfinished in r's life:
        patience + 2 + tokens it may come to + rows x context

turns after it was sent. For while the senior of all waits, it is out of patience after `patience` + 1 turns;
then nobody is admitted, and the senior of those that run computes a token in every step and is never
retracted, so that after rows x context turns nothing runs; whatever comes first fits alone. Once the senior
of all runs it is never retracted, and computes a token in every step.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from transom.sched.limits import Limits
from transom.sched.turn import Rejected
from transom.sched.turn import Turn as Taken
from transom.sim.faults_text import output
from transom.values import Choice, Ended, FinishReason, Request, RequestId, TokenChosen, Tokens, Usage


@dataclass(slots=True, eq=False)
class Asked:
    """One accepted request, and all that was heard of it. Mutable."""

    request: Request
    seniority: tuple[int, int]
    limit: int
    """Most tokens it may come to."""
    sent: int
    """The turn before which it came."""
    due: int
    """The turn in which it must have ended."""
    text: tuple[int, ...]
    tokens: Tokens
    """The prompt and all of the text."""
    said: int = 0
    """Output tokens that the runner has chosen."""
    heard: int = 0
    computed: int = 0
    cached: int = 0
    """Where it first began."""
    admissions: int = 0
    ended: Ended | None = None

    @property
    def known(self) -> int:
        return len(self.request.prompt) + self.said

    @property
    def wants_token(self) -> bool:
        return self.known < self.limit

    @property
    def is_said(self) -> bool:
        return self.heard == len(self.text)

    def begin(self, start: int) -> None:
        if not self.admissions:
            self.cached = start
        self.admissions += 1

    def choice(self, end: int) -> Choice:
        """The token after the first `end`; its logprob is the position."""
        self.said += 1
        assert end < len(self.tokens), ("more than the whole text", self, end)
        return Choice(int(self.tokens[end]), -float(end))

    def hear(self, event: TokenChosen) -> None:
        """The next token of the text and no other."""
        place = len(self.request.prompt) + self.heard
        assert place < len(self.tokens), ("a token after the last", event, self)
        assert (event.token, event.logprob) == (self.tokens[place], -float(place)), ("token", event, self)
        self.heard += 1

    def end(self, event: Ended) -> None:
        assert event.usage == Usage(len(self.request.prompt), self.heard, self.cached), (event, self)
        self.ended = event

    @property
    def reason(self) -> FinishReason:
        """Why it ends when nothing cuts it short."""
        stopped = bool(self.text) and self.text[-1] in self.request.stop_ids
        return FinishReason.STOP if stopped else FinishReason.LENGTH


@dataclass(slots=True)
class Judge:
    """Owns all requests ever accepted, and what is to come of the next turn. Mutable."""

    limits: Limits
    asked: dict[RequestId, Asked] = field(default_factory=dict)
    unfinished: dict[RequestId, Asked] = field(default_factory=dict)
    arrivals: int = 0
    turns: int = 0
    rejected: list[RequestId] = field(default_factory=list)
    """To come, in order."""
    aborted: set[RequestId] = field(default_factory=set)
    """To end in this turn."""
    slowest: float = 0.0
    """Of all requests that ended by themselves, the largest part of the bound that one took."""

    # ------------------------------------------------------------ what is sent

    def send(self, request: Request) -> None:
        """Whether it may run, told by its own lengths."""
        prompt, context = len(request.prompt), self.limits.context
        impossible = not 0 < prompt <= context or request.max_tokens < 0
        if impossible or (prompt == context and request.max_tokens) or request.id in self.unfinished:
            self.rejected.append(request.id)
            return
        limit = min(prompt + request.max_tokens, context)
        text = output(request.prompt.tolist(), limit - prompt, request.stop_ids)
        whole = np.array([*request.prompt.tolist(), *text], np.int32)
        seniority = (self.arrivals - self.limits.priority_bonus * request.priority, int(request.id))
        self.arrivals += 1
        asked = Asked(request, seniority, limit, self.turns, self.turns, text, whole)
        asked.due += self._share(asked)
        for other in self.unfinished.values():
            junior, senior = (asked, other) if other.seniority < seniority else (other, asked)
            junior.due += self._share(senior)
        self.asked[request.id] = self.unfinished[request.id] = asked

    def _share(self, asked: Asked) -> int:
        limits = self.limits
        return limits.patience_steps + 2 + asked.limit + limits.max_running * limits.context

    def by_seniority(self) -> list[Asked]:
        return sorted(self.unfinished.values(), key=lambda asked: asked.seniority)

    # ------------------------------------------------------------ what came of it

    def judge(self, taken: Taken, in_step: frozenset[RequestId]) -> None:
        """Everything that one turn told, and that it told all it had to."""
        self.turns += 1
        self._judge_refusals(taken.rejected)
        failed = in_step if taken.failure is not None else frozenset()
        for event in taken.events:
            asked = self.unfinished.get(event.request)
            assert asked is not None, ("of nobody, or of one that has ended", event)
            if isinstance(event, TokenChosen):
                assert event.request in in_step, ("not computed", event)
                asked.hear(event)
            else:
                self._judge_end(event, asked, failed)
        assert not self.aborted, ("aborted, and not ended", self.aborted)
        for asked in self._touched(in_step):
            assert asked.said == asked.heard, ("said and not told", asked)
            assert not (asked.is_said and asked.said), ("said all and goes on", asked)
        for asked in self.unfinished.values():
            assert self.turns < asked.due, ("not over in time", asked)

    def _touched(self, in_step: frozenset[RequestId]) -> Iterator[Asked]:
        return (self.unfinished[request] for request in in_step if request in self.unfinished)

    def _judge_refusals(self, rejected: tuple[Rejected, ...]) -> None:
        assert [refused.request for refused in rejected] == self.rejected, (rejected, self.rejected)
        assert all(str(refused.error) for refused in rejected), rejected
        self.rejected.clear()

    def _judge_end(self, event: Ended, asked: Asked, failed: frozenset[RequestId]) -> None:
        asked.end(event)
        del self.unfinished[event.request]
        match event.reason:
            case FinishReason.ABORT:
                assert event.request in self.aborted, ("nobody aborted it", event)
                self.aborted.discard(event.request)
            case FinishReason.ERROR:
                assert event.request in failed and event.message, ("nothing broke for it", event)
            case _:
                assert event.request not in failed, ("its step was not computed", event)
                assert asked.is_said and event.reason is asked.reason, ("too early", event, asked)
                self.slowest = max(self.slowest, (self.turns - asked.sent) / (asked.due - asked.sent))

    def require_over(self) -> None:
        assert not self.unfinished, self.unfinished

"""A scheduler under events, judged after every turn."""

from dataclasses import dataclass

import numpy as np

from transom.errors import NoSpace
from transom.fuzz.driver import world_of
from transom.fuzz.operations import Setting
from transom.sched.limits import Limits
from transom.sched.states import IdleReason
from transom.sched.turn import Abort, Command, Submit, turn
from transom.sched.turn import Flush as FlushAll
from transom.sched.turn import Turn as Taken
from transom.sim import faults_events as do
from transom.sim.faults_events import Happening
from transom.sim.faults_judge import Judge
from transom.sim.faults_plans import CheckedScheduler
from transom.sim.faults_runner import SECONDS, FaultyRunner, RunnerBroke
from transom.values import Request, RequestId

AUDIT_EVERY = 8
"""Turns from one look at the contents of all pages that are kept to the next. What is read always is."""

PLAN_TWICE_EVERY = 4


@dataclass(frozen=True, slots=True)
class Frame:
    """One cache, and one way to schedule on it."""

    setting: Setting
    chunk_tokens: int
    context: int
    patience_steps: int
    priority_bonus: int
    outputs_expected: int
    prefix_gain_min: int

    def limits(self) -> Limits:
        return Limits(
            max_running=self.setting.rows,
            chunk_tokens=self.chunk_tokens,
            context=self.context,
            patience_steps=self.patience_steps,
            priority_bonus=self.priority_bonus,
            first_outputs_expected=self.outputs_expected,
            prefix_gain_min=self.prefix_gain_min,
        )


class World:
    """Owns a scheduler and all around it. Mutable. Whatever it raises is a finding."""

    def __init__(self, frame: Frame) -> None:
        self.memory = world_of(frame.setting)
        self.cache = self.memory.cache
        self.scheduler = CheckedScheduler(self.cache, frame.limits())
        self.scheduler.again_every = PLAN_TWICE_EVERY
        self.judge = Judge(frame.limits())
        self.flushes = 0
        self.runner = FaultyRunner(self.memory, self.judge.asked.__getitem__, lambda: self.flushes)
        self.now = 0.0
        self.turns = 0
        self.sent = 0
        self.inbox: list[Command] = []

    # ------------------------------------------------------------ events

    def apply(self, event: Happening) -> None:
        match event:
            case do.Turn():
                self.turn()
            case do.Arrive():
                self._arrive(event)
            case do.Again(rank=rank) | do.Leave(rank=rank):
                self._to_one(event, rank)
            case do.LeaveLate(request=request):
                if RequestId(request) not in self.judge.unfinished:
                    self.inbox.append(Abort(RequestId(request)))
            case do.Flush():
                self.flushes += 1
                self.inbox.append(FlushAll())
            case do.Pin(tokens=tokens, steps=steps):
                self._pin(tokens, steps)
            case do.Trip(trouble=trouble):
                self.runner.trouble = trouble
            case do.Stall(seconds=seconds):
                self.runner.seconds = seconds
            case do.Jump(seconds=seconds):
                self.now += seconds

    def _arrive(self, event: do.Arrive) -> None:
        self.sent += 1
        self._send(
            Request(
                RequestId(self.sent),
                np.array(event.prompt, np.int32),
                event.max_tokens,
                frozenset(event.stop_ids),
                priority=event.priority,
                salt=event.salt,
                tenant=event.tenant,
                deadline=None if event.within is None else self.now + event.within,
            )
        )

    def _send(self, request: Request) -> None:
        self.judge.send(request)
        self.inbox.append(Submit(request))

    def _to_one(self, event: do.Again | do.Leave, rank: int) -> None:
        """Whoever is to end in the coming turn is left in peace: what it does then depends on the order."""
        there = [asked for asked in self.judge.by_seniority() if asked.request.id not in self.judge.aborted]
        if not there:
            return
        request = there[rank % len(there)].request
        if isinstance(event, do.Again):
            self._send(request)
        else:
            self.judge.aborted.add(request.id)
            self.inbox.append(Abort(request.id))

    def _pin(self, tokens: tuple[int, ...], steps: int) -> None:
        try:
            self.cache.pin(self.cache.namespace(RequestId(0), ""), np.array(tokens, np.int32), steps)
        except NoSpace as short:
            assert short.args, short

    # ------------------------------------------------------------ turns

    def turn(self) -> None:
        commands, self.inbox = self.inbox, []
        self.runner.last, self.runner.broke = None, False
        taken = turn(self.scheduler, commands, self.runner, self.now)
        self.turns += 1
        self.now += self.runner.seconds
        self.runner.seconds = SECONDS
        self._judge(taken)

    def _judge(self, taken: Taken) -> None:
        step = self.runner.last
        if taken.failure is not None and not (self.runner.broke and _is_as_told(taken.failure)):
            raise taken.failure
        assert self.runner.broke == (taken.failure is not None), ("a broken answer was taken", taken)
        spans = step.spans if step is not None else ()
        self.judge.judge(taken, frozenset(span.request for span in spans))
        assert (taken.idle is None) == bool(spans), taken
        if taken.idle is not None:
            assert not self.judge.unfinished, ("idle, and there is work", taken, self.judge.unfinished)
            self._require_empty()
        assert set(self.scheduler.unfinished()) == self.judge.unfinished.keys(), self.scheduler.stats()
        self.cache.check()
        self.runner.settle()
        if self.turns % AUDIT_EVERY == 0:
            self.memory.audit()

    # ------------------------------------------------------------ the end

    def finish(self) -> None:
        """Nothing happens any more: all that is unfinished ends in time, and leaves nothing behind."""
        self.runner.trouble = None
        while self.judge.unfinished or self.inbox:
            self.turn()
        self.turn()
        self.memory.audit()
        self._require_counted()
        self.cache.flush()
        assert all(pool.free == pool.capacity for pool in self.cache.pools), self.cache.stats()
        assert not self.cache.tree.roots, self.cache.tree.roots

    def _require_empty(self) -> None:
        """At idle nothing is referenced, nothing private, no row used, nothing pending, no page lost."""
        assert not any(self.cache.holdings) and not self.cache.pending_copies(), self.cache.holdings
        for pool in self.cache.pools:
            assert pool.free + pool.idle == pool.capacity and pool.tree == pool.idle, self.cache.stats()
        assert self.cache.space().bytes == (self.cache.layout.budget or 0), self.cache.space()

    def _require_counted(self) -> None:
        """The scheduler's own numbers are what was seen from outside."""
        stats, asked = self.scheduler.stats(), self.judge.asked.values()
        assert (stats.finished, stats.running, stats.waiting) == (len(asked), 0, 0), stats
        assert stats.generated_tokens == sum(each.heard for each in asked), stats
        assert stats.cached_tokens == sum(each.cached for each in asked), stats
        assert stats.steps == self.runner.steps, (stats, self.runner.steps)
        assert stats.idle[IdleReason.NO_ROOM] == 0, stats


def _is_as_told(failure: Exception) -> bool:
    """RunnerBroke, or the answer to a runner whose result does not answer the step."""
    return isinstance(failure, RunnerBroke | ValueError)

"""A scheduler under events, judged after every turn."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from transom.errors import BadRequest, NoSpace
from transom.kv.check import check, evict, inside
from transom.sched.commands import Drained, WeightsRefused, WeightsUpdated
from transom.sched.config import SchedulerConfig
from transom.sched.loop import Iteration, iterate
from transom.sched.policy import SchedulePolicy
from transom.values import (
    Ended,
    IdleReason,
    Logprobs,
    PauseMode,
    Request,
    RequestId,
    Sampling,
    Sibling,
    UpdateMode,
)
from transom.wire import Abort, AbortAll, Command, Drain, Flush, Pause, Resume, Submit, UpdateWeights
from transom_lab.faults import events as do
from transom_lab.faults.events import Happening
from transom_lab.faults.judge import Judge, Seen
from transom_lab.faults.plans import CheckedScheduler
from transom_lab.faults.runner import SECONDS, FaultyRunner, RunnerBroke
from transom_lab.fuzz.driver import world_of
from transom_lab.fuzz.kinds import is_state
from transom_lab.fuzz.operations import Setting

AUDIT_EVERY = 8
"""Turns from one look at the contents of all pages that are kept to the next. What is read always is."""

PLAN_TWICE_EVERY = 4

UNFIT, MISSING = "unfit", "missing"
"""Weights that are refused at once, and when they are to be loaded."""


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
    policy: SchedulePolicy
    passed_over_max: int
    target_seconds: float | None

    def limits(self) -> SchedulerConfig:
        return SchedulerConfig(
            max_running=self.setting.rows,
            chunk_tokens=self.chunk_tokens,
            context=self.context,
            patience_steps=self.patience_steps,
            priority_bonus=self.priority_bonus,
            first_outputs_expected=self.outputs_expected,
            prefix_gain_min=self.prefix_gain_min,
            policy=self.policy,
            passed_over_max=self.passed_over_max,
            target_seconds=self.target_seconds,
        )


class World:
    """Owns a scheduler and all around it. Mutable. Whatever it raises is a finding."""

    def __init__(self, frame: Frame) -> None:
        self.memory = world_of(frame.setting)
        self.cache = self.memory.cache
        self.scheduler = CheckedScheduler(self.cache, frame.limits())
        self.scheduler.again_every = PLAN_TWICE_EVERY
        self.judge = Judge(frame.limits())
        self.weights = _Weights(self._require_nobody_runs)
        self.flushes = 0
        self.runner = FaultyRunner(
            self.memory,
            self.judge.asked.__getitem__,
            lambda: self.flushes + self.weights.loaded,
            self._midway,
        )
        self.now = 0.0
        self.turns = 0
        self.sent = 0
        self.inbox: list[Command] = []
        self._updates: set[int] = set()
        """Numbers of those not answered yet."""
        self._numbers = 0
        self._leaving: list[int] = []
        """Ranks of those who leave in flight."""
        self._left: list[Ended] = []

    def epoch(self) -> int:
        """How often all that is kept was forgotten."""
        return self.flushes + self.weights.loaded

    # ------------------------------------------------------------ events

    def apply(self, event: Happening) -> None:
        match event:
            case do.Iteration():
                self.iterate()
            case do.Arrive():
                self._arrive(event)
            case do.Again(rank=rank) | do.Leave(rank=rank):
                self._to_one(event, rank)
            case do.LeaveLate(request=request):
                if RequestId(request) not in self.judge.unfinished:
                    self.inbox.append(Abort(RequestId(request)))
            case do.Pin(tokens=tokens, steps=steps):
                self._pin(tokens, steps)
            case do.Squeeze(component=component, pages=pages):
                self._squeeze(component, pages)
            case do.LeaveAll() | do.Flush() | do.Pause() | do.Resume() | do.Close() | do.Update():
                self._command(event)
            case _:
                self._disturb(event)

    def _disturb(self, event: do.LeaveInFlight | do.Trip | do.Stall | do.Jump) -> None:
        match event:
            case do.LeaveInFlight(rank=rank):
                self._leaving.append(rank)
            case do.Trip(trouble=trouble):
                self.runner.trouble = trouble
            case do.Stall(seconds=seconds):
                self.runner.seconds = seconds
            case do.Jump(seconds=seconds):
                self.now += seconds

    def _arrive(self, event: do.Arrive) -> None:
        first, *others = range(self.sent + 1, self.sent + event.outputs + 1)
        self.sent += event.outputs
        self._send(
            Request(
                RequestId(first),
                np.array(event.prompt, np.int32),
                event.max_tokens,
                frozenset(event.stop_ids),
                priority=event.priority,
                salt=event.salt,
                tenant=event.tenant,
                deadline=None if event.within is None else self.now + event.within,
                logprobs=Logprobs(event.top, event.scores_from),
                siblings=tuple(Sibling(RequestId(id), Sampling(seed=id - first)) for id in others),
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
        if isinstance(event, do.Leave):
            self._end(request.id)
            self.inbox.append(Abort(request.id))
        elif request.deadline is None:
            self._send(request)

    def _end(self, *requests: RequestId) -> None:
        """They are to end in the coming turn, but for those whose deadline comes first."""
        self.judge.aborted.update(requests)

    def _command(self, event: do.LeaveAll | do.Flush | do.Pause | do.Resume | do.Close | do.Update) -> None:
        match event:
            case do.LeaveAll():
                self._end(*self.judge.unfinished)
                self.inbox.append(AbortAll())
            case do.Flush():
                self.flushes += 1
                self.inbox.append(Flush())
            case do.Pause(mode=mode):
                self._pause(mode)
            case do.Resume():
                self.judge.paused = False
                self.inbox.append(Resume())
            case do.Close():
                self.judge.closed = True
                self.inbox.append(Drain())
            case do.Update():
                self._update(event)

    def _pause(self, mode: PauseMode) -> None:
        self.judge.paused = True
        self.inbox.append(Pause(mode))
        if mode is PauseMode.ABORT:
            self._end(*self.judge.unfinished)
        elif mode is PauseMode.RETRACT:
            self.judge.count_anew()

    def _update(self, event: do.Update) -> None:
        """Not twice before a turn: whether the second is refused depends on what is running."""
        if any(isinstance(command, UpdateWeights) for command in self.inbox):
            return
        if event.mode is UpdateMode.ABORT and event.weights != UNFIT and not self._updates:
            self._end(*self.judge.unfinished)
        self.judge.count_anew()
        self._numbers += 1
        self._updates.add(self._numbers)
        self.judge.updating = True
        self.inbox.append(UpdateWeights(self._numbers, event.weights, event.mode))

    def _pin(self, tokens: tuple[int, ...], steps: int) -> None:
        try:
            self.cache.pin(self.cache.namespace(RequestId(0), ""), np.array(tokens, np.int32), steps)
        except NoSpace as short:
            assert short.args, short

    def _squeeze(self, number: int, most: int) -> None:
        """Not with states: only the cache knows which of their pages are still to be written."""
        sliding = [c for c in range(len(self.memory.kinds)) if not self.memory.keeps_everything(c)]
        if not sliding or any(is_state(kind) for kind in self.memory.kinds):
            return
        component = sliding[number % len(sliding)]
        if count := min(most, inside(self.cache).pools[component].idle):
            evict(self.cache, component, count)

    # ------------------------------------------------------------ turns

    def iterate(self) -> None:
        commands, self.inbox = self.inbox, []
        self.runner.seen, self.runner.broke = None, False
        self.judge.foresee(self.now)
        taken = iterate(self.scheduler, commands, self.runner, self.now, self.weights)
        left = tuple(self._left)
        self._left.clear()
        self.turns += 1
        self.now += self.runner.seconds
        self.runner.seconds = SECONDS
        self._judge(replace(taken, events=(*left, *taken.events)))

    def _midway(self) -> None:
        """While a step is computed: aborts are answered at once."""
        ranks, self._leaving = self._leaving, []
        for rank in ranks:
            there = self.scheduler.unfinished()
            if there:
                request = there[rank % len(there)]
                self._end(request)
                ends = self.scheduler.abort(request)
                assert [end.request for end in ends] == [request], (request, ends)
                assert self.scheduler.abort(request) == (), request
                self._left += ends

    def _judge(self, taken: Iteration) -> None:
        if taken.failure is not None and not (self.runner.broke and _is_as_told(taken.failure)):
            raise taken.failure
        assert self.runner.broke == (taken.failure is not None), ("a broken answer was taken", taken)
        self.judge.judge(taken, self.runner.seen or Seen())
        self._judge_answers(taken)
        self._judge_idle(taken)
        self.runner.settle()
        if self.turns % AUDIT_EVERY == 0:
            self.memory.audit()  # all invariants too
        else:
            check(self.cache)

    def _judge_answers(self, taken: Iteration) -> None:
        """Each update is answered once; that nothing is left is said when nothing is."""
        for done in taken.done:
            match done:
                case WeightsUpdated(number=number, epoch=epoch):
                    assert epoch == self.epoch(), done
                    self._updates.remove(number)
                case WeightsRefused(number=number):
                    self._updates.remove(number)
        self.judge.updating = bool(self._updates)
        is_over = self.judge.closed and taken.idle is not None and not self.judge.unfinished
        assert (Drained(number=0) in taken.done) == is_over, taken

    def _judge_idle(self, taken: Iteration) -> None:
        """A step whenever there is work, but in a pause; and nothing is held where there is none."""
        unfinished = self.judge.unfinished
        assert set(self.scheduler.unfinished()) == unfinished.keys(), (self.scheduler.stats(), unfinished)
        assert len(self.scheduler.unfinished()) == len(unfinished), self.scheduler.unfinished()
        assert (taken.idle is None) == (self.runner.seen is not None), taken
        assert not self.judge.paused or taken.idle is not None, ("a step in a pause", taken)
        if taken.idle is None:
            return
        assert not unfinished or self.judge.paused, ("idle, and there is work", taken, unfinished)
        deadlines = [asked.request.deadline for asked in unfinished.values()]
        until = min((deadline for deadline in deadlines if deadline is not None), default=None)
        assert taken.idle.until == until, (taken, until)
        if not unfinished:
            self._require_empty()

    # ------------------------------------------------------------ the end

    def finish(self) -> None:
        """Nothing happens any more: all that is unfinished ends in time, and leaves nothing behind."""
        self.runner.trouble = None
        self._leaving.clear()
        self.apply(do.Resume())
        while self.judge.unfinished or self.inbox:
            self.iterate()
        self.iterate()
        assert not self._updates, ("never answered", self._updates)
        self.memory.audit()
        self._require_counted()
        self.cache.flush()
        assert all(pool.free == pool.capacity for pool in inside(self.cache).pools), self.cache.stats()
        assert not inside(self.cache).tree.roots, inside(self.cache).tree.roots

    def _require_nobody_runs(self) -> None:
        assert not any(inside(self.cache).holdings), ("weights change under", inside(self.cache).holdings)

    def _require_empty(self) -> None:
        """At idle nothing is referenced, nothing private, no row used, nothing pending, no page lost."""
        assert not any(inside(self.cache).holdings) and not self.cache.pending_copies(), inside(
            self.cache
        ).holdings
        for pool in inside(self.cache).pools:
            assert pool.free + pool.idle == pool.capacity and pool.tree == pool.idle, self.cache.stats()
        assert self.cache.available.bytes == (self.cache.layout.budget or 0), self.cache.available

    def _require_counted(self) -> None:
        """The scheduler's own numbers are what was seen from outside."""
        stats, asked = self.scheduler.stats(), self.judge.asked.values()
        assert (stats.requests_finished, stats.running, stats.waiting) == (len(asked), 0, 0), stats
        assert stats.generated_tokens == sum(each.heard for each in asked), stats
        assert stats.steps == self.runner.steps, (stats, self.runner.steps)
        sendable = (int, float, dict, tuple)
        assert all(type(value) in sendable for value in msgspec.structs.astuple(stats)), stats
        assert stats.idle[IdleReason.NO_ROOM] == 0, stats


class _Weights:
    """Weights of which nothing is known but how often they were loaded. Mutable."""

    def __init__(self, require_nobody_runs: Callable[[], None]) -> None:
        self._require_nobody_runs = require_nobody_runs
        self.loaded = 0

    def check(self, source: str) -> None:
        if source == UNFIT:
            raise BadRequest("of another model", param="model_path")

    def load(self, source: str) -> None:
        self._require_nobody_runs()
        if source == MISSING:
            raise BadRequest("there is no such file", param="model_path")
        self.loaded += 1


def _is_as_told(failure: Exception) -> bool:
    """RunnerBroke, or the answer to a runner whose result does not answer the step."""
    return isinstance(failure, RunnerBroke | ValueError)

"""A scheduler under injected events, judged after every iteration."""

from dataclasses import dataclass, replace

import msgspec
import numpy as np

from transom.kv.check import inside
from transom.sched.commands import Drained, WeightsRefused, WeightsUpdated
from transom.sched.config import SchedulerConfig
from transom.sched.loop import Iteration
from transom.sched.policy import SchedulePolicy
from transom.sched.step_cost import StepCost
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
from transom.wire import Abort, AbortAll, Drain, Flush, Pause, Resume, Stats, Submit, UpdateWeights
from transom_lab.faults.judge import Judge
from transom_lab.fuzz.driver import layout_of
from transom_lab.fuzz.operations import Setting
from transom_lab.worlds import events as do
from transom_lab.worlds.events import SchedulerEvent
from transom_lab.worlds.mixes import is_state
from transom_lab.worlds.runner import Observed
from transom_lab.worlds.scheduler_world import UNFIT, SchedulerWorld

STEP_SECONDS = 0.01
"""How long a step takes unless it is delayed."""

AUDIT_EVERY = 8
"""Iterations from one check of all cached pages to the next. Pages that a step reads are always checked."""

PLAN_TWICE_EVERY = 4

CHECK_EVERY = 4
"""Iterations from one check of all invariants to the next: half of the time of an iteration. What is broken
stays broken, and a replay checks after each iteration."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One cache, and one configuration of the scheduler on it."""

    setting: Setting
    chunk_tokens: int
    context: int
    patience_steps: int
    priority_bonus: int
    outputs_expected: int
    prefix_gain_min: int
    policy: SchedulePolicy
    skipped_max: int
    target_seconds: float | None

    def config(self) -> SchedulerConfig:
        return SchedulerConfig(
            max_running=self.setting.rows,
            chunk_tokens=self.chunk_tokens,
            context=self.context,
            patience_steps=self.patience_steps,
            priority_bonus=self.priority_bonus,
            first_outputs_expected=self.outputs_expected,
            prefix_gain_min=self.prefix_gain_min,
            policy=self.policy,
            skipped_max=self.skipped_max,
            target_seconds=self.target_seconds,
        )


class FaultWorld:
    """Owns a scheduler world and its judge. Mutable. Any exception it raises is a finding."""

    def __init__(self, frame: Frame, check_every: int = CHECK_EVERY) -> None:
        self.frame = frame
        self._check_every = check_every
        self.judge = Judge(frame.config())
        self.past: list[Stats] = []
        """Of the engines that died."""
        self._start()
        self.iterations = 0
        self.sent = 0
        self._updates: set[int] = set()
        """Weight updates without an answer yet, by number."""
        self._last_update = 0
        self._abort_ranks: list[int] = []
        """Requests to abort while the next step is computed, by rank."""
        self._aborted_in_flight: list[Ended] = []

    def _start(self) -> None:
        """Starts an engine: an empty cache, and a scheduler that knows no request."""
        self.world = SchedulerWorld(
            layout_of(self.frame.setting),
            self.frame.config(),
            self.judge.outputs,
            siblings=self.judge.siblings,
            in_flight=self._abort_in_flight,
        )
        self.memory, self.cache = self.world.memory, self.world.cache
        self.scheduler, self.runner = self.world.scheduler, self.world.runner
        self.scheduler.plan_twice_every = PLAN_TWICE_EVERY
        self.world.check_every = self._check_every
        self.runner.cost = StepCost(base=STEP_SECONDS)

    def stats(self) -> list[Stats]:
        """Of each engine, the last one last."""
        return [*self.past, self.scheduler.stats()]

    # ------------------------------------------------------------ events

    def apply(self, event: SchedulerEvent) -> None:
        match event:
            case do.Iterate():
                self.iterate()
            case do.Arrive():
                self._arrive(event)
            case do.SendAgain(rank=rank) | do.Abort(rank=rank):
                self._to_one(event, rank)
            case do.AbortInFlight(rank=rank):
                self._abort_ranks.append(rank)
            case do.AbortEnded(request=request):
                if RequestId(request) not in self.judge.unfinished:
                    self.world.send(Abort(RequestId(request)))
            case do.Pin(tokens=tokens, steps=steps):
                self.world.pin(tokens, steps)
            case do.Evict(component=component, pages=pages):
                self._evict(component, pages)
            case do.Crash():
                self._crash()
            case do.FailStep(failure=failure):
                self.runner.failure = failure
            case do.DelayStep(seconds=seconds):
                self.runner.cost = StepCost(base=seconds)
            case do.ShiftClock(seconds=seconds):
                self.world.clock += seconds
            case _:
                self._command(event)

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
                deadline=None if event.within is None else self.world.clock + event.within,
                logprobs=Logprobs(event.top, event.scores_from),
                siblings=tuple(Sibling(RequestId(id), Sampling(seed=id - first)) for id in others),
            )
        )

    def _send(self, request: Request) -> None:
        self.judge.send(request)
        self.world.send(Submit(request))

    def _to_one(self, event: do.SendAgain | do.Abort, rank: int) -> None:
        """Requests that end in the coming iteration are left out: the outcome would depend on the order."""
        there = [output for output in self.judge.by_rank() if output.request.id not in self.judge.aborted]
        if not there:
            return
        request = there[rank % len(there)].request
        if isinstance(event, do.Abort):
            self._expect_end(request.id)
            self.world.send(Abort(request.id))
        elif request.deadline is None:
            self._send(request)

    def _expect_end(self, *requests: RequestId) -> None:
        """The requests must end in the coming iteration, by abort or by a deadline that comes first."""
        self.judge.aborted.update(requests)

    def _command(
        self, event: do.AbortAll | do.Flush | do.Pause | do.Resume | do.Drain | do.UpdateWeights
    ) -> None:
        match event:
            case do.AbortAll():
                self._expect_end(*self.judge.unfinished)
                self.world.send(AbortAll())
            case do.Flush():
                self.world.send(Flush())
            case do.Pause(mode=mode):
                self._pause(mode)
            case do.Resume():
                self.judge.paused = False
                self.world.send(Resume())
            case do.Drain():
                self.judge.draining = True
                self.world.send(Drain())
            case do.UpdateWeights():
                self._update(event)

    def _pause(self, mode: PauseMode) -> None:
        self.judge.paused = True
        self.world.send(Pause(mode))
        if mode is PauseMode.ABORT:
            self._expect_end(*self.judge.unfinished)
        elif mode is PauseMode.RETRACT:
            self.judge.restart_bounds()

    def _update(self, event: do.UpdateWeights) -> None:
        """At most one update per iteration: the answer to a second depends on the requests then running."""
        if any(isinstance(command, UpdateWeights) for command in self.world.inbox):
            return
        if event.mode is UpdateMode.ABORT and event.weights != UNFIT and not self._updates:
            self._expect_end(*self.judge.unfinished)
        self.judge.restart_bounds()
        self._last_update += 1
        self._updates.add(self._last_update)
        self.judge.updating = True
        self.world.send(UpdateWeights(self._last_update, event.weights, event.mode))

    def _evict(self, number: int, pages: int) -> None:
        """Evicts from a component that slides, by number among them.

        Not with recurrent states: only the cache knows which of their pages a pending copy has yet to write.
        """
        sliding = [c for c in range(len(self.memory.kinds)) if not self.memory.keeps_everything(c)]
        if sliding and not any(map(is_state, self.memory.kinds)):
            self.world.evict(sliding[number % len(sliding)], pages)

    def _crash(self) -> None:
        """Another engine starts. It gets the state that commands have left, and all that is unfinished.

        Not while an update of the weights or a drain is on its way: the client's rules for these are tested
        in `engine/`.
        """
        clock, inbox = self.world.clock, self.world.inbox
        if self._updates or any(isinstance(sent, Drain) for sent in inbox):
            return
        stats = self.scheduler.stats()
        assert stats.steps == len(self.runner.steps), (stats, len(self.runner.steps))
        self.past.append(stats)
        requests = self.judge.replay([sent.request for sent in inbox if isinstance(sent, Submit)])
        self._start()
        self.world.clock = clock
        if self.judge.paused and not any(isinstance(sent, Pause) for sent in inbox):
            self.world.send(Pause(PauseMode.IN_PLACE))
        drain = (
            [Drain()] if self.judge.draining else []
        )  # an engine that drains still gets what is unfinished
        for command in (*map(Submit, requests), *drain, *inbox):
            self.world.send(command)

    # ------------------------------------------------------------ iterations

    def iterate(self) -> None:
        self.judge.foresee(self.world.clock)
        done = self.world.iterate()
        aborted = tuple(self._aborted_in_flight)
        self._aborted_in_flight.clear()
        self.iterations += 1
        self.world.clock += self.runner.cost.base
        self.runner.cost = StepCost(base=STEP_SECONDS)
        done = replace(done, events=(*aborted, *done.events))
        self.judge.judge(done, self.runner.observed or Observed())
        self._judge_answers(done)
        self._judge_idle(done)
        if self.iterations % AUDIT_EVERY == 0:
            self.memory.audit()

    def _abort_in_flight(self) -> None:
        """Called while a step is computed. An abort is answered at once, and only once."""
        ranks, self._abort_ranks = self._abort_ranks, []
        for rank in ranks:
            there = self.scheduler.unfinished()
            if there:
                request = there[rank % len(there)]
                self._expect_end(request)
                ends = self.scheduler.abort(request)
                assert [end.request for end in ends] == [request], (request, ends)
                assert self.scheduler.abort(request) == (), request
                self._aborted_in_flight += ends

    def _judge_answers(self, done: Iteration) -> None:
        """Each weight update is answered once. `Drained` is reported exactly when no request is left."""
        for answer in done.done:
            match answer:
                case WeightsUpdated(number=number, epoch=epoch):
                    assert epoch == self.world.epoch(), answer
                    self._updates.remove(number)
                case WeightsRefused(number=number):
                    self._updates.remove(number)
        self.judge.updating = bool(self._updates)
        is_drained = self.judge.draining and done.idle is not None and not self.judge.unfinished
        assert (Drained(number=0) in done.done) == is_drained, done

    def _judge_idle(self, done: Iteration) -> None:
        """A step runs whenever there is work and no pause. Without work no page is held."""
        unfinished = self.judge.unfinished
        assert set(self.scheduler.unfinished()) == unfinished.keys(), (self.scheduler.stats(), unfinished)
        assert len(self.scheduler.unfinished()) == len(unfinished), self.scheduler.unfinished()
        assert (done.idle is None) == (self.runner.observed is not None), done
        assert not self.judge.paused or done.idle is not None, ("a step in a pause", done)
        if done.idle is None:
            return
        assert not unfinished or self.judge.paused, ("idle, and there is work", done, unfinished)
        deadlines = [output.request.deadline for output in unfinished.values()]
        until = min((deadline for deadline in deadlines if deadline is not None), default=None)
        assert done.idle.until == until, (done, until)
        if not unfinished:
            self.world.require_empty()

    # ------------------------------------------------------------ the end

    def finish(self) -> None:
        """Without further events, every unfinished request ends in time, and leaves nothing behind."""
        self.runner.failure = None
        self._abort_ranks.clear()
        self.apply(do.Resume())
        while self.judge.unfinished or self.world.inbox:
            self.iterate()
        self.iterate()
        assert not self._updates, ("never answered", self._updates)
        self.memory.audit()
        self._require_counted()
        self.cache.flush()
        assert all(pool.free == pool.capacity for pool in inside(self.cache).pools), self.cache.stats()
        assert not inside(self.cache).tree.roots, inside(self.cache).tree.roots

    def _require_counted(self) -> None:
        """The scheduler's statistics agree with a count from the outside."""
        stats, outputs = self.scheduler.stats(), self.judge.outputs.values()
        assert sum(each.requests_finished for each in self.stats()) == len(outputs), self.stats()
        assert (stats.running, stats.waiting) == (0, 0), stats
        received = sum(output.received for output in outputs)
        assert sum(each.generated_tokens for each in self.stats()) == received, self.stats()
        assert stats.steps == len(self.runner.steps), (stats, len(self.runner.steps))
        plain = (int, float, dict, tuple)
        assert all(type(value) in plain for value in msgspec.structs.astuple(stats)), stats
        assert stats.idle[IdleReason.NO_ROOM] == 0, stats

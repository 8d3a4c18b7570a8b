"""`transom bench sched`: the scheduler's speed, in medians of microseconds of CPU time, no model.

256 requests run and compute one token each per step, on pages of 16, full attention and a window of 512: in
every step one in sixteen takes a page, and one in sixteen publishes and slides. An attempt at admission is
what a plan takes longer for one request that waits: of 1,500 prompt tokens, 1,472 are cached. Between two
attempts there is a step, so that nothing is known from the one before. `refused`: 2,400 tokens are not cached
and there is no place, whoever ends first; each one more in the same plan takes as long as `another refused`.
"""

import gc
import statistics
import time
from dataclasses import dataclass

import numpy as np

from transom.bench.sheet import Row, Sheet, Wanted, publish
from transom.kv.cache import CacheLayout, HybridCache
from transom.kv.component_specs import Full, Window
from transom.sched.config import SchedulerConfig
from transom.sched.plan import Plan
from transom.sched.request import Step
from transom.sched.scheduler import Scheduler
from transom.steps import StepResult, StepWork
from transom.values import Request, RequestId, SampledToken, Tokens

PAGE, WINDOW, CONTEXT, OUTPUT = 16, 512, 4096, 3000


@dataclass(frozen=True, slots=True)
class Crowd:
    """Requests that run, prompts in tokens, and how many steps are timed."""

    running: int = 256
    prompt: int = 600
    """Of the shortest; the others have a token more each."""
    cached: int = 1472
    """Of the prompt of one that waits."""
    fresh: int = 28
    rounds: int = 300
    attempts: int = 15
    much: int = 2400
    """Fresh tokens for which there is no room in `pages_short`."""
    pages_short: int = 12_484
    """In which all of them can run while attempts are made."""


DEFAULT = Crowd()


def bench_sched(wanted: Wanted, crowd: Crowd = DEFAULT) -> None:
    """Raises ConfigError for a file that cannot be written."""
    gc.collect()
    gc.freeze()
    roomy = Bench(crowd, pages=100_000)
    rows = roomy.steps()
    one, admitted = roomy.attempt(1, crowd.fresh)
    assert admitted == 1, admitted
    rows.append(("admission attempt, admitted", one))
    short = Bench(crowd, pages=crowd.pages_short)
    one, admitted = short.attempt(1, crowd.much)
    three, _ = short.attempt(3, crowd.much)
    words = "hardly room" if admitted else "refused"
    rows += [(f"admission attempt, {words}", one), (f"another, {words}", (three - one) / 2)]
    found = tuple(Row(name, (took,)) for name, took in rows)
    title = f"us of CPU time, median; {crowd.running} requests run"
    publish("sched", [Sheet("steps", title, ("us",), found, ("us",), "us")], wanted)


class Bench:
    """Owns a scheduler with requests that run. Mutable."""

    def __init__(self, crowd: Crowd, pages: int) -> None:
        self.crowd = crowd
        running = crowd.running
        self.random = np.random.default_rng(1)
        layout = CacheLayout((Full(), Window(WINDOW)), (pages, pages), PAGE, running + 1, CONTEXT)
        limits = SchedulerConfig(
            max_running=running + 1, chunk_tokens=1 << 20, context=CONTEXT, first_outputs_expected=32
        )
        self.cache = HybridCache(layout)
        self.scheduler = Scheduler(self.cache, limits)
        self.ids = 0
        self.stem = self.draw(crowd.cached)
        self.submit(self.stem, 1)
        self.step()
        for number in range(running):  # lengths differ, so that pages end in different steps
            self.submit(self.draw(crowd.prompt + number), OUTPUT)
        while self.scheduler.stats().running < running:
            self.step()

    def draw(self, count: int) -> Tokens:
        return self.random.integers(0, 1 << 18, count).astype(np.int32)

    def submit(self, prompt: Tokens, max_tokens: int) -> RequestId:
        self.ids += 1
        self.scheduler.submit(Request(RequestId(self.ids), prompt, max_tokens))
        return RequestId(self.ids)

    def step(self) -> tuple[int, int, int]:
        """Nanoseconds of plan, commit and apply."""
        times = [time.thread_time_ns()]
        plan = self.scheduler.plan()
        times.append(time.thread_time_ns())
        step = self.scheduler.commit(plan)
        times.append(time.thread_time_ns())
        assert isinstance(step, Step), step
        result = computed(step.work)
        began = time.thread_time_ns()
        self.scheduler.apply(step, result)
        return times[1] - times[0], times[2] - times[1], time.thread_time_ns() - began

    # ---------------------------------------------------------------- what is measured

    def steps(self) -> list[tuple[str, float]]:
        running, rounds = self.crowd.running, self.crowd.rounds
        before = self.scheduler.stats()
        found = np.array([self.step() for _ in range(rounds)]) / 1000
        after = self.scheduler.stats()
        assert after.computed_tokens - before.computed_tokens == rounds * running
        assert after.retractions == 0 and after.running == running
        plan, commit, both, apply = (
            float(np.median(column))
            for column in (found[:, 0], found[:, 1], found[:, 0] + found[:, 1], found[:, 2])
        )
        rows = [("plan", plan), ("commit", commit), ("plan + commit", both), ("apply", apply)]
        return [(f"{name}, {running} tokens", took) for name, took in rows]

    def attempt(self, waiting: int, fresh: int) -> tuple[float, float]:
        """What a plan takes longer when so many are to be admitted, and how many of them it admits."""
        took, admitted = [], 0
        for _ in range(self.crowd.attempts):
            self.step()
            alone, before = timed_plan(self.scheduler)
            ids = [self.submit(np.concatenate([self.stem, self.draw(fresh)]), 64) for _ in range(waiting)]
            beside, plan = timed_plan(self.scheduler)
            took.append((beside - alone) / 1000)
            admitted += len(plan.entries) - len(before.entries)
            for request in ids:
                self.scheduler.abort(request)
        return statistics.median(took), admitted / self.crowd.attempts


def computed(work: StepWork) -> StepResult:
    return StepResult(tuple(SampledToken(7, -1.0) if span.sampling else None for span in work.spans))


def timed_plan(scheduler: Scheduler) -> tuple[int, Plan]:
    """Nanoseconds of this thread, and the plan."""
    began = time.thread_time_ns()
    plan = scheduler.plan()
    return time.thread_time_ns() - began, plan

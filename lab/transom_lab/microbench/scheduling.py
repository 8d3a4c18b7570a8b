"""`transom bench sched`: speed of the scheduler, as medians in microseconds of CPU time, without a model.

256 requests run and compute one token each per step. The cache has pages of 16 tokens, full attention and a
window of
512. So in every step one request in sixteen allocates a page, and one in sixteen publishes a page and slides.

An admission attempt is measured as the difference between two plans: with a waiting request and without it.
Of the request's 1,500 prompt tokens, 1,472 are cached. A step runs between two attempts, so that the
scheduler cannot reuse results of the one before. In the rows `refused` the request has 2,400 tokens that are
not cached, and they do not fit whichever requests end first; `another refused` is the cost of each further
such request in the same plan.
"""

import gc
import statistics
import time
from dataclasses import dataclass

import numpy as np

from transom.bench.sheet import ResultFiles, Row, Sheet, publish
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
class SchedulerLoad:
    """The running requests, the waiting requests, and how often is measured.

    running  requests; the shortest has a prompt of `prompt` tokens, and each further one a token more
    cached, fresh
             prompt tokens of a waiting request: found in the cache, and to be computed
    rounds, attempts
             measured steps, and measured admission attempts
    fresh_too_many
             fresh tokens that do not fit if the cache has only `pages_short` pages, where all requests still
             run
    """

    running: int = 256
    prompt: int = 600
    cached: int = 1472
    fresh: int = 28
    rounds: int = 300
    attempts: int = 15
    fresh_too_many: int = 2400
    pages_short: int = 12_484


DEFAULT = SchedulerLoad()


def bench_sched(files: ResultFiles, load: SchedulerLoad = DEFAULT) -> None:
    """Raises ConfigError for a file that cannot be written."""
    gc.collect()
    gc.freeze()
    ample = SchedulerBench(load, pages=100_000)
    rows = ample.steps()
    one, admitted = ample.attempt(1, load.fresh)
    assert admitted == 1, admitted
    rows.append(("admission attempt, admitted", one))
    short = SchedulerBench(load, pages=load.pages_short)
    one, admitted = short.attempt(1, load.fresh_too_many)
    three, _ = short.attempt(3, load.fresh_too_many)
    # Other loads than the default may leave enough memory; the label then must not claim a refusal.
    words = "short memory" if admitted else "refused"
    rows += [(f"admission attempt, {words}", one), (f"another, {words}", (three - one) / 2)]
    table = tuple(Row(name, (us,)) for name, us in rows)
    title = f"us of CPU time, median; {load.running} requests run"
    publish("sched", [Sheet("steps", title, ("us",), table, ("us",), "us")], files)


class SchedulerBench:
    """Owns a scheduler with running requests. Mutable."""

    def __init__(self, load: SchedulerLoad, pages: int) -> None:
        self.load = load
        running = load.running
        self.random = np.random.default_rng(1)
        # One row more than run: the waiting request must be able to be admitted.
        layout = CacheLayout((Full(), Window(WINDOW)), (pages, pages), PAGE, running + 1, CONTEXT)
        config = SchedulerConfig(
            max_running=running + 1, chunk_tokens=1 << 20, context=CONTEXT, first_outputs_expected=32
        )
        self.cache = HybridCache(layout)
        self.scheduler = Scheduler(self.cache, config)
        self.next_id = 0
        self.prefix = self.random_tokens(load.cached)
        self.submit(self.prefix, 1)
        self.step()
        for number in range(running):  # lengths differ, so that requests reach page ends in different steps
            self.submit(self.random_tokens(load.prompt + number), OUTPUT)
        while self.scheduler.stats().running < running:
            self.step()

    def random_tokens(self, count: int) -> Tokens:
        return self.random.integers(0, 1 << 18, count).astype(np.int32)

    def submit(self, prompt: Tokens, max_tokens: int) -> RequestId:
        self.next_id += 1
        self.scheduler.submit(Request(RequestId(self.next_id), prompt, max_tokens))
        return RequestId(self.next_id)

    def step(self) -> tuple[int, int, int]:
        """Runs one step. Returns the nanoseconds of plan, commit and apply."""
        times = [time.thread_time_ns()]
        plan = self.scheduler.plan()
        times.append(time.thread_time_ns())
        step = self.scheduler.commit(plan)
        times.append(time.thread_time_ns())
        assert isinstance(step, Step), step
        result = made_up_result(step.work)
        began = time.thread_time_ns()
        self.scheduler.apply(step, result)
        return times[1] - times[0], times[2] - times[1], time.thread_time_ns() - began

    # ---------------------------------------------------------------- measurements

    def steps(self) -> list[tuple[str, float]]:
        """Plan, commit and apply of steps in which every request computes one token."""
        running, rounds = self.load.running, self.load.rounds
        before = self.scheduler.stats()
        times = np.array([self.step() for _ in range(rounds)]) / 1000
        after = self.scheduler.stats()
        assert after.computed_tokens - before.computed_tokens == rounds * running
        assert after.retractions == 0 and after.running == running
        plan, commit, both, apply = (
            float(np.median(column))
            for column in (times[:, 0], times[:, 1], times[:, 0] + times[:, 1], times[:, 2])
        )
        rows = [("plan", plan), ("commit", commit), ("plan + commit", both), ("apply", apply)]
        return [(f"{name}, {running} tokens", us) for name, us in rows]

    def attempt(self, waiting: int, fresh: int) -> tuple[float, float]:
        """By how much `waiting` requests lengthen a plan, and how many of them it admits on average."""
        times, admitted = [], 0
        for _ in range(self.load.attempts):
            self.step()
            without, before = timed_plan(self.scheduler)
            requests = [
                self.submit(np.concatenate([self.prefix, self.random_tokens(fresh)]), 64)
                for _ in range(waiting)
            ]
            # Neither plan is committed, so both see the same state but for the waiting requests.
            beside, plan = timed_plan(self.scheduler)
            times.append((beside - without) / 1000)
            admitted += len(plan.entries) - len(before.entries)
            for request in requests:
                self.scheduler.abort(request)
        return statistics.median(times), admitted / self.load.attempts


def made_up_result(work: StepWork) -> StepResult:
    return StepResult(tuple(SampledToken(7, -1.0) if span.sampling else None for span in work.spans))


def timed_plan(scheduler: Scheduler) -> tuple[int, Plan]:
    """CPU nanoseconds of this thread, and the plan. The plan is not committed."""
    began = time.thread_time_ns()
    plan = scheduler.plan()
    return time.thread_time_ns() - began, plan

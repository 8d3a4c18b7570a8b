"""`transom bench sched`: the scheduler's speed, in medians of microseconds of CPU time, no model.

256 requests run and compute one token each per step, on pages of 16, full attention and a window of 512: in
every step one in sixteen takes a page, and one in sixteen publishes and slides. An attempt at admission is
what a plan takes longer for one request that waits: of 1,500 prompt tokens, 1,472 are cached.
"""

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from transom.bench.sheet import Row, Sheet, Wanted, publish
from transom.kv.cache import CacheLayout, HybridCache
from transom.sched.limits import Limits
from transom.sched.scheduler import Scheduler
from transom.sched.states import Step
from transom.values import Choice, Full, Request, RequestId, StepResult, StepWork, Tokens, Window

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
    pages_short: int = 13_696
    """In which all of them can run, and there is hardly room for one more."""


DEFAULT = Crowd()


def bench_sched(wanted: Wanted, crowd: Crowd = DEFAULT) -> None:
    """Raises ConfigError for a file that cannot be written."""
    gc.collect()
    gc.freeze()
    roomy = Bench(crowd, pages=100_000)
    rows = roomy.steps()
    rows.append(("admission attempt, admitted", roomy.attempt()))
    short = Bench(crowd, pages=crowd.pages_short)
    rows.append(("admission attempt, no room", short.attempt()))
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
        limits = Limits(max_running=running + 1, chunk_tokens=1 << 20, context=CONTEXT)
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

    def attempt(self) -> float:
        """What a plan takes longer when there is somebody to be admitted."""
        alone = median_us(self.scheduler.plan, self.crowd.rounds)
        prompt = np.concatenate([self.stem, self.draw(self.crowd.fresh)])
        request = self.submit(prompt, 8)
        beside = median_us(self.scheduler.plan, self.crowd.rounds)
        self.scheduler.abort(request)
        return beside - alone


def computed(work: StepWork) -> StepResult:
    return StepResult(tuple(Choice(7, -1.0) if span.sampling else None for span in work.spans))


def median_us(measured: Callable[[], object], rounds: int) -> float:
    """Of the time of this thread alone."""
    found = []
    for _ in range(rounds):
        began = time.thread_time_ns()
        measured()
        found.append(time.thread_time_ns() - began)
    return statistics.median(found) / 1000

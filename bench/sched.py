"""The scheduler's speed: medians in microseconds of CPU time, no model.

    python bench/sched.py

256 requests run and compute one token each per step, on pages of 16, full attention and a window of 512: in
every step one in sixteen takes a page, and one in sixteen publishes and slides. An attempt at admission is
what a plan takes longer for one request that waits: of 1,500 prompt tokens, 1,472 are cached. Between two
attempts there is a step, so that nothing is known from the one before. `refused`: 2,400 tokens are not cached
and there is no place, whoever ends first; each one more in the same plan takes as long as `another refused`.
"""

import gc
import statistics
import time

import numpy as np

from transom.kv.cache import CacheLayout, HybridCache
from transom.sched.intents import Plan
from transom.sched.limits import Limits
from transom.sched.scheduler import Scheduler
from transom.sched.states import Step
from transom.values import Choice, Full, Request, RequestId, StepResult, StepWork, Tokens, Window

RUNNING, PROMPT, PAGE, WINDOW, CONTEXT = 256, 600, 16, 512, 4096
CACHED, FRESH = 1472, 28
ROUNDS = 300
ATTEMPTS = 15
SPARE, MUCH = 600, 2400
"""Pages beside those that running requests hold at first, and fresh tokens of a prompt too long for that."""


class Bench:
    """Owns a scheduler with requests that run. Mutable."""

    def __init__(self, pages: int, running: int = RUNNING) -> None:
        self.random = np.random.default_rng(1)
        layout = CacheLayout((Full(), Window(WINDOW)), (pages, pages), PAGE, RUNNING + 1, CONTEXT)
        limits = Limits(
            max_running=RUNNING + 1,
            chunk_tokens=1 << 20,
            context=CONTEXT,
            first_outputs_expected=32,
        )
        self.cache = HybridCache(layout)
        self.scheduler = Scheduler(self.cache, limits)
        self.ids = 0
        self.stem = self.draw(CACHED)
        self.submit(self.stem, 1)
        self.step()
        for number in range(running):  # lengths differ, so that pages end in different steps
            self.submit(self.draw(PROMPT + number), 3000)
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
        before = self.scheduler.stats()
        found = np.array([self.step() for _ in range(ROUNDS)]) / 1000
        after = self.scheduler.stats()
        assert after.computed_tokens - before.computed_tokens == ROUNDS * RUNNING
        assert after.retractions == 0 and after.running == RUNNING
        plan, commit, both, apply = (
            float(np.median(column))
            for column in (found[:, 0], found[:, 1], found[:, 0] + found[:, 1], found[:, 2])
        )
        rows = [("plan", plan), ("commit", commit), ("plan + commit", both), ("apply", apply)]
        return [(f"{name}, {RUNNING} tokens", took) for name, took in rows]

    def attempt(self, waiting: int = 1, fresh: int = FRESH) -> tuple[float, float]:
        """What a plan takes longer when so many are to be admitted, and how many of them it admits."""
        took, admitted = [], 0
        for _ in range(ATTEMPTS):
            self.step()
            alone, _ = timed_plan(self.scheduler)
            ids = [self.submit(np.concatenate([self.stem, self.draw(fresh)]), 64) for _ in range(waiting)]
            beside, plan = timed_plan(self.scheduler)
            took.append((beside - alone) / 1000)
            admitted += len(plan.spans) - RUNNING
            for request in ids:
                self.scheduler.abort(request)
        return statistics.median(took), admitted / ATTEMPTS


def computed(work: StepWork) -> StepResult:
    return StepResult(tuple(Choice(7, -1.0) if span.sampling else None for span in work.spans))


def timed_plan(scheduler: Scheduler) -> tuple[int, Plan]:
    began = time.thread_time_ns()
    plan = scheduler.plan()
    return time.thread_time_ns() - began, plan


def main() -> None:
    gc.collect()
    gc.freeze()
    roomy = Bench(pages=100_000)
    rows = roomy.steps()
    took, admitted = roomy.attempt()
    assert admitted == 1
    rows.append(("admission attempt, admitted", took))
    held = sum(-(-(PROMPT + number + 2) // PAGE) for number in range(RUNNING))
    short = Bench(pages=held + CACHED // PAGE + SPARE)
    took, admitted = short.attempt(fresh=MUCH)
    more, more_admitted = short.attempt(waiting=3, fresh=MUCH)
    assert admitted == more_admitted == 0
    rows.append(("admission attempt, refused", took))
    rows.append(("another refused", (more - took) / 2))
    print(f"{'us, median':<32}")
    for name, took in rows:
        print(f"{name:<32}{took:>10.1f}")


if __name__ == "__main__":
    main()

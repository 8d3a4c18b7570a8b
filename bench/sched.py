"""The scheduler's speed: medians in microseconds of CPU time, no model.

    python bench/sched.py

256 requests run and compute one token each per step, on pages of 16, full attention and a window of 512: in
every step one in sixteen takes a page, and one in sixteen publishes and slides. An attempt at admission is
what a plan takes longer for one request that waits: of 1,500 prompt tokens, 1,472 are cached.
"""

import gc
import statistics
import time
from collections.abc import Callable

import numpy as np

from transom.kv.cache import CacheLayout, HybridCache
from transom.sched.limits import Limits
from transom.sched.scheduler import Scheduler
from transom.sched.states import Step
from transom.values import Choice, Full, Request, RequestId, StepResult, StepWork, Tokens, Window

RUNNING, PROMPT, PAGE, WINDOW, CONTEXT = 256, 600, 16, 512, 4096
CACHED, FRESH = 1472, 28
ROUNDS = 300


class Bench:
    """Owns a scheduler with requests that run. Mutable."""

    def __init__(self, pages: int, running: int = RUNNING) -> None:
        self.random = np.random.default_rng(1)
        layout = CacheLayout((Full(), Window(WINDOW)), (pages, pages), PAGE, RUNNING + 1, CONTEXT)
        limits = Limits(max_running=RUNNING + 1, chunk_tokens=1 << 20, context=CONTEXT)
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

    def attempt(self, waiting: int = 1) -> float:
        """What a plan takes longer when there is somebody to be admitted."""
        alone = median_us(self.scheduler.plan)
        ids = [self.submit(np.concatenate([self.stem, self.draw(FRESH)]), 8) for _ in range(waiting)]
        self.refresh()
        beside = median_us(self.scheduler.plan)
        for request in ids:
            self.scheduler.abort(request)
        return beside - alone

    def refresh(self) -> None:
        """A plan knows what the last step left."""


def computed(work: StepWork) -> StepResult:
    return StepResult(tuple(Choice(7, -1.0) if span.sampling else None for span in work.spans))


def median_us(measured: Callable[[], object]) -> float:
    found = []
    for _ in range(ROUNDS):
        began = time.thread_time_ns()
        measured()
        found.append(time.thread_time_ns() - began)
    return statistics.median(found) / 1000


def main() -> None:
    gc.collect()
    gc.freeze()
    roomy = Bench(pages=100_000)
    rows = roomy.steps()
    rows.append(("admission attempt, admitted", roomy.attempt()))
    short = Bench(pages=RUNNING * (PROMPT + RUNNING) // PAGE)
    rows.append(("admission attempt, no room", short.attempt()))
    print(f"{'us, median':<32}")
    for name, took in rows:
        print(f"{name:<32}{took:>10.1f}")


if __name__ == "__main__":
    main()

"""Memory that runs out between two steps ends one request, and leaves the scheduler sound."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from tests.sched.world import World

from transom.kv.check import check
from transom.kv.journal import Journal
from transom.sched import scheduler
from transom.sched.loop import NO_MEMORY
from transom.sched.plan import Plan
from transom.sched.request import Idle, Step
from transom.sched.scheduler import Scheduler
from transom.values import Ended, FinishReason, RequestId

PROMPT = [(i * i) % 31 for i in range(30)]


@contextmanager
def without_memory(owner: object, name: str, after: int, times: int = 1) -> Iterator[list[int]]:
    """Calls of `owner.name`, from the one with the number `after` on, raise MemoryError `times` times."""
    original: Callable[..., object] = getattr(owner, name)
    calls = [0]

    def call(*arguments: object, **named: object) -> object:
        calls[0] += 1
        if after < calls[0] <= after + times:
            raise MemoryError
        return original(*arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, call)
        yield calls


def world() -> tuple[World, list[RequestId]]:
    """Four requests that share pages, the last of which has only arrived; memory is short."""
    found = World(pages=(20, 12), rows=3, chunk=12)
    found.is_starved = True
    ids = [found.submit(PROMPT[:12], 20), found.submit(PROMPT[:20], 12, 2)]
    for _ in range(4):
        found.step()
    return found, [*ids, found.submit(PROMPT, 6), found.submit(PROMPT[3:20], 6)]


@pytest.mark.parametrize("primitive", range(24))
def test_a_commit_that_finds_no_memory_has_not_happened_and_ends_the_junior_request(primitive: int) -> None:
    found, ids = world()
    commit = Scheduler.commit

    def short(self: Scheduler, plan: Plan) -> Step | Idle:
        with without_memory(Journal, "log", primitive):
            return commit(self, plan)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Scheduler, "commit", short)
        iteration = found.step()
        while iteration.failure is None and found.scheduler.has_work:
            iteration = found.step()
    check(found.cache)
    if iteration.failure is not None:  # some commits have fewer primitives
        (end,) = iteration.events
        assert isinstance(iteration.failure, MemoryError)
        assert isinstance(end, Ended) and end.reason is FinishReason.ERROR
        assert primitive > 6 or end.request == max(ids), "the junior request was the last to come"
    found.finish()
    assert sum(end.reason is FinishReason.ERROR for end in found.ends.values()) <= 1


@pytest.mark.parametrize("times", range(1, 9))
def test_a_lasting_lack_of_memory_ends_request_after_request_and_never_the_engine(times: int) -> None:
    found, _ = world()
    with without_memory(scheduler, "plan", 0, times):
        for _ in range(times):
            failed = found.step()
            assert isinstance(failed.failure, MemoryError) and len(failed.events) <= 1
    found.finish()
    lost = [end for end in found.ends.values() if end.reason is FinishReason.ERROR]
    assert len(lost) == min(times, len(found.requests))
    assert {end.message for end in lost} == {NO_MEMORY.message}


@pytest.mark.parametrize("output", range(3))
def test_a_request_that_finds_no_memory_at_submit_leaves_no_trace(output: int) -> None:
    found, ids = world()
    odd = found.submit(PROMPT[:5], 3, siblings=2)
    with without_memory(Scheduler, "_progress", 2 + output):  # after the two requests before it
        rejected = found.step().rejected
    assert [one.request for one in rejected] == [odd, odd + 1, odd + 2]
    assert {one.error for one in rejected} == {NO_MEMORY}
    for request in (odd, RequestId(odd + 1), RequestId(odd + 2)):
        del found.requests[request], found.texts[request], found.outputs[request]
    found.finish()
    assert found.ends[ids[0]].reason is FinishReason.LENGTH

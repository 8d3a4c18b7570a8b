"""Scheduling order of the waiting requests, and how often a request can be skipped."""

from collections.abc import Sequence

import numpy as np
import pytest
from tests.sched.world import World

from transom.sched.policy import SchedulePolicy, rank
from transom.sched.request import Progress
from transom.values import Request, RequestId

FCFS, LPM, SRPT, PRIORITY = (SchedulePolicy(name) for name in ("fcfs", "lpm", "srpt", "priority"))


def fresh(length: int, seed: int) -> list[int]:
    """Tokens that no other seed has."""
    return [1_000 * seed + i for i in range(length)]


def one_row(policy: SchedulePolicy, **fields: object) -> World:
    """A world with one row and endless patience: requests start in scheduling order."""
    settings: dict[str, object] = {"page": 4, "windows": (8,), "pages": (90, 90), "context": 128, "rows": 1}
    settings |= {"chunk": 128, "patience": 10_000, "prefix_gain_min": 4, "policy": policy}
    return World(**{**settings, **fields})  # type: ignore[arg-type]


def end_order(world: World) -> list[RequestId]:
    world.finish()
    return list(world.ends)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (LPM, [0, 3, 1, 2, 4]),  # request 3 shares 16 cached tokens with the first
        (FCFS, [0, 1, 2, 3, 4]),
        (SRPT, [0, 4, 3, 2, 1]),  # 5; 24 of which 16 are cached, and 1; 20 + 1; 30 + 1
        (PRIORITY, [2, 0, 1, 3, 4]),  # request 2 takes the row of the first
    ],
)
def test_the_policy_decides_which_request_starts(policy: SchedulePolicy, expected: Sequence[int]) -> None:
    world = one_row(policy)
    requests = [world.submit(fresh(24, 1), 4)]
    world.step()
    requests += [
        world.submit(fresh(30, 2), 1),
        world.submit(fresh(20, 3), 1, priority=0 if policy is not PRIORITY else 1),
        world.submit([*fresh(16, 1), *fresh(8, 4)], 1),
        world.submit(fresh(4, 5), 1),
    ]
    assert end_order(world) == [requests[i] for i in expected]


def test_the_rank_of_each_policy() -> None:
    request = Request(RequestId(1), np.arange(30, dtype=np.int32), 12, priority=3)
    progress = Progress(request, (0, request.id), 42)
    ranks = {p: rank(p, progress, cached=20, outputs_expected=8) for p in SchedulePolicy}
    assert ranks == {LPM: -20, FCFS: 0, SRPT: 10 + 8, PRIORITY: -3}
    assert rank(SRPT, progress, cached=0, outputs_expected=99) == 30 + 12, "no more than max_tokens"


def test_a_prefix_cached_while_a_request_waits_counts() -> None:
    world = one_row(LPM)
    world.submit(fresh(24, 1), 6)
    waiting = [world.submit([*fresh(16, 9), 1], 1), world.submit(fresh(20, 2), 1)]
    waiting.append(world.submit([*fresh(16, 1), 2], 1))
    for _ in range(3):  # no token of seed 1 was cached when they arrived
        world.step()
    assert [w.progress.id for w in world.scheduler._requests.waiting.considered()] == [
        waiting[i] for i in (2, 0, 1)
    ]
    world.finish()


def test_priority_classes_are_strict_where_bonuses_are_not() -> None:
    """A bonus of some arrivals is used up in time; a class is not."""
    ends = {}
    for policy in (FCFS, PRIORITY):
        world = one_row(policy)
        first = world.submit(fresh(5, 1), 1)
        world.step()
        plain = world.submit(fresh(5, 2), 1)
        for seed in range(world.config.priority_bonus):
            world.abort(world.submit(fresh(2, 10 + seed), 1))
        late = world.submit(fresh(5, 3), 1, priority=1)
        ends[policy] = [r for r in end_order(world) if r in (first, plain, late)]
        assert ends[policy] == [first, *((plain, late) if policy is FCFS else (late, plain))]


# ---------------------------------------------------------------- ageing


def flooded(policy: SchedulePolicy, skipped_max: int, **fields: object) -> tuple[World, RequestId]:
    """A world with one waiting request of the lowest rank; the test adds requests of the highest."""
    world = one_row(policy, skipped_max=skipped_max, **fields)
    world.submit(fresh(24, 1), 1)
    world.step()
    return world, world.submit(fresh(40, 2), 8)


@pytest.mark.parametrize("policy", [LPM, SRPT, PRIORITY])
@pytest.mark.parametrize("skipped_max", [2, 8, 20])
def test_a_request_that_fits_is_skipped_half_the_bound_times(
    policy: SchedulePolicy, skipped_max: int
) -> None:
    world, skipped = flooded(policy, skipped_max)
    passed = 0
    for seed in range(60):
        world.submit([*fresh(16, 1), 70_000 + seed], 1, priority=int(policy is PRIORITY))
        world.step()
        if world.spans(skipped):
            break
        passed += 1
    assert passed == skipped_max // 2
    world.finish()


@pytest.mark.parametrize("policy", list(SchedulePolicy))
def test_a_request_that_does_not_fit_is_skipped_the_bound_times(policy: SchedulePolicy) -> None:
    """Three requests hold the memory that it needs. Small requests fit next to them until it is aged.

    The small requests have no output, since that would change the expected output lengths.
    """
    world = World(
        page=4,
        windows=(),
        pages=(60,),
        context=200,
        rows=8,
        chunk=256,
        patience=10_000,
        skipped_max=10,
        policy=policy,
        outputs_expected=150,
    )
    holders = [world.submit(fresh(4, seed), 60) for seed in range(3)]
    world.step()
    big = world.submit(fresh(120, 9), 70)
    small: list[RequestId] = []
    while not set(holders) <= world.ends.keys():
        small.append(world.submit(fresh(3, 100 + len(small)), 0))
        world.step()
    admitted = [request for request in small if world.spans(request)]
    begun = [work for work in world.runner.steps if any(s.request == big for s in work.spans)]
    assert len(admitted) == 10 and small[:10] == admitted
    assert begun or world.step().idle is None
    world.finish()


def test_promoted_requests_start_by_seniority() -> None:
    world = one_row(SRPT, skipped_max=6)
    world.submit(fresh(24, 1), 1)
    world.step()
    long = [world.submit(fresh(60 - 10 * n, 2 + n), 1) for n in range(3)]
    for seed in range(3):
        world.submit(fresh(2, 100 + seed), 1)
        world.step()
    world.submit(fresh(2, 999), 1)
    begun: list[RequestId] = []
    for _ in range(3):
        world.step()
        begun.append(next(iter(world.last_step())))
    assert begun == long, "though the last of them is the shortest, and a shorter one arrived later"
    world.finish()

"""Shares of tenants: the tenant that was served least is next, under each policy."""

import numpy as np
import pytest
from tests.sched.world import World

from transom.sched.policy import SchedulePolicy
from transom.sched.queue import OUTPUT_WEIGHT, TENANTS_KEPT
from transom.sched.request import Progress, Waiting
from transom.values import Request, RequestId


def fresh(length: int, seed: int) -> list[int]:
    return [1_000 * seed + i for i in range(length)]


def one_row(policy: SchedulePolicy = SchedulePolicy.FCFS, rows: int = 1) -> World:
    return World(
        page=4,
        windows=(8,),
        pages=(400, 400),
        context=128,
        rows=rows,
        chunk=128,
        patience=10_000,
        policy=policy,
    )


def many(world: World, tenant: str, count: int, prompt: int = 8, outputs: int = 2) -> list[RequestId]:
    first = 1 + len(world.requests)
    return [world.submit(fresh(prompt, first + n), outputs, tenant=tenant) for n in range(count)]


def tenants_served(world: World) -> str:
    """Tenants in the order in which their requests started."""
    begun = dict.fromkeys(span.request for work in world.runner.steps for span in work.spans)
    return "".join(world.requests[request].tenant for request in begun)


def test_one_tenant_changes_nothing() -> None:
    world = one_row()
    requests = many(world, "a", 6)
    world.finish()
    assert list(world.ends) == requests
    assert not world.scheduler._requests.waiting.has_tenants


@pytest.mark.parametrize("policy", list(SchedulePolicy))
def test_two_tenants_with_equal_requests_alternate_however_many_one_of_them_sends(
    policy: SchedulePolicy,
) -> None:
    world = one_row(policy)
    many(world, "a", 20)
    many(world, "b", 4)
    world.finish()
    assert tenants_served(world) == "abababab" + "a" * 16


def test_shares_are_counted_in_tokens_and_not_in_requests() -> None:
    """8 + 2 x 2 weighted tokens against 32 + 2 x 2: three requests of one tenant for one of the other."""
    world = one_row()
    many(world, "a", 12, prompt=8)
    many(world, "b", 4, prompt=32)
    world.finish()
    assert tenants_served(world).startswith("abaaabaaab")


def test_output_tokens_count_double() -> None:
    """8 + 2 x 8 weighted tokens against 8 + 2 x 2: one request for two."""
    world = one_row()
    many(world, "a", 4, outputs=8)
    many(world, "b", 8, outputs=2)
    world.step()
    world.drain()
    queue = world.scheduler._requests.waiting
    assert queue.served("a") == 4 * (8 + OUTPUT_WEIGHT * 8)
    assert queue.served("b") == 8 * (8 + OUTPUT_WEIGHT * 2)
    assert tenants_served(world).startswith("abbabbabb")


def test_cached_and_recomputed_tokens_are_not_charged() -> None:
    world = one_row(rows=2)
    many(world, "b", 1)
    first = world.submit(fresh(24, 99), 4, tenant="a")
    world.step()
    world.drain()
    again = world.submit(fresh(24, 99), 4, tenant="a")
    world.step()
    world.retract_all()
    world.finish()
    assert world.ends[again].usage.cached_tokens > 0 == world.ends[first].usage.cached_tokens
    computed = 24 + (24 - world.ends[again].usage.cached_tokens)
    assert world.scheduler._requests.waiting.served("a") == computed + OUTPUT_WEIGHT * 8


def test_the_policy_orders_the_requests_of_one_tenant() -> None:
    world = one_row(SchedulePolicy.SRPT)
    long, short = (world.submit(fresh(n, n), 1, tenant="a") for n in (40, 8))
    other_long, other_short = (world.submit(fresh(n, n), 1, tenant="b") for n in (41, 9))
    world.finish()
    assert list(world.ends) == [short, other_short, long, other_long]


def test_a_new_tenant_starts_level_without_saved_credit() -> None:
    """A late tenant gets no compensation for service before it arrived."""
    world = one_row()
    many(world, "a", 30)
    for _ in range(24):
        world.step()
    before = tenants_served(world)
    many(world, "b", 6)
    world.finish()
    assert len(before) >= 8 and set(before) == {"a"}
    assert tenants_served(world)[len(before) :].startswith(("bababababab", "abababababa"))


def test_a_returning_tenant_gains_no_credit_and_keeps_its_debt() -> None:
    world = one_row()
    many(world, "b", 1, prompt=100)  # far ahead, then absent
    world.drain()
    many(world, "a", 6, prompt=20)
    world.drain()
    a, b = (world.scheduler._requests.waiting.served(tenant) for tenant in "ab")
    assert a > b
    many(world, "a", 1)
    many(world, "b", 1)
    world.step()
    assert world.scheduler._requests.waiting.served("b") >= b
    world.finish()


def test_the_service_of_two_tenants_that_always_wait_differs_by_a_bound() -> None:
    """The bound is twice the weighted tokens of the requests that can hold rows at once."""
    world = one_row(rows=4)
    many(world, "a", 25, prompt=40, outputs=2)
    many(world, "b", 40, prompt=8, outputs=20)
    bound = 2 * 4 * (40 + OUTPUT_WEIGHT * 20)
    queue, differences = world.scheduler._requests.waiting, []
    world.step()
    while {waiting.progress.request.tenant for waiting in queue} == {"a", "b"}:
        world.step()
        differences.append(abs(queue.served("a") - queue.served("b")))
    assert len(differences) > 60 and max(differences) <= bound
    world.finish()


def test_a_flood_of_one_tenant_hardly_delays_another() -> None:
    world = one_row(rows=4)
    many(world, "flood", 60)
    world.step()
    late = many(world, "b", 1)[0]
    before = len(world.runner.steps)
    while late not in world.ends:
        world.step()
    assert len(world.runner.steps) - before <= 4
    world.finish()


def test_invented_users_take_nothing_from_another_key() -> None:
    """A flood under 40 names of one key: the other key's requests alternate with it, as with one name."""
    world = one_row()
    for user in range(40):
        world.submit(fresh(8, 1 + user), 2, tenant=f"a/{user}", key="a")
    for user in range(4):
        world.submit(fresh(8, 100 + user), 2, tenant="b/", key="b")
    world.finish()
    begun = dict.fromkeys(span.request for work in world.runner.steps for span in work.spans)
    assert "".join(world.requests[request].key for request in begun).startswith("abababab" + "a" * 9)


def test_users_of_one_key_alternate_within_its_share() -> None:
    world = one_row()
    for user in "xxxxxxyy":
        world.submit(fresh(8, 1 + len(world.requests)), 2, tenant=f"a/{user}", key="a")
    for _ in range(4):
        world.submit(fresh(8, 1 + len(world.requests)), 2, tenant="b/", key="b")
    world.finish()
    begun = dict.fromkeys(span.request for work in world.runner.steps for span in work.spans)
    names = [world.requests[request].tenant for request in begun]
    assert "".join(name[0] for name in names).startswith("abababab")
    assert "".join(name[2] for name in names if name[0] == "a") == "xyxyxxxx"


def test_keys_whose_tenants_are_forgotten_are_forgotten_too() -> None:
    world = one_row()
    for number in range(TENANTS_KEPT + 20):
        world.submit(fresh(4, 1), 1, tenant=f"{number}/", key=str(number))
        world.drain()
    assert len(world.scheduler._requests.waiting._keys) <= TENANTS_KEPT


def test_tenants_that_never_return_are_forgotten() -> None:
    queue = one_row().scheduler._requests.waiting
    for number in range(TENANTS_KEPT + 50):
        request = Request(RequestId(number), np.zeros(4, np.int32), 0, tenant=f"user {number}")
        waiting = Waiting(Progress(request, (number, request.id), 4), 0)
        queue.add(waiting)
        queue.admit(waiting)
    assert len(queue._tenants) == TENANTS_KEPT

"""The line of waiting requests: its order, and a search that passes over blocks, against a plain list."""

import random
from math import inf
from typing import Any

import numpy as np
import pytest
from tests.sched.world import World

from transom.kv.budget import PageCounts
from transom.kv.cache import HybridCache, Offer
from transom.sched.admission import WALKS
from transom.sched.line import BLOCK, Line, QueuedRequest, Search
from transom.sched.planner import plan
from transom.sched.queue import LOOKUPS
from transom.sched.request import Progress, Waiting
from transom.values import Request, RequestId
from transom.wire import Submit


def queued(number: int, rank: int, since_all: int = 0, *, begun: bool = False) -> QueuedRequest:
    outputs = (7,) if begun else ()
    request = Request(RequestId(number), np.array([1, 2], np.int32), 9, outputs=outputs)
    waiting = Waiting(Progress(request, (number, request.id), 11), since=since_all)
    found = QueuedRequest(waiting, since_own=0, since_all=since_all)
    found.place = rank, (number, request.id)
    return found


def drawn(rng: random.Random, number: int) -> QueuedRequest:
    return queued(number, rng.randrange(9), rng.randrange(50), begun=rng.random() < 0.1)


def least(left: PageCounts, aged: float = -inf, resumed: float = -inf) -> Search:
    return Search(lambda pages: all(n <= m for n, m in zip(pages, left, strict=True)), aged, resumed)


def test_a_search_finds_what_a_look_at_each_request_finds() -> None:
    """Requests come, go, are refused and forgotten; every search agrees with the plain list."""
    rng = random.Random(5)
    line, plain = Line(), [drawn(rng, number) for number in range(6 * BLOCK)]
    for one in plain:
        line.add(one)
    passed_over = 0
    for number in range(len(plain), len(plain) + 1500):
        chance, one = rng.random(), rng.choice(plain)
        if chance < 0.2:
            line.remove(one)
            plain.remove(one)
        elif chance < 0.4:
            plain.append(drawn(rng, number))
            line.add(plain[-1])
        elif chance < 0.45:
            line.forget(one)
        else:
            one.lacks = rng.randrange(3, 20), rng.randrange(3, 20)
        if number % 10 == 0:
            search = least(
                rng.choice(((0, 0), (4, 9), (9, 4), (20, 20))), rng.randrange(-60, 20), rng.randrange(-60, 9)
            )
            right = [each for each in sorted(plain, key=lambda each: each.place) if search.wants(each)]
            assert list(line.search(search)) == right
            assert list(line) == sorted(plain, key=lambda each: each.place) and len(line) == len(plain)
            passed_over += len(plain) - len(right)
    assert passed_over > 1000


def test_a_line_of_refused_requests_is_searched_block_by_block() -> None:
    line = Line()
    asked: list[PageCounts] = []

    def fits(pages: PageCounts) -> bool:
        asked.append(pages)
        return False

    for number in range(100 * BLOCK):
        one = queued(number, 0)
        line.add(one)
        one.lacks = (5, 1 + number % 3)
    assert list(line.search(Search(fits))) == []
    asked.clear()
    assert list(line.search(Search(fits))) == []
    assert len(asked) <= 2 * 100 and set(asked) == {(5, 1)}


def test_a_request_that_fits_starts_from_behind_hundreds_that_do_not() -> None:
    world = World(
        page=1, windows=(), pages=(200,), rows=8, chunk=64, context=160, outputs_expected=8, patience=10_000
    )
    world.submit(list(range(50)), 100)
    world.step()
    for seed in range(300):
        world.submit([seed, *range(1, 150)], 4)
    small = world.submit([7, 7, 7, 7], 4)
    steps = 0
    while not world.spans(small):
        steps += 1
        world.step()
    # Each plan looks at some that it does not know, and of the known ones at those whose turn it is.
    assert steps <= 2 + 301 // (WALKS - LOOKUPS)
    assert len(world.spans(small)) == 1 and world.scheduler.stats().retractions == 0


def test_a_plan_walks_the_tree_a_bounded_number_of_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where many requests arrive at once, and where they wait for one prefix in flight."""
    world = World(page=1, windows=(), pages=(400,), rows=200, chunk=100, context=160, patience=10_000)
    world.submit(list(range(150)), 4)
    world.step()
    for seed in range(60):
        world.submit([*range(140), seed], 4)
    for command in world.inbox:
        assert isinstance(command, Submit)
        world.scheduler.submit(command.request)
    world.inbox.clear()
    view, walks = world.scheduler._view(), 0
    right = HybridCache.offers

    def counted(cache: HybridCache, *arguments: Any) -> tuple[Offer, ...]:
        nonlocal walks
        walks += 1
        return right(cache, *arguments)

    monkeypatch.setattr(HybridCache, "offers", counted)
    plan(view)
    assert walks == WALKS

"""No arrival pattern leaves a row, tokens and pages unused while a waiting request could run.

Every plan of these worlds is judged by `transom_lab.worlds.idle_oracle`, which counts rows, tokens and pages
by brute force. Patterns are enumerated on the smallest machines, and drawn on larger ones.
"""

import itertools
import random
from collections import Counter
from collections.abc import Iterator

import pytest
from tests.sched.world import World

from transom.sched.policy import SchedulePolicy
from transom_lab.worlds.idle_oracle import Reason

LETTERS = {"a": 1, "b": 2, "c": 3}
SHAPES = (("aab", 3), ("aaac", 1), ("c", 4))
"""Prompt and outputs: two that share a prefix, and a short prompt with a long answer."""

Arrival = tuple[int, int, int]
"""Steps since the arrival before, shape, priority."""


def patterns(requests: int) -> Iterator[tuple[Arrival, ...]]:
    """Every pattern of so many requests."""
    one = list(itertools.product((0, 2), range(len(SHAPES)), (0, 1)))
    return itertools.product(one, repeat=requests)


def play(pattern: tuple[Arrival, ...], **machine: object) -> World:
    world = World(page=1, chunk=4, context=8, prefix_gain_min=2, **machine)  # type: ignore[arg-type]
    for gap, shape, priority in pattern:
        for _ in range(gap):
            world.step()
        prompt, outputs = SHAPES[shape]
        world.submit([LETTERS[letter] for letter in prompt], outputs, priority=priority)
    world.drain(200)
    return world


MACHINES: dict[str, dict[str, object]] = {
    "one row": {"rows": 1, "windows": (), "pages": (12,), "patience": 1},
    "two rows, little memory": {"rows": 2, "windows": (), "pages": (8,), "patience": 1},
    "three rows, a window, much patience": {"rows": 3, "windows": (2,), "pages": (9, 4), "patience": 64},
}


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("requests", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_every_pattern_of_a_few_requests_keeps_the_machine_busy(name: str, requests: int) -> None:
    reasons: Counter[Reason] = Counter()
    for pattern in patterns(requests):
        try:
            reasons += play(pattern, **MACHINES[name]).scheduler.oracle.reasons
        except AssertionError as error:
            raise AssertionError(pattern) from error
    assert reasons[Reason.PLANNED] >= requests * 12**requests, "every request started"
    assert reasons.total() > reasons[Reason.PLANNED], "and some of them waited"


def crowd(seed: int, kind: type[World] = World) -> World:
    """Up to sixty requests of four documents and three classes at once, on a machine for three or four."""
    rng = random.Random(f"crowd {seed}")
    windows = rng.choice(((), (4,), (3, 9)))
    world = kind(
        page=rng.choice((1, 4)),
        windows=windows,
        pages=(rng.choice((64, 90, 150)), *(rng.choice((40, 90)) for _ in windows)),
        rows=rng.choice((2, 4, 8)),
        chunk=rng.choice((1, 2, 8, 32, 32)),
        context=48,
        patience=rng.choice((2, 8, 64)),
        outputs_expected=rng.choice((1, 8)),
        skipped_max=rng.choice((4, 32, 256)),
        policy=rng.choice(tuple(SchedulePolicy)),
    )
    classes = rng.choice(((0,), (0, 0, 0, 1, 2)))
    documents = [[rng.randrange(50) for _ in range(rng.choice((6, 20, 32)))] for _ in range(4)]
    sent = []
    for _ in range(rng.choice((12, 60))):
        own = [rng.randrange(50) for _ in range(rng.choice((1, 3, 12)))]
        text = rng.choice(documents)[: rng.choice((6, 48, 48))] + own
        answer, priority = rng.choice((1, 4, 4, 40)), rng.choice(classes)
        sent.append(world.submit(text[:47], answer, priority=priority, tenant=rng.choice(("", "", "one"))))
        if rng.random() < 0.2:
            world.step()
        if rng.random() < 0.05:
            world.abort(rng.choice(sent))
    world.drain()
    return world


@pytest.mark.parametrize("crowds", [6, pytest.param(300, marks=pytest.mark.slow)])
def test_a_crowd_keeps_the_machine_busy(crowds: int) -> None:
    reasons: Counter[Reason] = Counter()
    for seed in range(crowds):
        reasons += crowd(seed).scheduler.oracle.reasons
    assert {Reason.NO_ROW, Reason.NO_BUDGET, Reason.DOES_NOT_FIT, Reason.SHARES} <= reasons.keys(), reasons


@pytest.mark.parametrize("rows", [1, 2])
def test_a_senior_out_of_patience_takes_a_row_from_the_most_junior_request(rows: int) -> None:
    """The policy prefers short prompts; the oracle knows from whom the row must come."""
    world = World(
        page=1,
        windows=(),
        pages=(200,),
        rows=rows,
        chunk=64,
        context=64,
        patience=3,
        policy=SchedulePolicy.SRPT,
    )
    senior = world.submit(list(range(40)), 4)
    juniors = [world.submit([40 + number], 40) for number in range(rows)]
    for _ in range(3):
        world.step()
        assert not world.spans(senior)
    for _ in range(3):
        world.step()
    assert world.spans(senior) and world.scheduler.stats().retractions == 1
    assert juniors[-1] not in world.last_step() and len(world.last_step()) == rows
    world.finish()


@pytest.mark.parametrize("chunk", [1, 2])
def test_a_claim_needs_a_token_besides_that_of_the_oldest(chunk: int) -> None:
    """With one token a step, the running request keeps it, or it would never end."""
    world = World(page=1, windows=(), pages=(200,), rows=1, chunk=chunk, context=64, patience=64)
    low = world.submit([1, 2], 10)
    world.step()
    high = world.submit([3, 4], 2, priority=1)
    for _ in range(2):
        world.step()
    assert bool(world.spans(high)) == (chunk == 2) and world.scheduler.stats().retractions == chunk - 1
    world.finish()
    assert list(world.ends) == ([high, low] if chunk == 2 else [low, high])

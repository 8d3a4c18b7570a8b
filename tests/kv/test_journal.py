"""The journal, and that no primitive can fail halfway."""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
from tests.kv.test_machine import walk
from tests.kv.world import Fault, World, same

from transom.errors import NoSpace
from transom.kv.component_specs import Full, Window
from transom.kv.journal import Journal
from transom.values import RequestId


def test_an_exception_rolls_back_the_block() -> None:
    journal, owner = Journal(), SimpleNamespace(value=1)
    with pytest.raises(KeyError), journal.transaction():
        journal.assign(owner, "value", 2)
        journal.assign(owner, "value", 3)
        raise KeyError
    assert owner.value == 1


def test_a_failed_inner_block_leaves_the_changes_of_the_outer_one() -> None:
    journal, owner = Journal(), SimpleNamespace(value=1)
    with journal.transaction():
        journal.assign(owner, "value", 2)
        with pytest.raises(KeyError), journal.transaction():
            journal.assign(owner, "value", 3)
            raise KeyError
        assert owner.value == 2
    assert owner.value == 2


def test_a_failed_outer_block_also_rolls_back_finished_inner_blocks() -> None:
    journal, owner = Journal(), SimpleNamespace(value=1)
    with pytest.raises(KeyError), journal.transaction():
        with journal.transaction():
            journal.assign(owner, "value", 2)
        raise KeyError
    assert owner.value == 1


def test_a_change_outside_a_transaction_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="outside a transaction"):
        Journal().assign(SimpleNamespace(value=1), "value", 2)


@pytest.mark.parametrize("budget", [False, True])
def test_a_lack_of_pages_is_found_before_the_first_change(budget: bool) -> None:
    """With a fuse of 0 the first change is a Fault. The hit of 6 tokens needs a page for its last two."""
    layout = {"budget": 13, "page_bytes": (2, 1)} if budget else {}
    world = World((Full(), Window(5)), (6, 13) if budget else (4, 8), 4, context=24, **layout)
    world.serve(range(8))
    namespace, offer = world.offer([*range(6), 99, 98])
    assert offer.begin.start == 6 and offer.takes == (1, 1)
    reader = world.admit([*range(8), 97])
    world.cache.extend(reader.holding, 16)
    assert not world.cache.available.covers(offer.takes), world.cache.available
    world.set_fuse(0)
    with pytest.raises(NoSpace):
        world.cache.admit(RequestId(9), namespace, np.array([*range(6), 99, 98]), offer)
    with pytest.raises(NoSpace):
        world.cache.extend(reader.holding, 24)
    world.set_fuse(None)
    world.audit()


@pytest.mark.parametrize("mix", ["F", "W", "FW", "FWV"])
@pytest.mark.parametrize("page_size", [1, 3, 16])
def test_a_fault_at_any_primitive_of_any_operation_changes_nothing(page_size: int, mix: str) -> None:
    machine = walk(page_size, 4, mix, seed=21, steps=40)
    world, cache = machine.world, machine.cache
    while len(world.jobs) > 1:
        world.drop(world.jobs[0])
    machine.serve([0, 1], 3, 30, 9)
    while not world.jobs:
        machine.admit([0, 0, 1], 2, 20, "", 1)
    machine.step(0, 7, publish=False, slide=False)
    tokens = np.array(machine.seen[-1], dtype=np.int32)
    namespace, offer = world.offer(tokens)
    job = world.jobs[0]
    operations: list[Callable[[], object]] = [
        lambda: cache.admit(RequestId(99), namespace, tokens, offer),
        lambda: cache.extend(job.holding, min(40, job.holding.allocated + 6)),
        lambda: cache.publish(job.holding, job.tokens),
        lambda: cache.slide(job.holding),
        lambda: cache.truncate(job.holding, job.holding.computed),
        lambda: cache.drop(job.holding),
        cache.copies_done,
        cache.flush,
    ]
    met = 0
    for operation in operations:
        fuse = 0
        while cut(world, operation, fuse):
            fuse += 1
        met += fuse
    assert met > 10, "nothing was there to fail"


def cut(world: World, operation: Callable[[], object], fuse: int) -> bool:
    """Whether the operation had more than `fuse` primitives. Either way it has not happened."""
    before, ended = world.snapshot(), False
    world.set_fuse(fuse)
    try:
        with world.cache.transaction():
            operation()
            ended = True
            raise Fault
    except NoSpace:
        ended = True
    except Fault:
        pass
    finally:
        world.set_fuse(None)
    same(before, world.snapshot())
    world.audit()
    return not ended

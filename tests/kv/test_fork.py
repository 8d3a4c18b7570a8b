"""Fork, pins, explanations and events."""

from hashlib import blake2b
from typing import Any

import numpy as np
import pytest
from tests.kv.world import MIXES, PAGE_SIZES, Job, World, components, same

from transom.errors import NoSpace
from transom.kv.cache import Namespace
from transom.kv.check import check, inside
from transom.kv.component_specs import Full, Window
from transom.kv.events import CacheEvent, EventKind, prefix_digest
from transom.kv.explain import Diverged, Evicted, Hole
from transom.values import RequestId


def up_to(end: int, *more: int) -> list[int]:
    return [*range(1, end + 1), *more]


def fork(world: World, job: Job) -> Job:
    request = RequestId(world.next_id)
    world.next_id += 1
    child = Job(world.cache.fork(job.holding, request, job.tokens), job.tokens.copy())
    world.jobs.append(child)
    return child


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("page_size", PAGE_SIZES)
@pytest.mark.parametrize("computed", [1, 8, 13])
def test_a_fork_reads_the_same_tokens_and_continues_on_its_own(
    mix: str, page_size: int, computed: int
) -> None:
    kinds = components(mix, 4)
    world = World(kinds, (64,) * len(kinds), page_size)
    job = world.admit(up_to(20))
    world.compute(job, computed)
    child = fork(world, job)
    check(world.cache)
    child.tokens = np.array([*up_to(computed), *range(50, 60)], np.int32)
    world.compute(child, computed + 1)
    world.audit()
    world.finish(job)
    world.finish(child)
    assert [pool.available for pool in inside(world.cache).pools] == [64] * len(kinds)


def test_only_the_partial_page_is_copied() -> None:
    world = World((Full(), Window(4)), (64, 64), 4)
    job = world.admit(up_to(20))
    world.compute(job, 18)
    free = [pool.free for pool in inside(world.cache).pools]
    fork(world, job)
    assert [pool.free for pool in inside(world.cache).pools] == [n - 1 for n in free]
    assert [(c.component, c.tokens) for c in world.cache.pending_copies()] == [(0, 2), (1, 2)]


def test_the_parent_may_end_before_the_copies_have_run() -> None:
    world = World(components("FWS", 4), (64, 64, 8), 4)
    job = world.admit(up_to(20))
    world.compute(job, 18)
    child = fork(world, job)
    world.drop(job)
    check(world.cache)
    world.finish(child)


def test_a_fork_does_not_wait_for_a_snapshot_of_the_parent() -> None:
    """At a cut the first one's state is still to be copied for the tree; twice forked, it goes three ways."""
    world = World(components("FS", 4), (64, 8), 4)
    job = world.admit(up_to(20))
    world.compute(job, 8)
    world.settle(job)
    assert [pending.snapshot_of is None for pending in inside(world.cache).pending] == [False]
    children = [fork(world, job), fork(world, job)]
    world.drop(job)
    check(world.cache)
    for child in children:
        world.finish(child)


def test_a_fork_without_a_free_page_changes_nothing() -> None:
    world = World((Full(),), (5,), 4, context=20)
    job = world.admit(up_to(20))
    world.compute(job, 18)
    before = world.snapshot()
    with pytest.raises(NoSpace):
        world.cache.fork(job.holding, RequestId(9), job.tokens)
    same(before, world.snapshot())


# ---------------------------------------------------------------- pins


def pinned_world() -> tuple[World, Namespace]:
    world = World((Full(), Window(4)), (40, 40), 1, context=64)
    namespace = world.offer(up_to(2))[0]
    world.serve(up_to(10))
    return world, namespace


def press(world: World, rounds: int = 6) -> None:
    for number in range(1, rounds + 1):
        world.serve(range(1000 * number, 1000 * number + 25))


def test_pinned_pages_are_evicted_last_until_the_pin_ends() -> None:
    world, namespace = pinned_world()
    assert world.cache.pin(namespace, np.array(up_to(10), np.int32), 4) == 10
    world.audit()
    press(world, 3)
    assert world.offer(up_to(10, 99))[1].begin.start == 10
    press(world)
    assert world.offer(up_to(10, 99))[1].begin.start == 0


def test_a_pin_holds_no_page() -> None:
    world, namespace = pinned_world()
    world.cache.pin(namespace, np.array(up_to(10), np.int32), 1000)
    assert world.cache.available.alone() == (40, 40)
    world.serve(range(100, 140))
    world.audit()
    assert world.offer(up_to(10, 99))[1].begin.start == 0


def test_pins_have_a_budget() -> None:
    world, namespace = pinned_world()
    inside(world.cache).pins.tokens_max = 5
    with pytest.raises(NoSpace, match="pins"):
        world.cache.pin(namespace, np.array(up_to(10), np.int32), 4)
    assert world.cache.pin(namespace, np.array(up_to(5), np.int32), 4) == 5
    assert world.cache.pin(namespace, np.array(up_to(5), np.int32), 9) == 5, "again, for longer"
    world.audit()


# ---------------------------------------------------------------- explain


def test_an_explanation_says_where_prompts_diverge() -> None:
    world = World((Full(), Window(4)), (64, 64), 4)
    world.serve(up_to(20))
    namespace = world.offer([1])[0]
    explanation = world.cache.explain(namespace, np.array(up_to(10, 90, 91, 92), np.int32))
    assert (explanation.start, explanation.shared, explanation.reasons) == (10, 10, (Diverged(10),))


def test_an_explanation_says_which_window_was_evicted_when_and_for_which_request() -> None:
    world = World((Full(), Window(4)), (200, 12), 1, context=64)
    world.serve(up_to(8))
    namespace = world.offer([1])[0]
    taker = world.next_id
    world.serve(range(100, 112))
    explanation = world.cache.explain(namespace, np.array(up_to(8, 9), np.int32))
    assert explanation.start == 0 and explanation.shared == 8 and explanation.lost == 8
    (hole,) = explanation.reasons
    assert isinstance(hole, Hole)
    assert (hole.component, hole.start, hole.end, hole.request) == ("window", 5, 8, taker)
    assert hole.step is not None and hole.step > 0


def test_an_explanation_says_when_full_pages_were_evicted() -> None:
    world = World((Full(),), (12,), 1, context=12)
    world.serve(up_to(8))
    namespace, taker = world.offer([1])[0], world.next_id
    world.serve(range(100, 110))
    explanation = world.cache.explain(namespace, np.array(up_to(8, 9), np.int32))
    (reason,) = explanation.reasons
    assert isinstance(reason, Evicted)
    assert (explanation.start, reason.component, reason.at, reason.request) == (2, "full", 2, taker)


# ---------------------------------------------------------------- events


def reduced(events: tuple[CacheEvent, ...]) -> set[tuple[str, bytes]]:
    """The resident pages, computed from the events alone."""
    resident: set[tuple[str, bytes]] = set()
    for event in events:
        page = (event.component, event.digest)
        if event.kind is EventKind.CLEARED:
            resident.clear()
        elif event.kind is EventKind.STORED:
            assert page not in resident, event
            resident.add(page)
        else:
            resident.remove(page)
    return resident


def resident(world: World) -> set[tuple[str, bytes]]:
    """The same, read from the tree."""
    found = set()
    for component, pages in enumerate(world.resident()):
        for namespace, prefix in pages:
            if namespace.epoch == world.cache.epoch and namespace.private is None:
                digest = prefix_digest(namespace.salt, np.array(prefix, np.int32).tobytes())
                found.add((world.kinds[component].name, digest))
    return found


@pytest.mark.parametrize("mix", MIXES)
def test_residency_can_be_rebuilt_from_the_events_holes_included(mix: str) -> None:
    kinds, random = components(mix, 4), np.random.default_rng(7)
    world = World(kinds, (30,) * len(kinds), 2, context=40)
    events: tuple[CacheEvent, ...] = ()
    place = 0
    for number in range(60):
        stem = [0] * int(random.integers(0, 20))
        tokens = [*stem, *random.integers(0, 2, 1 + int(random.integers(0, 15))).tolist()]
        world.serve(tokens, "x" if number % 7 == 0 else "", chunk=5)
        if number % 25 == 24:
            world.cache.flush()
        batch = world.cache.events(place)
        assert batch.missed == 0 and [e.sequence for e in batch.events] == list(range(place, batch.next))
        events, place = events + batch.events, batch.next
        assert reduced(events) == resident(world)
    assert {event.kind for event in events} == set(EventKind)


def test_a_rollback_takes_back_its_events() -> None:
    world = World((Full(), Window(4)), (64, 64), 1)
    job = world.admit(up_to(9))
    world.compute(job, 8)
    with pytest.raises(KeyError), world.cache.transaction():
        world.cache.publish(job.holding, job.tokens)
        assert world.cache.events(0).events
        raise KeyError
    assert world.cache.events(0).events == () and world.cache.events(0).next == 0


def test_a_reader_that_falls_behind_learns_how_much_it_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transom.kv.events.RECORDS_KEPT", 4)
    world = World((Full(),), (64,), 1)
    for number in range(8):
        world.serve([number * 10 + place for place in range(3)])
    batch = world.cache.events(0)
    assert (batch.missed, batch.next, len(batch.events)) == (12, 24, 12)


class CountedDigest:
    """A blake2b that counts its work: tokens hashed, and digests read."""

    tokens = 0
    digests = 0

    def __init__(self, tokens: bytes = b"", *, inner: Any = None, **settings: Any) -> None:
        self.inner = inner or blake2b(**settings)
        self.update(tokens)

    def update(self, tokens: bytes) -> None:
        CountedDigest.tokens += len(tokens) // 4
        self.inner.update(tokens)

    def copy(self) -> "CountedDigest":
        return CountedDigest(inner=self.inner.copy())

    def digest(self) -> bytes:
        CountedDigest.digests += 1
        return bytes(self.inner.digest())


def digest_work(world: World, since: int, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Tokens hashed and digests read for a reader that knows all events before `since`."""
    monkeypatch.setattr(CountedDigest, "tokens", 0)
    monkeypatch.setattr(CountedDigest, "digests", 0)
    with monkeypatch.context() as patched:
        patched.setattr("transom.kv.events.blake2b", CountedDigest)
        world.cache.events(since)
    return CountedDigest.tokens, CountedDigest.digests


@pytest.mark.parametrize("requests", [5, 50])
def test_a_reader_pays_for_new_events_only(requests: int, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World((Full(), Window(4)), (4096, 4096), 4, context=256)
    for number in range(requests):
        world.serve([number + 1, *range(41)])
    known = world.cache.events(0).next
    assert digest_work(world, known, monkeypatch) == (0, 0)
    world.serve([99, *range(41)])
    new = world.cache.events(0).next - known
    assert new == 20, "ten pages in each of two components"
    assert digest_work(world, known, monkeypatch) == (80, new)
    # Of a record that is partly known, only the unknown pages are digested.
    assert digest_work(world, known + 17, monkeypatch) == (40, 3)


def test_the_common_beginning_of_new_events_is_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World((Full(),), (4096,), 4, context=256)
    world.serve(range(201))
    world.serve([*range(200), 1000, 0, 0, 0, 0])
    known = world.cache.events(0).next
    for number in range(1, 11):
        world.serve([*range(200), 1000 + number, 0, 0, 0, 0])
    assert digest_work(world, known, monkeypatch) == (200 + 10 * 4, 10)


def test_events_after_a_rollback_have_the_digests_of_their_own_tokens() -> None:
    world = World((Full(), Window(4)), (64, 64), 4)
    job, other = world.admit(up_to(17)), world.admit([*up_to(8), *range(50, 59)])
    world.compute(job, 16)
    world.compute(other, 16)
    with pytest.raises(KeyError), world.cache.transaction():
        world.cache.publish(job.holding, job.tokens)
        world.cache.events(0)
        raise KeyError
    for each in (other, job):
        world.cache.publish(each.holding, each.tokens)
    assert reduced(world.cache.events(0).events) == resident(world)

"""Any order of operations, any page size, window, mix: all invariants after each, and the oracle."""

from contextlib import suppress

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.kv.world import MIXES, PAGE_SIZES, WINDOWS, Fault, Job, World, components, same, unchanged

from transom.errors import NoSpace
from transom.kv.cache import PrefixCaching
from transom.kv.check import inside
from transom.kv.component_specs import State
from transom.kv.layout import address_space, pages_alone
from transom.values import RequestId

CONTEXT = 40

choice = st.integers(0, 1 << 30)
prompts = st.lists(st.sampled_from([0, 0, 0, 1]), min_size=1, max_size=CONTEXT)


class CacheMachine(RuleBasedStateMachine):
    """Operations of requests that come, run in chunks, are deferred, retracted, aborted, and end."""

    @initialize(
        page_size=st.sampled_from(PAGE_SIZES),
        window=st.sampled_from(WINDOWS),
        mix=st.sampled_from(MIXES),
        slack=st.integers(0, 12),
        budget=st.booleans(),
        caching=st.sampled_from([PrefixCaching.ON, PrefixCaching.ON, PrefixCaching.ON, PrefixCaching.OFF]),
    )
    def begin(
        self, page_size: int, window: int, mix: str, slack: int, caching: PrefixCaching, budget: bool
    ) -> None:
        kinds = components(mix, window)
        pages = tuple(pages_alone(kind, page_size, CONTEXT, 1) + slack for kind in kinds)
        self.world = World(kinds, pages, page_size, context=CONTEXT, caching=caching)
        if budget:
            sizes = tuple(3 + 2 * component for component in range(len(kinds)))
            total = sum(n * size for n, size in zip(pages, sizes, strict=True))
            self.world = World(
                kinds,
                address_space(total, sizes),
                page_size,
                context=CONTEXT,
                caching=caching,
                budget=total,
                page_bytes=sizes,
            )
        self.cache = self.world.cache
        self.seen: list[list[int]] = [[0] * CONTEXT]

    def running(self) -> list[Job]:
        return self.world.jobs

    def pick(self, number: int) -> Job:
        return self.running()[number % len(self.running())]

    @rule(
        fresh=prompts,
        old=choice,
        keep=st.integers(0, CONTEXT),
        salt=st.sampled_from(["", "", "x"]),
        way=choice,
    )
    def admit(self, fresh: list[int], old: int, keep: int, salt: str, way: int) -> None:
        """A prompt that shares a beginning with an earlier one."""
        tokens = (self.seen[old % len(self.seen)][:keep] + fresh)[:CONTEXT]
        namespace, offer = self.world.offer(tokens, salt)
        assert offer.begin.start == self.world.longest_hit(namespace, tokens), (tokens, offer)
        cold = way % 4 == 0
        chosen = self.cache.cold() if cold else offer
        cost = [take + pin for take, pin in zip(chosen.takes, chosen.pins, strict=True)]
        before, room = self.world.snapshot(), self.cache.available
        fits = len(self.running()) < 4 and room.covers(cost)
        try:
            self.world.admit(tokens, salt, cold=cold)
        except NoSpace:
            assert not fits, (offer, room)
            same(before, self.world.snapshot())
            return
        assert fits
        assert self.cache.available == room.less(cost), (offer, room)
        self.seen.append(tokens)

    @precondition(lambda self: self.running())
    @rule(number=choice, length=st.integers(1, CONTEXT), publish=st.booleans(), slide=st.booleans())
    def step(self, number: int, length: int, publish: bool, slide: bool) -> None:
        """A chunk, or a token beyond the prompt."""
        job = self.pick(number)
        end = min(CONTEXT, job.holding.computed + length)
        if end > job.holding.computed and number % 4:
            end = self.cache.stop(job.holding.computed, end)
        if end == job.holding.computed or not self.extend(job, end):
            return
        if end > len(job.tokens):
            drawn = np.random.default_rng(number).integers(0, 2, end - len(job.tokens))
            job.tokens = np.concatenate([job.tokens, drawn.astype(np.int32)])
            self.seen.append(job.tokens.tolist())
        self.world.run(job, end)
        if publish:
            self.publish(job)
        if slide:
            self.cache.slide(job.holding)

    @rule(fresh=prompts, old=choice, keep=st.integers(0, CONTEXT), chunk=st.integers(1, CONTEXT))
    def serve(self, fresh: list[int], old: int, keep: int, chunk: int) -> None:
        """A whole request, from admission to its end, unless it meets no room."""
        before = len(self.running())
        self.admit(fresh, old, keep, "", 1)
        if len(self.running()) == before:
            return
        while len(self.running()) > before:
            job = self.running()[-1]
            computed = job.holding.computed
            left = len(job.tokens) - computed
            end = self.cache.stop(computed, computed + min(chunk, left)) if left else computed
            if not left or not self.extend(job, end):
                self.end(before, True)
            else:
                self.world.run(job, end)
                self.settle(before)

    def extend(self, job: Job, end: int) -> bool:
        """Succeeds exactly if the growth is available, and allocates exactly the growth."""
        growth, room = self.cache.growth(job.holding, end), self.cache.available
        before = self.world.snapshot()
        try:
            self.cache.extend(job.holding, end)
        except NoSpace as error:
            assert error.need > error.have, error
            assert not room.covers(growth), (growth, room)
            same(before, self.world.snapshot())
            return False
        assert room.covers(growth) and self.cache.available == room.less(growth), (growth, room)
        return True

    def publish(self, job: Job) -> None:
        """The tree has then all it had, plus holes filled. Only a snapshot's page may cost another.

        Under one budget that other may be of any component.
        """
        before, room = self.world.resident(), self.cache.available.pages
        self.cache.publish(job.holding, job.tokens)
        if self.cache.layout.budget is not None and any(isinstance(k, State) for k in self.world.kinds):
            return
        for component, (old, new) in enumerate(zip(before, self.world.resident(), strict=True)):
            if not isinstance(self.world.kinds[component], State):
                assert old <= new, (old, new)
                assert self.cache.available.pages[component] >= room[component], "publishing needs no page"
            elif not old <= new:
                assert len(old - new) == len(new - old) == 1, (old, new)

    @precondition(lambda self: self.running())
    @rule(number=choice)
    def settle(self, number: int) -> None:
        job = self.pick(number)
        self.publish(job)
        self.cache.slide(job.holding)

    @precondition(lambda self: self.running())
    @rule(number=choice, length=st.integers(1, 8))
    def defer(self, number: int, length: int) -> None:
        """Extended, then not scheduled after all."""
        job = self.pick(number)
        end = min(CONTEXT, job.holding.computed + length)
        if end > job.holding.allocated and self.extend(job, end):
            self.world.audit()
            self.cache.truncate(job.holding, job.holding.computed)

    @precondition(lambda self: self.running())
    @rule(number=choice, publish=st.booleans())
    def end(self, number: int, publish: bool) -> None:
        """Finished or retracted with its work published, or aborted without."""
        job = self.pick(number)
        if publish:
            self.publish(job)
        self.world.drop(job)

    @precondition(lambda self: 0 < len(self.running()) < 4)
    @rule(number=choice)
    def fork(self, number: int) -> None:
        """A second request at the same place. It fits, or nothing has happened."""
        job = self.pick(number)
        if any(pending.holding is job.holding for pending in inside(self.cache).pending):
            return
        if job.holding.computed < job.holding.full_until:  # the cache refuses to fork such a repair
            return
        before = self.world.snapshot()
        request = RequestId(self.world.next_id)
        try:
            child = self.cache.fork(job.holding, request, job.tokens)
        except NoSpace:
            same(before, self.world.snapshot())
            return
        self.world.next_id += 1
        self.running().append(Job(child, job.tokens.copy()))

    @rule(old=choice, keep=st.integers(1, CONTEXT), steps=st.integers(1, 9))
    def pin(self, old: int, keep: int, steps: int) -> None:
        """Pins change neither pages nor the available capacity."""
        tokens = np.array(self.seen[old % len(self.seen)][:keep], np.int32)
        before, space = self.world.resident(), self.cache.available
        self.cache.pin(self.cache.namespace(RequestId(self.world.next_id), ""), tokens, steps)
        assert (self.world.resident(), self.cache.available) == (before, space)

    @rule()
    def flush(self) -> None:
        self.cache.flush()
        for salt in ("", "x"):
            namespace, offer = self.world.offer(self.seen[-1], salt)
            assert offer.begin.start == 0, (namespace, offer)

    @precondition(lambda self: self.running())
    @rule(number=choice, fuse=st.integers(0, 40), tokens=prompts)
    def fail_in_the_middle(self, number: int, fuse: int, tokens: list[int]) -> None:
        """A transaction over several operations, cut at any primitive, has not happened."""
        job, count, begun = self.pick(number), len(self.running()), self.world.next_id
        with unchanged(self.world):
            self.world.set_fuse(fuse)
            try:
                with self.cache.transaction():
                    self.attempt(job, tokens)
                    raise Fault
            except (Fault, NoSpace):
                pass
            finally:
                self.world.set_fuse(None)
                del self.running()[count:]
                self.world.next_id = begun

    def attempt(self, job: Job, tokens: list[int]) -> None:
        with suppress(KeyError), self.cache.transaction():
            self.cache.publish(job.holding, job.tokens)
            raise KeyError
        self.cache.publish(job.holding, job.tokens)
        self.cache.slide(job.holding)
        self.cache.extend(job.holding, min(CONTEXT, job.holding.allocated + 5))
        other = self.world.admit(tokens)
        self.cache.extend(other.holding, len(tokens))
        self.cache.drop(job.holding)
        self.cache.flush()

    @invariant()
    def sound(self) -> None:
        if hasattr(self, "world"):
            self.world.audit()

    def teardown(self) -> None:
        """At idle no reference is left, and every page is cached or free."""
        if not hasattr(self, "world"):
            return
        for job in list(self.running()):
            self.world.drop(job)
        self.world.audit()
        assert self.cache.pending_copies() == ()
        assert self.cache.available.alone() == self.cache.layout.pages
        self.cache.flush()
        assert all(pool.free == pool.capacity for pool in inside(self.cache).pools)
        assert not inside(self.cache).tree.roots


def run_machine(examples: int) -> None:
    """Hypothesis spends half of the time on its own draws: the walks below do more in that time."""
    run_state_machine_as_test(
        CacheMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_any_order_of_operations_keeps_all_invariants() -> None:
    run_machine(200)


@pytest.mark.slow
def test_any_order_of_operations_keeps_all_invariants_in_thousands_of_runs() -> None:
    run_machine(4_000)


def walk(page_size: int, window: int, mix: str, seed: int, steps: int) -> CacheMachine:
    """The same operations, drawn so that pools are full and prompts meet each other."""
    machine = CacheMachine()
    random = np.random.default_rng([page_size, window, len(mix), ord(mix[0]), seed])
    caching = PrefixCaching.OFF if seed % 5 == 4 else PrefixCaching.ON
    machine.begin(page_size, window, mix, int(random.integers(0, 12)), caching, seed % 3 == 1)
    for _ in range(steps):
        one_operation(machine, random)
        machine.sound()
    return machine


def one_operation(machine: CacheMachine, random: np.random.Generator) -> None:
    def number(below: int = 1 << 30) -> int:
        return int(random.integers(0, below))

    fresh = random.choice([0, 0, 0, 1], size=1 + number(CONTEXT)).tolist()
    kind = number(20)
    if kind < 3 or not machine.running():
        machine.admit(fresh, number(), number(CONTEXT), "x" if number(5) == 0 else "", number())
    elif kind < 7:
        machine.serve(fresh, number(), number(CONTEXT), 1 + number(CONTEXT))
    elif kind < 13:
        machine.step(number(), 1 + number(10), number(4) > 0, number(4) > 0)
    elif kind < 15:
        machine.defer(number(), 1 + number(8))
    elif kind < 18:
        machine.end(number(), number(4) > 0)
    elif kind < 19:
        machine.fail_in_the_middle(number(), number(60), fresh)
        machine.pin(number(), 1 + number(CONTEXT), 1 + number(9))
    elif number(4) == 0:
        machine.flush()
    elif len(machine.running()) < 4:
        machine.fork(number())
    else:
        machine.pin(number(), 1 + number(CONTEXT), 1 + number(9))


@pytest.mark.parametrize("seeds", [range(3), pytest.param(range(3, 10), marks=pytest.mark.slow)])
@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_long_random_walks_cover_every_transition_of_a_page(
    page_size: int, window: int, mix: str, seeds: range
) -> None:
    machines = [walk(page_size, window, mix, seed, 60) for seed in seeds]
    stats = [machine.cache.stats() for machine in machines]
    assert sum(s.hits for s in stats) > 0 or ("S" in mix and page_size in (3, 16)), (
        "an idle walk shows nothing"
    )
    assert sum(component.evicted for s in stats for component in s.components) > 0
    for machine in machines:
        machine.teardown()

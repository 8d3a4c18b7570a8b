"""Forecasts of memory, compared with lifetimes that are played through step by step."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sched.world import World

from transom.kv.budget import Capacity
from transom.kv.component_specs import Full, State, Window
from transom.kv.page_rules import page_rule
from transom.sched.forecast import (
    Counts,
    Lifetime,
    Timeline,
    pages_of_slots,
    running_slots,
    running_timeline,
    steps_to_go,
    with_lifetime,
)
from transom.sched.output_lengths import OutputLengths
from transom.sched.running import LIMIT
from transom.values import RequestId

RULES = (page_rule(Full(), 1, 100), page_rule(Window(4), 1, 100))


def timeline_of(*each: tuple[int, int]) -> Timeline:
    """Requests with (known tokens, steps to go), all tokens computed, with windows of four."""
    known, steps = np.array(each, np.int64).reshape(-1, 2).T
    held = np.minimum(known, 4)
    return Timeline(known, steps, np.stack([-known, 4 - held]), np.stack([known, held]), RULES)


def newcomer(known: int, steps: int) -> Lifetime:
    return Lifetime(known, steps, (0, min(known + steps, 4)))


def fits(timeline: Timeline, lifetime: Lifetime, full: int, window: int = 1_000) -> bool:
    return timeline.fits(lifetime, Capacity((full, window), 0, (0, 0)))


def test_pages_at_an_end_is_monotone() -> None:
    rule = page_rule(Window(7), 4, 100)
    counts = [rule.held(end) for end in range(1, 60)]
    assert counts == sorted(counts)


def test_two_requests_that_end_together_need_pages_for_both() -> None:
    assert fits(timeline_of((10, 6)), newcomer(10, 6), full=6 + 16)
    assert not fits(timeline_of((10, 6)), newcomer(10, 6), full=6 + 16 - 1)


def test_a_request_that_ends_frees_its_pages_for_one_that_continues() -> None:
    """After 6 steps 10 + 6 pages are freed; the newcomer has 10 + 6 tokens by then and continues to 30."""
    assert fits(timeline_of((10, 6)), newcomer(10, 20), full=22)
    assert not fits(timeline_of((10, 6)), newcomer(10, 20), full=21), "16 and 6 at the sixth step"
    assert fits(timeline_of((10, 6)), newcomer(10, 32), full=32), "42, less the 10 that were held"
    assert not fits(timeline_of((10, 6)), newcomer(10, 33), full=32)


def test_a_short_lifetime_fits_before_a_long_one_grows() -> None:
    assert fits(timeline_of((10, 50)), newcomer(10, 5), full=5 + 15)
    assert not fits(timeline_of((10, 50)), newcomer(10, 6), full=5 + 15)


def test_windows_are_counted_at_their_peak() -> None:
    assert fits(timeline_of((2, 50), (9, 50)), newcomer(10, 5), full=999, window=2 + 0 + 4)
    assert not fits(timeline_of((2, 50), (9, 50)), newcomer(10, 5), full=999, window=2 + 0 + 3)


def test_bytes_are_counted_over_all_components() -> None:
    available = Capacity((1_000, 1_000), 22 * 3 + 4 * 10, (3, 10))
    assert timeline_of((10, 6)).fits(newcomer(10, 6), available)
    assert not timeline_of((10, 6)).fits(newcomer(10, 7), available.less((1, 0)))


def test_an_admitted_request_counts_like_a_running_one() -> None:
    alone = timeline_of((10, 6))
    available = Capacity((40, 1_000), 0, (0, 0))
    assert alone.fits(newcomer(12, 6), available)
    assert not alone.plus([newcomer(12, 6)]).fits(newcomer(12, 6), available)
    assert alone.plus([newcomer(12, 6)]).fits(newcomer(10, 2), available)


request = st.tuples(st.integers(1, 30), st.integers(0, 30))


@given(
    running=st.lists(st.tuples(request, st.integers(0, 30)), max_size=6),
    lifetime=request,
    found=st.integers(0, 20),
    page=st.sampled_from([1, 1, 3, 4]),
    free=st.integers(0, 120),
)
def test_a_lifetime_fits_if_it_fits_at_every_step(
    running: list[tuple[tuple[int, int], int]], lifetime: tuple[int, int], found: int, page: int, free: int
) -> None:
    """Played through. Exact on pages of one token, and never too optimistic on longer pages."""
    rule = page_rule(Full(), page, 100)
    known, steps, own = (
        np.array(column, np.int64).reshape(-1)
        for column in ([k for (k, _), _ in running], [s for (_, s), _ in running], [o for _, o in running])
    )
    own = np.minimum(own, -(-known // page))
    timeline = Timeline(known, steps, (-known // page)[None], own[None], [rule])
    found = min(found, -(-lifetime[0] // page))
    answer = timeline.fits(Lifetime(*lifetime, (-found,)), Capacity((free,), 0, (0,)))
    played = True
    for step in range(lifetime[1] + 1):
        taken = -(-(lifetime[0] + step) // page) - found
        for (k, s), o in zip([r for r, _ in running], own.tolist(), strict=True):
            taken += -(-(k + step) // page) - -(-k // page) if step <= s else -o
        played = played and taken <= free
    assert answer == played if page == 1 else answer <= played


@given(
    window=st.sampled_from([1, 2, 4, 7, 16]),
    page=st.sampled_from([1, 3, 4, 16]),
    computed=st.integers(1, 50),
    more=st.integers(1, 50),
)
def test_the_pages_counted_for_a_window_are_enough_token_by_token(
    window: int, page: int, computed: int, more: int
) -> None:
    """A request that grows token by token and slides never holds more than the forecast counts."""
    rules = (
        page_rule(Full(), page, 200),
        page_rule(Window(window), page, 200),
        page_rule(State(8), page, 200),
    )
    end = computed + more
    known, columns = np.array([computed]), np.array([[computed, end, 0, computed]], np.int64).T
    steps = steps_to_go(columns, known, OutputLengths(np.array([more], np.int64)), 1)
    own = np.array([[rule.entries(computed) - rule.first_entry(computed)] for rule in rules])
    found = running_timeline(columns, known, steps, own, rules)
    slides = found._extra[1, 0]
    now = rules[1].entries(computed) - rules[1].keep(computed)
    most = max(rules[1].entries(t + 1) - rules[1].keep(t) for t in range(computed, end))
    assert most - now <= slides <= rules[1].entries(end) - rules[1].entries(computed)
    assert found._steps.tolist() == [more] and found._extra[2, 0] == 0


def test_pages_that_other_requests_read_are_not_freed() -> None:
    """Three requests share 16 tokens on pages of 4; each alone holds the pages after these."""
    world = World(page=4, windows=(4,), pages=(80, 80), chunk=64, context=64)
    world.submit([*distinct(16, 1), *distinct(9, 2)], 9)
    world.step()
    for seed in (3, 4):
        world.submit([*distinct(16, 1), *distinct(5, seed)], 3)
    world.step()
    running = world.scheduler._requests.running
    alone = world.held_alone()
    assert alone.tolist() == [[7 - 4, 6 - 4, 6 - 4], [2, 2, 2]]
    assert [list(world.cache.freed_by([state.holding])) for state in running.states()] == alone.T.tolist()
    world.finish()


def test_a_window_that_other_requests_read_pays_for_no_new_page() -> None:
    """All 32 pages that a window of 512 keeps are shared, so all 24 new pages must be available."""
    rules = (page_rule(Full(), 16, 100_000), page_rule(Window(512), 16, 100_000))
    columns, known = np.array([[1008, 1442, 0, 1056]], np.int64).T, np.array([1056])
    steps = np.array([386])
    slides = [
        running_timeline(columns, known, steps, np.array([[4], [own]]), rules)._extra[1, 0]
        for own in (0, 4, 36)
    ]
    assert slides == [25, 25, 0]
    assert running_timeline(columns, known, steps, np.array([[4], [30]]), rules)._extra[1, 0] == 33 - 30


running = st.tuples(st.integers(1, 40), st.integers(0, 40), st.integers(0, 6), st.integers(0, 40))
newcomers = st.lists(
    st.tuples(st.integers(1, 40), st.integers(0, 40), st.integers(0, 6)), min_size=1, max_size=4
)


class Crowd:
    """Drawn running requests: their columns, tokens, steps to go, and the pages that each holds alone."""

    def __init__(self, drawn: list[tuple[int, int, int, int]], page: int) -> None:
        self.rules = (page_rule(Full(), page, 200), page_rule(Window(7), page, 200))
        self.known, self.steps, chunk, full_until = np.array(drawn, np.int64).reshape(-1, 4).T
        allocated = (self.known - np.minimum(chunk, self.known - 1) + page - 1) // page * page
        rows = np.arange(len(drawn))
        limits, found = self.known + self.steps, np.minimum(full_until, self.known - 1)
        self.columns = np.stack([self.known, limits, found, allocated, rows])
        window = np.minimum(allocated // page, self.rules[1].held(allocated))
        self.own = np.stack([allocated // page, window])
        self.page = page

    def newcomer(self, tokens: int, steps: int, cached: int) -> Lifetime:
        """A request that finds `cached` of its pages in the cache."""
        end = -(-(tokens + steps) // self.page)
        return Lifetime(tokens, steps, (-min(cached, end), min(end, self.rules[1].held(end * self.page))))

    def timeline(self, steps: Counts) -> Timeline:
        return running_timeline(self.columns, self.known, steps, self.own, self.rules)

    def slots(self, tokens: int) -> list[int]:
        return running_slots(self.columns, tokens, 80, self.rules)


@given(
    drawn=st.lists(running, max_size=6),
    waiting=newcomers,
    page=st.sampled_from([1, 3, 4]),
    pages=st.tuples(st.integers(0, 60), st.integers(0, 40)),
    bytes=st.integers(0, 300),
)
def test_the_sums_admit_no_request_that_the_timeline_refuses(
    drawn: list[tuple[int, int, int, int]],
    waiting: list[tuple[int, int, int]],
    page: int,
    pages: tuple[int, int],
    bytes: int,
) -> None:
    """With the sums asked first, the answer is that of the timeline alone, newcomer after newcomer."""
    crowd = Crowd(drawn, page)
    available = Capacity(pages, bytes, (2, 3))
    slots = crowd.slots(int(crowd.known.sum() + crowd.steps.sum()))
    timeline = crowd.timeline(crowd.steps)
    for request in waiting:
        lifetime = crowd.newcomer(*request)
        slots_then = with_lifetime(slots, lifetime, crowd.rules)
        sums_fit = available.covers(pages_of_slots(slots_then, crowd.rules))
        assert (sums_fit or timeline.fits(lifetime, available)) == timeline.fits(lifetime, available)
        slots, timeline = slots_then, timeline.plus([lifetime])


@given(
    drawn=st.lists(running, max_size=6),
    waiting=newcomers,
    page=st.sampled_from([1, 3, 4]),
    part=st.integers(0, 4),
)
def test_if_all_requests_fit_at_their_limits_they_fit_at_any_expected_length(
    drawn: list[tuple[int, int, int, int]],
    waiting: list[tuple[int, int, int]],
    page: int,
    part: int,
) -> None:
    """The pages of the worst case are enough for the timeline of outputs that end before their limits."""
    crowd = Crowd(drawn, page)
    slots = crowd.slots(int(crowd.columns[LIMIT].sum()))
    expected = crowd.timeline(crowd.steps * part // 4)
    for tokens, steps, cached in waiting:
        slots = with_lifetime(slots, crowd.newcomer(tokens, steps, cached), crowd.rules)
        available = Capacity(pages_of_slots(slots, crowd.rules), 0, (0, 0))
        assert expected.fits(crowd.newcomer(tokens, steps * part // 4, cached), available)
        expected = expected.plus([crowd.newcomer(tokens, steps * part // 4, cached)])


def distinct(length: int, seed: int) -> list[int]:
    return [1_000 * seed + i for i in range(length)]


def test_a_short_request_is_admitted_next_to_long_ones_that_will_need_all_memory() -> None:
    world = World(page=1, windows=(), pages=(60,), chunk=64, context=60, outputs_expected=40)
    for seed in range(2):
        world.submit(distinct(10, seed), 20)
    world.step()
    short, long = world.submit(distinct(10, 5), 4), world.submit(distinct(10, 6), 30)
    world.step()
    assert short in world.last_step() and long not in world.last_step()
    world.finish()


@pytest.mark.parametrize("lengths", [(4, 4, 4, 4), (2, 30, 2, 30)])
def test_outputs_like_the_recent_ones_cost_no_retraction(lengths: tuple[int, ...]) -> None:
    """Twelve rows, memory for about five: once lengths are known, an admitted request is not retracted."""
    world = World(page=1, windows=(), pages=(200,), chunk=64, context=60, outputs_expected=30, rows=12)
    for seed in range(24):
        world.submit(distinct(20, seed), lengths[seed % 4])
    world.finish()
    assert world.scheduler.stats().retractions == 0
    ended: list[RequestId] = list(world.ends)
    assert len(ended) == 24

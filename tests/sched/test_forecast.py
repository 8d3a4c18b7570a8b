"""Memory at the times when requests are expected to end, against lives played through step by step."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sched.world import World

from transom.kv.budget import Capacity
from transom.kv.component_specs import Full, State, Window
from transom.kv.page_rules import RangePages, page_rule
from transom.sched.forecast import Counts, Forecast, Life, Lives, forecast, steps_to_go
from transom.sched.outlook import Ceiling, Outlook
from transom.sched.output_lengths import OutputLengths
from transom.sched.running import LIMIT
from transom.values import RequestId

GRIDS = (RangePages(Full(), 1, keeps_all=True), RangePages(Window(4), 1))


def lives_of(*each: tuple[int, int]) -> Lives:
    """Known tokens, all computed, and steps to go; windows of four."""
    known, steps = np.array(each, np.int64).reshape(-1, 2).T
    held = np.minimum(known, 4)
    return Lives(known, steps, beside=np.stack([-known, 4 - held]), own=np.stack([known, held]))


def newcomer(known: int, steps: int) -> Life:
    return Life(known, steps, (0, min(known + steps, 4)))


def fits(lives: Lives, life: Life, full: int, window: int = 1_000) -> bool:
    return Forecast(lives, GRIDS).fits(life, Capacity((full, window), 0, (0, 0)))


def test_two_that_end_together_need_room_for_both() -> None:
    assert fits(lives_of((10, 6)), newcomer(10, 6), full=6 + 16)
    assert not fits(lives_of((10, 6)), newcomer(10, 6), full=6 + 16 - 1)


def test_who_ends_first_gives_back_to_who_goes_on() -> None:
    """After 6 steps 10 + 6 come back, the newcomer has 10 + 6 by then, and goes on to 30."""
    assert fits(lives_of((10, 6)), newcomer(10, 20), full=22)
    assert not fits(lives_of((10, 6)), newcomer(10, 20), full=21), "16 and 6 at the sixth step"
    assert fits(lives_of((10, 6)), newcomer(10, 32), full=32), "42, less the 10 that were held"
    assert not fits(lives_of((10, 6)), newcomer(10, 33), full=32)


def test_a_short_life_fits_before_a_long_one_grows() -> None:
    assert fits(lives_of((10, 50)), newcomer(10, 5), full=5 + 15)
    assert not fits(lives_of((10, 50)), newcomer(10, 6), full=5 + 15)


def test_windows_are_counted_as_long_as_they_come_to_be() -> None:
    assert fits(lives_of((2, 50), (9, 50)), newcomer(10, 5), full=999, window=2 + 0 + 4)
    assert not fits(lives_of((2, 50), (9, 50)), newcomer(10, 5), full=999, window=2 + 0 + 3)


def test_bytes_are_counted_over_all_components() -> None:
    room = Capacity((1_000, 1_000), 22 * 3 + 4 * 10, (3, 10))
    assert Forecast(lives_of((10, 6)), GRIDS).fits(newcomer(10, 6), room)
    assert not Forecast(lives_of((10, 6)), GRIDS).fits(newcomer(10, 7), room.less((1, 0)))


def test_one_admitted_counts_like_those_that_run() -> None:
    alone = Forecast(lives_of((10, 6)), GRIDS)
    room = Capacity((40, 1_000), 0, (0, 0))
    assert alone.fits(newcomer(12, 6), room)
    assert not alone.plus([newcomer(12, 6)]).fits(newcomer(12, 6), room)
    assert alone.plus([newcomer(12, 6)]).fits(newcomer(10, 2), room)


request = st.tuples(st.integers(1, 30), st.integers(0, 30))


@given(
    running=st.lists(st.tuples(request, st.integers(0, 30)), max_size=6),
    life=request,
    found=st.integers(0, 20),
    page=st.sampled_from([1, 1, 3, 4]),
    room=st.integers(0, 120),
)
def test_what_fits_is_what_fits_at_every_step(
    running: list[tuple[tuple[int, int], int]], life: tuple[int, int], found: int, page: int, room: int
) -> None:
    """Played through. On pages of one token to the page; on longer ones never too little."""
    rule = RangePages(Full(), page, keeps_all=True)
    known, steps, own = (
        np.array(column, np.int64).reshape(-1)
        for column in ([k for (k, _), _ in running], [s for (_, s), _ in running], [o for _, o in running])
    )
    own = np.minimum(own, -(-known // page))
    lives = Lives(known, steps, (-known // page)[None], own[None])
    found = min(found, -(-life[0] // page))
    answer = Forecast(lives, [rule]).fits(Life(*life, (-found,)), Capacity((room,), 0, (0,)))
    played = True
    for step in range(life[1] + 1):
        taken = -(-(life[0] + step) // page) - found
        for (k, s), o in zip([r for r, _ in running], own.tolist(), strict=True):
            taken += -(-(k + step) // page) - -(-k // page) if step <= s else -o
        played = played and taken <= room
    assert answer == played if page == 1 else answer <= played


@given(
    window=st.sampled_from([1, 2, 4, 7, 16]),
    page=st.sampled_from([1, 3, 4, 16]),
    computed=st.integers(1, 50),
    more=st.integers(1, 50),
)
def test_what_a_window_is_said_to_take_is_enough_token_by_token(
    window: int, page: int, computed: int, more: int
) -> None:
    """A request that grows token by token and slides never holds more than was foreseen."""
    rules = (
        RangePages(Full(), page, keeps_all=True),
        RangePages(Window(window), page),
        page_rule(State(8), page, 200),
    )
    end = computed + more
    known, columns = np.array([computed]), np.array([[computed, end, 0, computed]], np.int64).T
    steps = steps_to_go(columns, known, OutputLengths(np.array([more], np.int64)), 1)
    own = np.array([[rule.entries(computed) - rule.first_entry(computed)] for rule in rules])
    found = forecast(columns, known, steps, own, rules)
    slides = found._lives.beside[1, 0]
    now = rules[1].ceil(computed) - rules[1].keep(computed)
    most = max(rules[1].ceil(t + 1) - rules[1].keep(t) for t in range(computed, end))
    assert most - now <= slides <= rules[1].ceil(end) - rules[1].ceil(computed)
    assert found._lives.steps.tolist() == [more] and found._lives.beside[2, 0] == 0


def test_what_others_read_too_does_not_come_back() -> None:
    """Three share 16 tokens on pages of 4; each holds alone what comes after."""
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


def test_a_window_that_others_read_too_pays_for_nothing() -> None:
    """Of 32 pages that a window of 512 keeps all are shared: the 24 that come must be there."""
    rules = (RangePages(Full(), 16, keeps_all=True), RangePages(Window(512), 16))
    columns, known = np.array([[1008, 1442, 0, 1056]], np.int64).T, np.array([1056])
    steps = np.array([386])
    slides = [
        forecast(columns, known, steps, np.array([[4], [own]]), rules)._lives.beside[1, 0]
        for own in (0, 4, 36)
    ]
    assert slides == [25, 25, 0]
    assert forecast(columns, known, steps, np.array([[4], [30]]), rules)._lives.beside[1, 0] == 33 - 30


running = st.tuples(st.integers(1, 40), st.integers(0, 40), st.integers(0, 6), st.integers(0, 40))
newcomers = st.lists(
    st.tuples(st.integers(1, 40), st.integers(0, 40), st.integers(0, 6)), min_size=1, max_size=4
)


class Crowd:
    """Requests that run, drawn: their columns, tokens, steps to go, and what each holds alone."""

    def __init__(self, those: list[tuple[int, int, int, int]], page: int) -> None:
        self.rules = (RangePages(Full(), page, keeps_all=True), RangePages(Window(7), page))
        self.known, self.steps, chunk, full_until = np.array(those, np.int64).reshape(-1, 4).T
        allocated = (self.known - np.minimum(chunk, self.known - 1) + page - 1) // page * page
        rows = np.arange(len(those))
        limits, found = self.known + self.steps, np.minimum(full_until, self.known - 1)
        self.columns = np.stack([self.known, limits, found, allocated, rows])
        window = np.minimum(allocated // page, self.rules[1].held_up_to(80)[allocated // page])
        self.own = np.stack([allocated // page, window])
        self.page = page

    def life(self, tokens: int, steps: int, there: int) -> Life:
        """Of a newcomer, `there` of whose pages are found."""
        end = -(-(tokens + steps) // self.page)
        return Life(tokens, steps, (-min(there, end), min(end, self.rules[1].held(end))))

    def forecast(self, steps: Counts) -> Forecast:
        return forecast(self.columns, self.known, steps, self.own, self.rules)


@given(
    those=st.lists(running, max_size=6),
    others=newcomers,
    page=st.sampled_from([1, 3, 4]),
    pages=st.tuples(st.integers(0, 60), st.integers(0, 40)),
    bytes=st.integers(0, 300),
)
def test_a_first_look_at_the_sums_lets_in_nobody_whom_the_forecast_does_not(
    those: list[tuple[int, int, int, int]],
    others: list[tuple[int, int, int]],
    page: int,
    pages: tuple[int, int],
    bytes: int,
) -> None:
    """With the look before it, it says what the forecast alone says, of one newcomer after the other."""
    crowd = Crowd(those, page)
    room = Capacity(pages, bytes, (2, 3))
    outlook = Outlook(crowd.columns, crowd.known, crowd.steps, lambda: crowd.own, 80, crowd.rules)
    alone = crowd.forecast(crowd.steps)
    for other in others:
        life = crowd.life(*other)
        assert outlook.fits(life, room) == alone.fits(life, room)
        outlook.let_in(life)
        alone = alone.plus([life])


@given(
    those=st.lists(running, max_size=6),
    others=newcomers,
    page=st.sampled_from([1, 3, 4]),
    part=st.integers(0, 4),
)
def test_where_all_can_come_to_their_limits_there_is_place_whatever_is_expected(
    those: list[tuple[int, int, int, int]],
    others: list[tuple[int, int, int]],
    page: int,
    part: int,
) -> None:
    """Room for what the ceiling says covers what is forecast when outputs stay behind their limits."""
    crowd = Crowd(those, page)
    ceiling = Ceiling(crowd.columns, int(crowd.columns[LIMIT].sum()), 80, crowd.rules)
    expected = crowd.forecast(crowd.steps * part // 4)
    for tokens, steps, there in others:
        pages = ceiling.pages(crowd.life(tokens, steps, there))
        assert expected.fits(crowd.life(tokens, steps * part // 4, there), Capacity(pages, 0, (0, 0)))
        ceiling.let_in(crowd.life(tokens, steps, there))
        expected = expected.plus([crowd.life(tokens, steps * part // 4, there)])


def distinct(length: int, seed: int) -> list[int]:
    return [1_000 * seed + i for i in range(length)]


def test_a_short_request_comes_in_beside_long_ones_that_will_need_all_there_is() -> None:
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
    """Twelve rows, memory for about five: whoever comes in stays in, once lengths are known."""
    world = World(page=1, windows=(), pages=(200,), chunk=64, context=60, outputs_expected=30, rows=12)
    for seed in range(24):
        world.submit(distinct(20, seed), lengths[seed % 4])
    world.finish()
    assert world.scheduler.stats().retractions == 0
    ended: list[RequestId] = list(world.ends)
    assert len(ended) == 24

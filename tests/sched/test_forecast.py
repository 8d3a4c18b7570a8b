"""Forecasts of memory: what is left for a request that starts, counted by hand."""

import numpy as np
from tests.sched.test_no_idle import crowd
from tests.sched.world import World

from transom.kv.component_specs import Full, State, Window
from transom.kv.page_rules import page_rule
from transom.sched.forecast import SPARE, MemoryForecast
from transom.sched.loop import Iteration
from transom.values import RequestId
from transom_lab.worlds.idle_oracle import Expected, Pages


def distinct(length: int, seed: int) -> list[int]:
    return [(seed * 101 + 7 * i * i + i) % 49 for i in range(length)]


def one_kind(**fields: object) -> World:
    """Full attention in pages of one token, so that pages are tokens."""
    settings: dict[str, object] = {"page": 1, "windows": (), "pages": (100,), "context": 64, "chunk": 64}
    return World(**{**settings, "outputs_expected": 8, "rows": 8, **fields})  # type: ignore[arg-type]


def forecast_of(world: World) -> MemoryForecast:
    return MemoryForecast(world.scheduler._view(), world.cache.available)


def need_of(world: World, request: RequestId) -> tuple[int, ...]:
    progress = world.scheduler._progress(world.requests[request])
    return forecast_of(world).need(progress, world.cache.cold())


def test_pages_held_on_the_way_to_an_end_never_fall() -> None:
    rule = page_rule(Window(7), 4, 100)
    counts = [rule.held(end) for end in range(1, 60)]
    assert counts == sorted(counts)


def test_an_empty_machine_leaves_all_its_pages() -> None:
    world = one_kind()
    assert forecast_of(world).left == world.cache.available


def test_running_requests_are_counted_up_to_the_next_end() -> None:
    world = one_kind()
    for seed in range(2):
        world.submit(distinct(10, seed), 40)
    world.step()
    # Each has 11 known tokens of which 10 are computed, and 7 steps to go: one of two ends every 3.5 steps.
    forecast = forecast_of(world)
    assert forecast.horizon == 3
    assert forecast.left.pages == (100 - 2 * 10 - 2 * (1 + 3),)
    world.finish()


def test_a_new_request_needs_its_prompt_and_its_expected_output() -> None:
    world = one_kind()
    world.submit(distinct(10, 0), 40)
    world.step()
    short, long = world.submit(distinct(20, 1), 4), world.submit(distinct(20, 2), 40)
    assert need_of(world, short) == (20 + 3,), "no more than max_tokens, of which the last is not stored"
    assert need_of(world, long) == (20 + 8,)
    world.finish()


def test_a_window_needs_no_more_than_its_pages_with_spare_ones() -> None:
    window, state = page_rule(Window(4), 1, 64), page_rule(State(16), 1, 64)
    known = np.array([40])
    forecast = forecast_of(one_kind())
    assert forecast._peak(window, known, known + 8, np.array([1])) == [window.held(40) + 1]
    assert forecast._peak(window, known, known + 8, known) == [40], "a first chunk has all its pages at once"
    assert forecast._peak(state, known, known + 8, known) == [1]
    assert forecast._peak(page_rule(Full(), 1, 64), known, known + 8, known) == [48]
    assert SPARE >= 1


class Compared(World):
    """A world whose forecasts are compared with a count token by token, after each step."""

    compared = 0

    def step(self) -> Iteration:
        done = super().step()
        view, pages = self.scheduler._view(), Pages(self.cache)
        forecast, expected = MemoryForecast(view, self.cache.available), Expected(view)
        left = self.cache.available
        for running in view.running:
            left = left.less(expected.growth(pages, running))
        assert forecast.left == left and forecast.horizon == expected.horizon, (forecast.left, left)
        # The first and the last: one of them is likely to come back after a retraction.
        for waiting in {*list(view.queue)[:3], *list(view.queue)[-2:]}:
            progress = waiting.progress
            namespace = self.cache.namespace(progress.id, progress.request.salt)
            for offer in self.cache.offers(namespace, progress.tokens(), progress.start_limit):
                need = expected.need(pages, progress, offer)
                assert forecast.need(progress, offer) == need, (waiting, offer, forecast.horizon)
                self.compared += 1
        return done


def test_every_forecast_of_a_crowd_is_the_count_by_hand() -> None:
    worlds = [crowd(seed, Compared) for seed in (3, 4, 7)]
    assert sum(world.compared for world in worlds if isinstance(world, Compared)) > 500

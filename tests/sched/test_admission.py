"""Admission: a request starts if its whole lifetime fits, and waits without any memory otherwise."""

from tests.sched.world import World

from transom.values import RequestId


def distinct(length: int, seed: int) -> list[int]:
    return [(seed * 101 + 7 * i * i + i) % 49 for i in range(length)]


def is_running(world: World, request: RequestId) -> bool:
    return request in world.scheduler._requests.running


def test_a_request_whose_lifetime_does_not_fit_waits_though_its_prompt_fits() -> None:
    world = World(page=1, windows=(), pages=(40,), chunk=64, context=40, outputs_expected=20)
    first, second = world.submit(distinct(10, 1), 20), world.submit(distinct(10, 2), 20)
    world.step()
    assert is_running(world, first) and not is_running(world, second)
    world.finish()
    assert world.scheduler.stats().retractions == 0


def test_a_request_is_admitted_if_it_fits_with_an_output_like_recent_ones() -> None:
    world = World(page=1, windows=(), pages=(40,), chunk=64, context=40, outputs_expected=2)
    first, second = world.submit(distinct(10, 1), 20), world.submit(distinct(10, 2), 20)
    world.step()
    assert is_running(world, first) and is_running(world, second)
    world.finish()


def test_max_tokens_bounds_the_expected_output() -> None:
    world = World(page=1, windows=(), pages=(40,), chunk=64, context=40, outputs_expected=1_000)
    requests = [world.submit(distinct(10, seed), 4) for seed in range(3)]
    world.step()
    assert all(is_running(world, request) for request in requests)
    world.finish()


def test_a_window_is_counted_at_its_length_and_spare_pages_for_a_start() -> None:
    """A decoding request of 40 tokens holds four window pages. The ninth would need eight and finds fewer."""
    world = World(page=1, windows=(4,), pages=(400, 40), rows=16, chunk=64, context=64, outputs_expected=30)
    requests = [world.submit(distinct(4, seed), 36) for seed in range(12)]
    for _ in range(3):
        world.step()
    assert sum(is_running(world, request) for request in requests) == 8
    world.finish()
    assert world.scheduler.stats().retractions == 0


def test_a_retracted_request_is_readmitted_when_a_longer_lifetime_fits() -> None:
    world = World(page=1, windows=(), pages=(40,), chunk=64, context=40, outputs_expected=2)
    first, second = world.submit(distinct(10, 1), 24), world.submit(distinct(10, 2), 24)
    while not world.scheduler.stats().retractions:
        world.step()
    assert not is_running(world, second)
    while first not in world.ends:
        assert not is_running(world, second), "it would be retracted again"
        world.step()
    world.finish()
    assert world.scheduler.stats().retractions == 1


def test_a_waiting_request_holds_nothing() -> None:
    world = World(page=4, windows=(4,), rows=1, chunk=8)
    running, waiting = world.submit(distinct(20, 1), 4), world.submit(distinct(20, 2), 4)
    world.step()
    before = world.scheduler._requests.waiting.find(waiting)
    world.step()
    assert world.scheduler._requests.waiting.find(waiting) is before
    assert not world.spans(waiting) and is_running(world, running)
    assert world.cache.stats().rows_used == 1
    world.finish()


def test_short_requests_share_a_step_with_a_long_prefill() -> None:
    """Chunks of several requests fill one budget."""
    world = World(page=4, windows=(4,), pages=(64, 64), chunk=32)
    requests = [world.submit(distinct(length, seed), 2) for seed, length in enumerate((10, 7, 30))]
    world.step()
    assert world.last_step() == {requests[0]: (0, 10), requests[1]: (0, 7), requests[2]: (0, 12)}
    world.finish()

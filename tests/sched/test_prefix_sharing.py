"""A prefix that a running request computes is computed once."""

from tests.sched.world import World

from transom.kv.layout import PrefixCaching

COMMON = [(11 * i * i + 5 * i) % 47 for i in range(1_500)]


def roomy(**fields: object) -> World:
    settings: dict[str, object] = {"page": 16, "windows": (512,), "pages": (1_000, 1_000), "context": 2_048}
    settings |= {"rows": 8, "chunk": 512, "prefix_gain_min": 32}
    return World(**{**settings, **fields})  # type: ignore[arg-type]


def test_seven_of_eight_requests_that_arrive_together_hit() -> None:
    world = roomy()
    requests = [world.submit([*COMMON, *range(n, n + 40)], 4) for n in range(8)]
    world.finish()
    cached = [world.ends[request].usage.cached_tokens for request in requests]
    assert cached == [0] + [1_500] * 7
    assert world.scheduler.stats().computed_tokens == 8 * (1_540 + 3) - 7 * 1_500


def test_a_request_that_waits_for_a_prefix_leaves_the_budget_to_later_ones() -> None:
    world = roomy()
    first = world.submit([*COMMON, 1], 1)
    twin = world.submit([*COMMON, 2], 1)
    stranger = world.submit(list(range(40)), 1)
    world.set_chunk(1_600)
    world.step()
    assert world.last_step().keys() == {first, stranger}
    world.finish()
    assert world.ends[twin].usage.cached_tokens == 1_488, "whole pages of the first request"


def test_the_wait_ends_when_the_publisher_is_aborted() -> None:
    world = roomy()
    first, twin = world.submit([*COMMON, 1], 1), world.submit([*COMMON, 2], 1)
    world.step()
    world.abort(first)
    world.step()
    assert world.last_step() == {twin: (512, 1_024)}
    world.finish()


def test_the_wait_ends_where_the_shared_part_ends() -> None:
    """The first request computes a long rest after the shared part; the second does not wait for it."""
    world = roomy()
    first = world.submit([*COMMON[:512], *range(1_000)], 1)
    twin = world.submit([*COMMON[:512], 3, 4, 5], 1)
    world.step()
    assert world.last_step().keys() == {first}
    world.set_chunk(600)
    world.step()
    assert world.last_step() == {first: (512, 1_104), twin: (512, 515)}
    world.finish()


def test_no_request_waits_for_a_few_tokens() -> None:
    world = roomy()
    requests = [world.submit([1, *range(n, n + 20)], 2) for n in range(3)]
    world.step()
    assert world.last_step().keys() == set(requests)
    world.finish()


def test_a_starved_senior_does_not_wait_for_a_prefix() -> None:
    world = roomy(patience=1, chunk=64)
    world.submit([*COMMON, 1], 1)
    world.step()
    twin, senior = world.submit([*COMMON, 2], 1), world.submit([*COMMON, 3], 1, priority=1)
    for _ in range(4):
        world.step()
    assert senior in world.last_step()
    assert not world.spans(twin)
    world.finish()


def test_requests_with_different_salts_do_not_wait_for_each_other() -> None:
    world = roomy(chunk=2_048)
    one, other = world.submit([*COMMON, 1], 1), world.submit(COMMON[:40], 1, salt="other")
    world.step()
    assert world.last_step().keys() == {one, other}
    world.finish()


def test_without_a_prefix_cache_no_request_waits() -> None:
    world = roomy(caching=PrefixCaching.OFF, chunk=2_000)
    requests = [world.submit([*COMMON[:600], n], 1) for n in range(3)]
    world.step()
    assert world.last_step().keys() == set(requests)
    world.finish()


def test_the_same_prompt_again_computes_one_token() -> None:
    world = roomy(chunk=2_048)
    first = world.submit(COMMON, 1)
    world.drain()
    again = world.submit(COMMON, 1)
    world.finish()
    assert world.ends[again].usage.cached_tokens >= 1_488
    assert world.texts[first] == world.texts[again]


def test_after_a_flush_new_requests_start_cold_and_running_ones_continue() -> None:
    world = roomy()
    running = world.submit([*COMMON, 1], 8)
    for _ in range(4):
        world.step()
    world.flush()
    again = world.submit([*COMMON, 1], 8)
    world.finish()
    assert world.ends[again].usage.cached_tokens == 0
    assert world.texts[running] == world.texts[again]


def test_a_crowd_that_waits_for_a_prefix_does_not_hide_the_requests_behind_it() -> None:
    world = World(page=4, windows=(4,), pages=(300, 300), rows=64, chunk=64, context=64, prefix_gain_min=4)
    shared = [(7 * i * i + i) % 49 for i in range(40)]
    crowd = [world.submit([*shared, number], 2) for number in range(28)]
    other = world.submit([1, 2, 3], 2)
    world.step()
    assert list(world.last_step()) == [crowd[0], other]
    world.finish()

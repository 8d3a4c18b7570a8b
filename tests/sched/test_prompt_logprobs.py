"""Prompt logprobs: of every requested token, once, and the same for each state of the cache."""

import pytest
from tests.sched.world import World

from transom.kv.component_specs import Chunked, State
from transom.values import Logprobs


def prompt(length: int, seed: int = 0) -> list[int]:
    return [(seed * 37 + i * i + 3 * i) % 41 for i in range(length)]


ALL = Logprobs(prompt_from=0)


@pytest.mark.parametrize("max_tokens", [0, 1, 5])
@pytest.mark.parametrize("length", [1, 2, 4, 17, 33])
def test_every_prompt_token_but_the_first_has_one_logprob(length: int, max_tokens: int) -> None:
    world = World(page=4, windows=(4,), pages=(64, 64), chunk=8)
    request = world.submit(prompt(length), max_tokens, logprobs=ALL)
    world.finish()
    assert len(world.scores.get(request, [])) == length - 1
    assert world.ends[request].usage.completion_tokens == max_tokens


@pytest.mark.parametrize("more", [(), (State(every=8),), (Chunked(8),)])
@pytest.mark.parametrize("first", [0, 1, 2, 7, 8, 9, 15, 30, 32, 33, 40])
def test_a_hit_ends_where_logprobs_begin_and_full_pages_are_still_shared(
    first: int, more: tuple[State | Chunked, ...]
) -> None:
    """Windows are computed again; full pages that are cached are read and not stored again."""
    world = World(page=4, windows=(4,), more=more, pages=(64, 64, 64)[: 2 + len(more)], chunk=16)
    world.submit(prompt(33), 3)
    world.finish()
    request = world.submit(prompt(33), 2, logprobs=Logprobs(prompt_from=first))
    world.step()
    span = next(s for work in world.runner.steps for s in work.spans if s.request == request)
    assert span.start <= min(max(first - 1, 0), 32)
    if span.start % 4 == 0:
        assert span.store_from == 32, "full pages are cached to the end"
    world.finish()
    assert len(world.scores.get(request, [])) == max(0, 33 - max(1, first))


def test_no_request_waits_for_a_prefix_that_it_must_compute_anyway() -> None:
    world = World(page=4, windows=(4,), pages=(64, 64), chunk=16)
    world.submit(prompt(33), 3)
    world.step()
    wanting_logprobs = world.submit(prompt(33), 1, logprobs=ALL)
    other = world.submit(prompt(33), 1)
    world.set_chunk(40)
    world.step()
    assert world.spans(wanting_logprobs) and not world.spans(other)
    world.finish()


def test_logprobs_sent_before_a_retraction_are_not_sent_again() -> None:
    world = World(page=4, windows=(4,), pages=(64, 64), chunk=8)
    request = world.submit(prompt(33), 4, logprobs=ALL)
    world.step()
    world.step()
    world.retract_all()
    world.finish()
    assert len(world.scores[request]) == 32
    assert world.spans(request)[2][0] == 16, "it continues where it was retracted"


def test_logprobs_under_memory_pressure_are_those_of_a_cold_run() -> None:
    world = World(page=1, windows=(4,), pages=(36, 36), rows=4, chunk=8, context=32)
    for seed in range(6):
        world.submit(prompt(20, seed % 2), 8, logprobs=ALL if seed % 3 else Logprobs(prompt_from=9))
    world.finish()
    assert world.scheduler.stats().retractions > 0


def test_only_the_first_of_several_outputs_has_prompt_logprobs() -> None:
    world = World(page=4, windows=(4,), pages=(64, 64), chunk=8)
    first = world.submit(prompt(17), 4, siblings=2, logprobs=ALL)
    world.finish()
    assert list(world.scores) == [first]

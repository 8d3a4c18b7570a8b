"""Random commands change no bit: forks, prompt logprobs, pauses, updates, deadlines, retractions."""

import random
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from tests.engine.schedules import (
    Played,
    RecordingRunner,
    assert_equal_to_cold,
    assert_prompt_logprobs_equal_cold,
    build,
    play,
    random_arrivals,
    random_requests,
)
from tests.tiny import TINY, vocabulary, write_tiny_gguf

from transom.config import EngineConfig
from transom.engine.engine import Engine
from transom.engine.reload import DiskWeights
from transom.errors import BadRequest
from transom.models.load import load_model
from transom.models.spec import Model
from transom.ops.backend import choose_ops
from transom.sched.loop import iterate
from transom.values import (
    FinishReason,
    Logprobs,
    PauseMode,
    Request,
    RequestId,
    Sampling,
    Sibling,
    UpdateMode,
)
from transom.weights.gguf import read_gguf
from transom.wire import Command, Pause, Resume, Submit, UpdateWeights

SCHEDULES = 8
LONGEST = 100


@dataclass(frozen=True, slots=True)
class Moved:
    fork: bool
    fork_put_off: bool
    prompt_logprobs: bool
    paused: bool
    update: bool
    expired: bool
    retraction: bool


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load_model(read_gguf(write_tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf")))


@pytest.fixture(scope="module")
def moved(model: Model) -> list[Moved]:
    """Runs every schedule and compares all its logits and prompt logprobs with the cold run."""
    return [play_and_compare(model, seed) for seed in range(SCHEDULES)]


def test_logits_and_prompt_logprobs_under_random_commands_equal_the_cold_run(moved: list[Moved]) -> None:
    assert len(moved) == SCHEDULES


@pytest.mark.parametrize("event", Moved.__slots__)
def test_some_schedules_had_each_kind_of_event(moved: list[Moved], event: str) -> None:
    share = sum(getattr(one, event) for one in moved) / SCHEDULES
    assert share >= 0.1, f"{event} in only {share:.0%} of the schedules"


def play_and_compare(model: Model, seed: int) -> Moved:
    rng = random.Random(seed)
    ops = choose_ops(1)
    engine, runner = build(model, ops, config(rng, (1, 16)[seed % 2]))
    requests = [with_extras(rng, request) for request in random_requests(rng, 6, len(vocabulary()), LONGEST)]
    arrivals = [*random_arrivals(rng, requests), *random_commands(rng)]
    played = play(engine, runner, arrivals)
    assert_equal_to_cold(ops, model, requests, played, runner)
    counts = engine.scheduler.stats()
    reasons = {end.reason for end in played.ended.values()}
    return Moved(
        fork=counts.forks > 0,
        fork_put_off=counts.forks_put_off > 0,
        prompt_logprobs=bool(played.prompt_logprobs),
        paused=any(reason == "paused" and count for reason, count in counts.idle.items()),
        update=engine.cache.epoch > 0,
        expired=FinishReason.DEADLINE in reasons,
        retraction=counts.retractions > 0,
    )


def with_extras(rng: random.Random, request: Request) -> Request:
    """The request with random siblings, prompt logprobs and deadline."""
    outputs = rng.choice([0, 0, 1, 3])
    siblings = tuple(
        Sibling(RequestId(100 * request.id + n), replace(request.sampling, seed=1000 * request.id + n))
        for n in range(outputs)
    )
    scored = rng.choice([None, 0, rng.randrange(len(request.prompt))])
    return replace(
        request,
        siblings=siblings,
        logprobs=Logprobs(rng.choice([0, 3]), scored),
        deadline=rng.choice([None, None, None, float(rng.randrange(5, 60))]),
    )


def random_commands(rng: random.Random) -> list[tuple[int, Command]]:
    """A pause with its end, and updates of the weights to the same weights."""
    begin = rng.randrange(3, 20)
    mode = rng.choice([PauseMode.IN_PLACE, PauseMode.RETRACT])
    commands: list[tuple[int, Command]] = [(begin, Pause(mode)), (begin + rng.randrange(1, 4), Resume())]
    updates = [UpdateWeights(n, "same", rng.choice([UpdateMode.DRAIN, UpdateMode.RETRACT])) for n in (1, 2)]
    return [*commands, *((rng.randrange(4, 40), update) for update in updates)]


def config(rng: random.Random, page_size: int) -> EngineConfig:
    chunk = rng.choice([16, 33, 64])
    total = int((LONGEST + 96 + page_size) * rng.choice([1.0, 1.5]))
    window = (TINY.window + chunk + 3 * page_size) * rng.choice([1, 2])
    return EngineConfig(
        page_size=page_size,
        chunked_prefill_size=chunk,
        max_total_tokens=total,
        swa_full_tokens_ratio=min(1.0, window / total),
        max_running_requests=rng.choice([2, 2, 8]),
    )


# ---------------------------------------------------------------- edges


def tokens(count: int, seed: int = 0) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.random.default_rng(seed).integers(4, len(vocabulary()), count).astype(np.int32)


def played_twice(
    model: Model, request: Request, context: int | None = None
) -> tuple[Engine, RecordingRunner, list[Played]]:
    """Runs a request cold, then again with everything cached."""
    ops = choose_ops(1)
    size = EngineConfig(chunked_prefill_size=32)
    if context is not None:
        size = replace(size, max_total_tokens=context, swa_full_tokens_ratio=1.0)
    engine, runner = build(model, ops, size)
    results = []
    for number in (1, 2):
        played = play(engine, runner, [(0, Submit(replace(request, id=RequestId(number))))])
        assert_equal_to_cold(ops, model, [replace(request, id=RequestId(number))], played, runner)
        results.append(played)
    return engine, runner, results


@pytest.mark.parametrize("length", [1, 2, 16, 31, 32, 33])
@pytest.mark.parametrize("max_tokens", [0, 1, 2])
def test_short_outputs_of_cold_and_of_fully_cached_prompts(
    model: Model, length: int, max_tokens: int
) -> None:
    request = Request(RequestId(1), tokens(length), max_tokens)
    _, _, results = played_twice(model, request)
    for number, played in enumerate(results, 1):
        end = played.ended[RequestId(number)]
        assert end.reason is FinishReason.LENGTH and end.usage.completion_tokens == max_tokens
        assert len(played.outputs.get(RequestId(number), [])) == max_tokens
    assert results[1].ended[RequestId(2)].usage.cached_tokens >= (length - 1) // 16 * 16


def test_a_prompt_of_exactly_the_context(model: Model) -> None:
    engine, _, results = played_twice(model, Request(RequestId(1), tokens(64), 0), context=64)
    assert engine.cache.layout.context == 64
    assert results[1].ended[RequestId(2)].usage.completion_tokens == 0
    filled = Request(RequestId(1), tokens(63), 1)
    played_twice(model, filled, context=64)


@pytest.mark.parametrize("prompt_from", [0, 1, 40, 69, 70])
@pytest.mark.parametrize("max_tokens", [0, 3])
def test_prompt_logprobs_after_a_cached_prefix_have_the_bits_of_cold_ones(
    model: Model, prompt_from: int, max_tokens: int
) -> None:
    request = Request(RequestId(1), tokens(70), max_tokens, logprobs=Logprobs(2, prompt_from))
    _, runner, results = played_twice(model, request)
    assert results[0].prompt_logprobs.get(RequestId(1)) == results[1].prompt_logprobs.get(RequestId(2))
    assert results[0].outputs.get(RequestId(1)) == results[1].outputs.get(RequestId(2))
    first_start = min(start for number, start, _ in runner.spans if number == 2)
    assert first_start <= max(0, min(prompt_from - 1, 69)) and (prompt_from < 33 or first_start > 0)
    for number, played in enumerate(results, 1):
        assert_prompt_logprobs_equal_cold(
            choose_ops(1), model, request, played.prompt_logprobs.get(RequestId(number), [])
        )


def test_the_logprob_of_an_output_token_equals_that_of_the_same_token_in_a_prompt(model: Model) -> None:
    ops = choose_ops(1)
    engine, _ = build(model, ops, EngineConfig())
    sampled = []
    request = Request(RequestId(1), tokens(20), 8, sampling=Sampling(0.9, seed=3))
    outcome = iterate(engine.scheduler, [Submit(request)], engine.runner)
    while outcome.idle is None:
        sampled += [event for event in outcome.events if hasattr(event, "token")]
        outcome = iterate(engine.scheduler, [], engine.runner)
    prompt = np.concatenate([request.prompt, [event.token for event in sampled]], dtype=np.int32)
    scored = Request(RequestId(2), prompt, 0, logprobs=Logprobs(prompt_from=20))
    found = []
    outcome = iterate(engine.scheduler, [Submit(scored)], engine.runner)
    while outcome.idle is None:
        found += [token for event in outcome.events for token in getattr(event, "tokens", ())]
        outcome = iterate(engine.scheduler, [], engine.runner)
    assert [(token.token, token.logprob) for token in found] == [(e.token, e.logprob) for e in sampled]


# ---------------------------------------------------------------- weights from disk


def test_new_weights_give_the_bits_of_an_engine_started_with_them(tmp_path: Path) -> None:
    old, new = (write_tiny_gguf(tmp_path / f"{seed}.gguf", seed) for seed in (0, 1))
    ops = choose_ops(1)
    engine, runner = build(load_model(read_gguf(old)), ops, EngineConfig(chunked_prefill_size=32))
    weights = DiskWeights(engine.runner)
    request = Request(RequestId(1), tokens(50), 4)
    play(engine, runner, [(0, Submit(request))])
    outcome = iterate(engine.scheduler, [UpdateWeights(1, str(new), UpdateMode.DRAIN)], runner, 0.0, weights)
    assert [done.number for done in outcome.done] == [1]
    again = replace(request, id=RequestId(2))
    played = play(engine, runner, [(0, Submit(again))])
    assert_equal_to_cold(ops, load_model(read_gguf(new)), [again], played, runner)
    assert played.ended[RequestId(2)].usage.cached_tokens == 0


def test_weights_of_another_model_and_broken_files_are_refused(model: Model, tmp_path: Path) -> None:
    engine, _ = build(model, choose_ops(1), EngineConfig())
    weights = DiskWeights(engine.runner)
    other = write_tiny_gguf(tmp_path / "other.gguf", shape=replace(TINY, window=8))
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(20))
    for source in (str(other), str(broken), "/no/such/file"):
        for step in (weights.check, weights.load):
            with pytest.raises(BadRequest) as refusal:
                step(source)
            assert refusal.value.param == "model_path" and source in refusal.value.message
    assert engine.model is model

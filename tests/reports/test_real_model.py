"""Report B and random schedules on the default model: all logits equal a cold run, to the bit."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from tests.engine.schedules import (
    OUTPUTS_MAX,
    Played,
    RecordingRunner,
    assert_equal_to_cold,
    build,
    play,
    random_arrivals,
    random_requests,
)
from tests.english import passage

from transom.config import EngineConfig
from transom.engine.engine import Engine
from transom.kv.check import check
from transom.models.load import load_model
from transom.models.spec import Model
from transom.ops.backend import choose_ops
from transom.ops.protocol import Ops
from transom.sched.loop import iterate
from transom.values import Request, RequestId, Tokens
from transom.weights.builtin import resolve_model
from transom.weights.gguf import read_gguf
from transom.weights.tokenizer import load_tokenizer
from transom.wire import Command, Submit

pytestmark = pytest.mark.model

FULL, WINDOW = 0, 1
PREFIX, PREFIX_PAGES = 320, 20
ITERATIONS_MAX = 400
EARLY_VOCABULARY = 50_000


@pytest.fixture(scope="module")
def ops() -> Ops:
    """One thread, because several test processes may share the machine."""
    return choose_ops(1)


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model(read_gguf(resolve_model(None)))


@pytest.fixture(scope="module")
def text() -> Tokens:
    """Enough English for prompts without a common prefix."""
    return load_tokenizer(None).encode(passage(7, 16_000), bos=False)


# ---------------------------------------------------------------- report B


@dataclass
class Stage:
    """Owns an engine and records its requests and events. Checks all invariants after every iteration."""

    engine: Engine
    runner: RecordingRunner
    requests: list[Request] = field(default_factory=list)
    played: Played = field(default_factory=Played)

    def submit(self, prompt: Tokens, outputs: int) -> Request:
        """Submits a new request and runs one iteration."""
        request = Request(RequestId(len(self.requests) + 1), prompt, outputs)
        self.requests.append(request)
        self.iterate(Submit(request))
        return request

    def iterate(self, *commands: Command) -> None:
        outcome = iterate(self.engine.scheduler, commands, self.runner)
        assert outcome.failure is None and not outcome.rejected, outcome
        check(self.engine.cache)
        for event in outcome.events:
            self.played.record(event)

    def serve(self, prompt: Tokens, outputs: int = 1) -> Request:
        """Submits a request and iterates until it has ended. Earlier requests may still run."""
        request = self.submit(prompt, outputs)
        self.finish(request)
        return request

    def finish(self, request: Request) -> None:
        for _ in range(ITERATIONS_MAX):
            if request.id in self.played.ended:
                return
            self.iterate()
        raise AssertionError(f"{request.id} not ended after {ITERATIONS_MAX} iterations")

    def cached(self, prompt: Tokens) -> int:
        """Cached tokens that a request for `prompt` and one more token would find."""
        cache = self.engine.cache
        longer = np.append(prompt, np.int32(5))
        return cache.offer(cache.namespace(RequestId(999), ""), longer).begin.start

    def row(self, request: Request, component: int) -> list[int]:
        running = self.engine.scheduler._requests.running.find(request.id)
        assert running is not None, f"{request.id} does not run"
        return [int(page) for page in self.engine.cache.page_tables[component][running.holding.row]]


def test_locked_full_survives_recovery_on_the_default_model(ops: Ops, model: Model, text: Tokens) -> None:
    """B reads the full pages of a prefix. Its window is evicted; C recomputes the window and publishes it."""
    config = EngineConfig(
        chunked_prefill_size=128, max_total_tokens=4096, swa_full_tokens_ratio=0.31, max_running_requests=8
    )
    stage = Stage(*build(model, ops, config))
    prefix, *texts = np.split(text[:3200], [PREFIX, 880, 1440, 2000, 2560])
    prefix = np.append(np.int32(2), prefix[:-1])
    stage.serve(prefix)
    assert stage.cached(prefix) == PREFIX

    reader = stage.submit(np.append(prefix, texts[0]), OUTPUTS_MAX)
    while reader.id not in stage.played.outputs:
        stage.iterate()
    locked = stage.row(reader, FULL)[:PREFIX_PAGES]
    assert 0 not in locked
    for pressure in texts[1:4]:
        if stage.cached(prefix) > 0:
            stage.serve(pressure)
    assert stage.cached(prefix) == 0, "the window of the prefix must be evicted"

    before = stage.engine.cache.stats().components
    recoverer = stage.serve(np.append(prefix, texts[0][:40][::-1]), 2)
    after = stage.engine.cache.stats().components
    assert stage.played.ended[recoverer.id].usage.cached_tokens == 0
    holes = after[WINDOW].holes_filled - before[WINDOW].holes_filled
    survivors = after[WINDOW].duplicates_returned - before[WINDOW].duplicates_returned
    assert holes + survivors == PREFIX_PAGES and holes > survivors
    assert after[FULL].duplicates_returned == before[FULL].duplicates_returned, (
        "C reads the cached full pages too"
    )
    assert stage.row(reader, FULL)[:PREFIX_PAGES] == locked
    assert stage.cached(prefix) == PREFIX

    successor = stage.serve(np.append(prefix, texts[4][:60]), 4)
    assert stage.played.ended[successor.id].usage.cached_tokens == PREFIX
    stage.finish(reader)
    assert stage.played.ended[reader.id].usage.cached_tokens == PREFIX
    assert_equal_to_cold(ops, model, stage.requests, stage.played, stage.runner)


# ---------------------------------------------------------------- random schedules


@pytest.mark.parametrize(
    ("page_size", "longest", "window_share"),
    [
        (16, 640, 0.7),  # prompts longer than the window
        pytest.param(16, 120, 1.0, marks=pytest.mark.slow),
        pytest.param(64, 120, 1.0, marks=pytest.mark.slow),
    ],
)
def test_random_schedules_of_the_default_model_are_cold_to_the_bit(
    ops: Ops, model: Model, page_size: int, longest: int, window_share: float
) -> None:
    """The pools hold one and a half of the longest requests, so that admitted requests outgrow them."""
    rng = random.Random(page_size + longest)
    config = EngineConfig(
        page_size=page_size,
        chunked_prefill_size=32,
        max_total_tokens=int((longest + OUTPUTS_MAX + page_size) * 1.5),
        swa_full_tokens_ratio=window_share,
        max_running_requests=8,
    )
    engine, runner = build(model, ops, config)
    requests = random_requests(rng, 8, EARLY_VOCABULARY, longest)
    played = play(engine, runner, random_arrivals(rng, requests))
    assert_equal_to_cold(ops, model, requests, played, runner)
    counts = engine.scheduler.stats()
    assert counts.cached_tokens > 0 and counts.retractions > 0, counts
    assert_some_prompt_was_split(requests, runner)


def assert_some_prompt_was_split(requests: Sequence[Request], runner: RecordingRunner) -> None:
    lengths = {request.id: len(request.prompt) for request in requests}
    first = [(number, end) for number, start, end in runner.spans if start == 0 and number in lengths]
    assert any(end < lengths[number] for number, end in first), runner.spans

"""The contract, on a tiny random hybrid: in every schedule, all logits have the bits of the cold run."""

import random
from dataclasses import dataclass

import pytest
from tests.engine.schedules import (
    OUTPUTS_MAX,
    assert_equal_to_cold,
    build,
    play,
    random_arrivals,
    random_requests,
)
from tests.tiny import TINY, vocabulary, write_tiny_gguf

from transom.config import EngineConfig
from transom.models.load import load_model
from transom.models.spec import Model
from transom.ops.backend import choose_ops
from transom.weights.gguf import read_gguf

SCHEDULES = 12
PAGE_SIZES = (1, 16, 64)
LONGEST = 120


@dataclass(frozen=True, slots=True)
class Moved:
    """Whether a schedule had a cache hit, a prompt in more than one chunk, a retraction."""

    hit: bool
    split_chunk: bool
    retraction: bool


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load_model(read_gguf(write_tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf")))


@pytest.fixture(scope="module")
def moved(model: Model) -> list[Moved]:
    """Runs every schedule and compares all its logits with the cold run."""
    return [play_and_compare(model, seed) for seed in range(SCHEDULES)]


def test_logits_of_random_schedules_equal_the_cold_run(moved: list[Moved]) -> None:
    assert len(moved) == SCHEDULES


def test_most_schedules_had_a_hit_a_split_chunk_and_a_retraction(moved: list[Moved]) -> None:
    for event in ("hit", "split_chunk", "retraction"):
        share = sum(getattr(one, event) for one in moved) / SCHEDULES
        assert share >= 0.5, f"a {event} in only {share:.0%} of the schedules"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SCHEDULES, 4 * SCHEDULES))
def test_logits_of_more_schedules_equal_the_cold_run(model: Model, seed: int) -> None:
    play_and_compare(model, seed)


def play_and_compare(model: Model, seed: int) -> Moved:
    rng = random.Random(seed)
    ops = choose_ops(1 + seed % 2)
    engine, runner = build(model, ops, config(rng, PAGE_SIZES[seed % 3]))
    requests = random_requests(rng, 8, len(vocabulary()), LONGEST)
    played = play(engine, runner, random_arrivals(rng, requests))
    assert_equal_to_cold(ops, model, requests, played, runner)
    counts = engine.scheduler.stats()
    chunked = any(start > 0 and end - start > 1 for _, start, end in runner.spans)
    return Moved(counts.cached_tokens > 0, chunked, counts.retractions > 0)


def config(rng: random.Random, page_size: int) -> EngineConfig:
    """Pools that hold one or two of eight requests, so that admitted requests outgrow them."""
    chunk = rng.choice([8, 16, 33, 64])
    total = int((LONGEST + OUTPUTS_MAX + page_size) * rng.choice([1.0, 1.3]))
    window = (TINY.window + chunk + 3 * page_size) * rng.choice([1, 2])
    return EngineConfig(
        page_size=page_size,
        chunked_prefill_size=chunk,
        max_total_tokens=total,
        swa_full_tokens_ratio=min(1.0, window / total),
        max_running_requests=8,
    )

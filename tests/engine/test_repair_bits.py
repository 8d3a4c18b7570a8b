"""Repair on a tiny random hybrid: logits have the bits of the cold run; with a later start they differ."""

import random
from dataclasses import dataclass

import numpy as np
import pytest
from tests.engine.schedules import (
    Played,
    RecordingRunner,
    assert_equal_to_cold,
    build,
    cold_logits,
    digest,
    play,
    random_arrivals,
)
from tests.tiny import TinyShape, vocabulary, write_tiny_gguf

from transom.config import EngineConfig
from transom.engine.engine import Engine
from transom.kv import match
from transom.kv.check import evict, inside
from transom.models.load import load_model
from transom.models.spec import Model
from transom.ops.backend import choose_ops
from transom.ops.protocol import Ops
from transom.ops.reference import ReferenceOps
from transom.values import Request, RequestId, Sampling
from transom.weights.gguf import read_gguf
from transom.wire import Submit

SHAPE = TinyShape(window=8)
"""Five windows of 8 below a full layer: a repair computes 35 tokens and part of a page."""
WINDOWS, ONE_WINDOW = 5, 7
SCHEDULES = 12
PAGE_SIZES = (1, 4, 16)
LONGEST = 160


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = write_tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf", shape=SHAPE)
    return load_model(read_gguf(path))


# ---------------------------------------------------------------- random schedules


@dataclass(frozen=True, slots=True)
class Moved:
    repair: bool
    hit: bool
    retraction: bool


@pytest.fixture(scope="module")
def moved(model: Model) -> list[Moved]:
    """Runs every schedule and compares all its logits with the cold run."""
    return [play_and_compare(model, seed) for seed in range(SCHEDULES)]


def test_logits_of_schedules_with_repairs_equal_the_cold_run(moved: list[Moved]) -> None:
    assert len(moved) == SCHEDULES


def test_most_schedules_had_a_repair_many_a_hit_some_a_retraction(moved: list[Moved]) -> None:
    for event, least in (("repair", 0.5), ("hit", 0.5), ("retraction", 0.05)):
        share = sum(getattr(one, event) for one in moved) / SCHEDULES
        assert share >= least, f"a {event} in only {share:.0%} of the schedules"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SCHEDULES, 4 * SCHEDULES))
def test_logits_of_more_schedules_with_repairs_equal_the_cold_run(model: Model, seed: int) -> None:
    play_and_compare(model, seed)


def play_and_compare(model: Model, seed: int) -> Moved:
    rng = random.Random(seed)
    ops = choose_ops(1 + seed % 2)
    engine, runner = build(model, ops, config(rng, PAGE_SIZES[seed % 3]))
    requests = returning_requests(rng, 10)
    arrivals = [(2 * at, command) for at, command in random_arrivals(rng, requests)]
    played = play(engine, runner, arrivals)
    assert_equal_to_cold(ops, model, requests, played, runner)
    counts, kept = engine.scheduler.stats(), engine.cache.stats()
    return Moved(kept.repairs > 0 and counts.repaired_tokens > 0, kept.hits > 0, counts.retractions > 0)


def returning_requests(rng: random.Random, count: int) -> list[Request]:
    """Prompts of three families that return longer, with another ending, or unchanged."""
    stems = [[rng.randrange(4, len(vocabulary())) for _ in range(LONGEST)] for _ in range(3)]
    requests = []
    for number in range(count):
        shared = rng.randrange(LONGEST // 3, LONGEST - 20)
        own = [rng.randrange(4, len(vocabulary())) for _ in range(rng.randrange(0, 20))]
        requests.append(
            Request(
                RequestId(number + 1),
                np.array(rng.choice(stems)[:shared] + own, np.int32),
                max_tokens=rng.choice([1, 2, 8, 40]),
                sampling=Sampling(temperature=rng.choice([0.0, 0.9]), seed=number),
            )
        )
    return requests


def config(rng: random.Random, page_size: int) -> EngineConfig:
    """Many full pages and few windows, so that windows are evicted first."""
    chunk = rng.choice([8, 16, 33, 64])
    total = int((LONGEST + 64 + page_size) * rng.choice([1, 1, 1.4, 2]))
    window = (SHAPE.window + chunk + 3 * page_size) * rng.choice([1, 2])
    return EngineConfig(
        page_size=page_size,
        chunked_prefill_size=chunk,
        max_total_tokens=total,
        swa_full_tokens_ratio=min(1.0, window / total),
        max_running_requests=rng.choice([2, 8]),
    )


# ---------------------------------------------------------------- the bound is tight


@dataclass(slots=True)
class Stage:
    """An engine that has served a prompt and then evicted all its windows."""

    ops: Ops
    model: Model
    engine: Engine
    runner: RecordingRunner
    prompt: np.ndarray[tuple[int], np.dtype[np.int32]]
    served: int = 1

    def serve(self, *more: int, until: int | None = None) -> bytes:
        """A digest of the logits after the prompt, or its first `until` tokens, followed by `more`."""
        self.served += 1
        tokens = np.append(self.prompt[:until], np.array(more, np.int32)).astype(np.int32)
        request = Request(RequestId(self.served), tokens, 1)
        played: Played = play(self.engine, self.runner, [(0, Submit(request))])
        assert len(played.outputs[request.id]) == 1
        return self.runner.digests[request.id, len(tokens)]

    def evict_windows(self) -> None:
        cache = self.engine.cache
        evict(cache, 1, inside(cache).pools[1].idle)

    def cold(self, *more: int, until: int | None = None) -> bytes:
        tokens = [*self.prompt[:until].tolist(), *more]
        return digest(cold_logits(self.ops, self.model, tokens, len(tokens))[0])


def stage(model: Model, ops: Ops, page_size: int, seed: int) -> Stage:
    settings = EngineConfig(
        page_size=page_size, chunked_prefill_size=32, max_total_tokens=1024, max_running_requests=2
    )
    prompt = np.random.default_rng(seed).integers(4, len(vocabulary()), 128).astype(np.int32)
    set_up = Stage(ops, model, *build(model, ops, settings), prompt)
    set_up.serve()
    set_up.evict_windows()
    return set_up


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("seed", range(3))
def test_a_repair_gives_the_cold_bits_and_leaves_a_boundary_that_is_hit(
    model: Model, page_size: int, seed: int
) -> None:
    s = stage(model, choose_ops(2), page_size, seed)
    assert s.serve(7, 8) == s.cold(7, 8)
    stats = s.engine.scheduler.stats()
    assert s.engine.cache.stats().repairs == 1
    assert WINDOWS * ONE_WINDOW <= stats.repaired_tokens < WINDOWS * ONE_WINDOW + page_size
    computed = stats.computed_tokens
    assert s.serve(9) == s.cold(9)
    assert s.engine.scheduler.stats().computed_tokens == computed + 1, "the boundary is a hit"
    if page_size == 16:
        assert s.serve(9, until=120) == s.cold(9, until=120)
        assert s.engine.scheduler.stats().computed_tokens == computed + 2, (
            "so are ends within its window's page"
        )


def test_numpy_repairs_to_the_same_bits(model: Model) -> None:
    s = stage(model, ReferenceOps(), 4, 0)
    assert s.serve(7) == stage(model, choose_ops(1), 4, 0).cold(7)
    assert s.engine.cache.stats().repairs == 1


@pytest.mark.parametrize(("page_size", "late"), [(1, 1), (1, ONE_WINDOW), (4, ONE_WINDOW), (16, ONE_WINDOW)])
def test_a_later_start_does_not_give_the_cold_bits(
    model: Model, page_size: int, late: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Starting one token late changes the bits of some prompts; one window late, of all prompts here.

    With pages of 16, the boundary's window begins inside a page: there, only an end in that page differs.
    """
    right = match.repair_start
    monkeypatch.setattr(match, "repair_start", lambda *way: right(*way) + late)
    differ = 0
    for seed in range(4):
        s = stage(model, choose_ops(2), page_size, seed)
        same = s.serve(7, 8) == s.cold(7, 8)
        if page_size == 16:
            same = same and s.serve(9, until=120) == s.cold(9, until=120)
        differ += not same
        assert s.engine.cache.stats().repairs == 1
    assert differ == 4 if late == ONE_WINDOW else differ > 0

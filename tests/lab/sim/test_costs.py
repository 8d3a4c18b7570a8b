"""What a step takes: counted from its spans, fitted, written and read."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from transom.errors import ConfigError
from transom.kv.cache import HybridCache
from transom.kv.check import inside
from transom.kv.component_specs import Full, Window
from transom.kv.layout import CacheLayout
from transom.steps import PageCopy, SpanWork, StepWork
from transom.values import RequestId, Sampling
from transom_lab.sim.costs import Load, MachineCost, load_of, read_cost, write_cost
from transom_lab.sim.fit import Timed, fit, non_negative
from transom_lab.sim.shapes import ASSUMED, SHAPES, assumed_cost, shape_of

NO_KEYS = (0, 0, 0, 0, 0, 0)


def span(start: int, count: int, *, chooses: bool, row: int = 0) -> SpanWork:
    sampling = Sampling() if chooses else None
    return SpanWork(RequestId(row), row, start, np.zeros(count, np.int32), sampling)


def cache_of_pages(rows: Sequence[Sequence[int]], page_size: int) -> HybridCache:
    """With a full component and a window of 4 whose rows name these pages, whoever owns them."""
    layout = CacheLayout((Full(), Window(4)), (64, 64), page_size, len(rows), 64)
    cache = HybridCache(layout)
    for component in inside(cache).tables:
        for row, pages in enumerate(rows):
            component.table[row, : len(pages)] = pages
    return cache


def test_a_step_is_counted_key_by_key() -> None:
    work = StepWork((span(9, 1, chooses=True), span(2, 4, chooses=False)), (PageCopy(0, 1, 2, 3),))
    chunk = range(2, 6)
    cache = cache_of_pages([[1, 2, 3, 4, 5]], 2)
    assert load_of(work, 4, cache) == Load(
        spans=2,
        tokens=5,
        choices=1,
        copies=1,
        decode_keys=10,
        decode_near=4,
        chunk_keys=sum(p + 1 for p in chunk),
        chunk_near=sum(min(p + 1, 4) for p in chunk),
        fresh_keys=10,
        fresh_near=4,
    )
    assert load_of(work, 0, cache).decode_near == load_of(work, 0, cache).chunk_near == 0


def test_keys_on_pages_that_two_rows_name_are_fresh_once() -> None:
    """Both end at 8, pages have 2: seven are read eight times; within windows, from 4, three four times."""
    cache = cache_of_pages([[1, 2, 3, 9], [4, 5, 3, 8]], 2)
    spans = (span(7, 1, chooses=True), span(7, 1, chooses=True, row=1))
    load = load_of(StepWork(spans, ()), 4, cache)
    assert (load.decode_keys, load.fresh_keys) == (16, 14)
    assert (load.decode_near, load.fresh_near) == (8, 6)


def test_rates_that_made_the_times_are_found_again() -> None:
    made = MachineCost(
        base=2e-3, choosing=8e-3, per_span=5e-5, per_token=2e-4, per_chunk_key=1e-8, tokens_free=8, window=512
    )
    chance = np.random.default_rng(0)
    steps = []
    for _ in range(400):
        spans, tokens = int(chance.integers(1, 33)), int(chance.integers(1, 600))
        choices = int(chance.integers(0, spans + 1))
        keys = [int(k) for k in chance.integers(1, 100_000, 6)]
        load = Load(spans, tokens, choices, int(chance.integers(0, 3)), *keys)
        steps.append(Timed("", load, made.of(load)))
    found = fit(steps, 512)
    assert found.error < 1e-6
    assert found.cost.rates() == pytest.approx(made.rates(), abs=1e-9)
    assert (found.cost.tokens_free, found.cost.window) == (8, 512)


def test_no_rate_falls_below_nothing_where_the_least_squares_would() -> None:
    matrix = np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]])
    found = non_negative(matrix, np.array([3.0, 2.0, 1.0]))  # unbounded: 4 and -1
    assert found.tolist() == pytest.approx([2.0, 0.0])


def test_a_cost_that_is_written_is_the_same_when_read(tmp_path: Path) -> None:
    cost = assumed_cost(ASSUMED["h200"], SHAPES["gpt-oss-20b"])
    write_cost(cost, tmp_path / "deep" / "cost.json")
    assert read_cost(tmp_path / "deep" / "cost.json") == cost


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "not JSON"),
        ("[]", "an object is expected, not list"),
        ('{"per_tokn": 1}', "unknown field 'per_tokn'"),
        ('{"base": -1}', "base is -1; a number of at least 0"),
        ('{"base": "fast"}', "base is 'fast'"),
        ('{"base": NaN}', "base is nan"),
        ('{"base": true}', "base is True"),
    ],
)
def test_a_file_that_is_no_cost_is_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "cost.json"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        read_cost(path)
    assert str(error.value).startswith(f"{path}: ") and message in str(error.value)


def test_shapes_have_the_layers_that_their_models_publish() -> None:
    layers = {name: (shape.full_layers, shape.window_layers) for name, shape in SHAPES.items()}
    assert layers == {
        "gemma3-270m": (3, 15),
        "gemma3-27b": (10, 52),
        "gpt-oss-20b": (12, 12),
        "llama-8b": (32, 0),
    }
    assert shape_of("llama-8b").spec("x").components == (Full(),)
    assert shape_of("gpt-oss-20b").spec("x").components == (Full(), Window(128))
    with pytest.raises(ConfigError, match="--model-shape is 'gpt-2'; it must be one of gemma3-270m"):
        shape_of("gpt-2")


def test_an_assumed_gpu_reads_its_weights_once_whatever_the_batch() -> None:
    """16 GB at 3.4 TB/s are 4.7 ms; another 63 spans are 10 us each."""
    cost = assumed_cost(ASSUMED["h200"], SHAPES["llama-8b"])
    one = cost.of(Load(1, 1, 1, 0, *NO_KEYS))
    many = cost.of(Load(64, 64, 64, 0, *NO_KEYS))
    assert one == pytest.approx(2.5e-3 + 16e9 / 3.4e12 + 1e-5)
    assert many - one == pytest.approx(63e-5)
    assert json.dumps(cost.rates())


def test_noise_that_is_nobodys_fault_leaves_the_sum_of_times_as_it_was() -> None:
    """Half the steps take 0.6 s and half 1.4 s: of errors relative to what was seen, 0.72 s has the least."""
    load = Load(4, 4, 4, 0, *NO_KEYS)
    steps = [Timed("", load, seconds) for seconds in (0.6, 1.4)] * 20
    assert fit(steps, 0).cost.of(load) == pytest.approx(1.0)

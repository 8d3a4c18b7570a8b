"""The cost model: loads counted from spans, files, and the assumed models."""

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
from transom_lab.sim.costs import StepLoad, load_of, read_cost, write_cost
from transom_lab.sim.model_shapes import ASSUMED_GPUS, MODEL_SHAPES, assumed_cost, model_shape

NO_KEYS = (0, 0, 0, 0, 0, 0)


def span(start: int, count: int, *, chooses: bool, row: int = 0) -> SpanWork:
    sampling = Sampling() if chooses else None
    return SpanWork(RequestId(row), row, start, np.zeros(count, np.int32), sampling)


def cache_of_pages(rows: Sequence[Sequence[int]], page_size: int) -> HybridCache:
    """A cache with a full component and a window of 4. Its rows name these pages but do not own them."""
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
    assert load_of(work, 4, cache) == StepLoad(
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


def test_keys_on_a_page_shared_by_two_rows_are_fresh_once() -> None:
    """Spans end at 8, pages have 2 tokens: 8 reads of 7 pages, and 4 reads of 3 pages in the windows."""
    cache = cache_of_pages([[1, 2, 3, 9], [4, 5, 3, 8]], 2)
    spans = (span(7, 1, chooses=True), span(7, 1, chooses=True, row=1))
    load = load_of(StepWork(spans, ()), 4, cache)
    assert (load.decode_keys, load.fresh_keys) == (16, 14)
    assert (load.decode_near, load.fresh_near) == (8, 6)


def test_a_cost_that_is_written_is_the_same_when_read(tmp_path: Path) -> None:
    cost = assumed_cost(ASSUMED_GPUS["h200"], MODEL_SHAPES["gpt-oss-20b"])
    write_cost(cost, tmp_path / "deep" / "cost.json")
    assert read_cost(tmp_path / "deep" / "cost.json") == cost


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "not a JSON object"),
        ("[]", "not a JSON object"),
        ('{"per_tokn": 1}', "unknown field 'per_tokn'"),
        ('{"base": -1}', "base is -1; a number of at least 0"),
        ('{"base": "fast"}', "base is 'fast'"),
        ('{"base": NaN}', "near"),
        ('{"base": true}', "base is True"),
    ],
)
def test_a_file_that_is_not_a_cost_model_is_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "cost.json"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        read_cost(path)
    assert str(error.value).startswith(f"{path}: ") and message in str(error.value)


def test_model_shapes_have_the_published_number_of_layers() -> None:
    layers = {name: (shape.full_layers, shape.window_layers) for name, shape in MODEL_SHAPES.items()}
    assert layers == {
        "gemma3-270m": (3, 15),
        "gemma3-27b": (10, 52),
        "gpt-oss-20b": (12, 12),
        "llama-8b": (32, 0),
    }
    assert model_shape("llama-8b").spec("x").components == (Full(),)
    assert model_shape("gpt-oss-20b").spec("x").components == (Full(), Window(128))
    with pytest.raises(ConfigError, match="--model-shape is 'gpt-2'; it must be one of gemma3-270m"):
        model_shape("gpt-2")


def test_an_assumed_gpu_reads_its_weights_once_per_step() -> None:
    """16 GB at 3.4 TB/s take 4.7 ms; each of 63 more spans takes 10 us."""
    cost = assumed_cost(ASSUMED_GPUS["h200"], MODEL_SHAPES["llama-8b"])
    one = cost.of(StepLoad(1, 1, 1, 0, *NO_KEYS))
    many = cost.of(StepLoad(64, 64, 64, 0, *NO_KEYS))
    assert one == pytest.approx(2.5e-3 + 16e9 / 3.4e12 + 1e-5)
    assert many - one == pytest.approx(63e-5)
    assert json.dumps(cost.rates())

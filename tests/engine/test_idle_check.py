"""An idle engine checks its cache in slices, and a request never waits for more than one slice."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from tests.tiny import write_tiny_gguf

from transom.config import EngineConfig
from transom.engine.engine import Engine, load_engine
from transom.kv.check import inside
from transom.values import RequestId

PAGES = 4
"""Pages of each cached prefix."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


def engine_with(model: Path, prefixes: int) -> Engine:
    """An engine whose cache holds `prefixes` prefixes without a common beginning. Its size follows."""
    tokens = 6 * prefixes * PAGES * 4
    config = EngineConfig(model=str(model), page_size=4, max_total_tokens=tokens, threads=1)
    engine = load_engine(config)[1]
    for number in range(prefixes):
        cache_prefix(engine, number)
    return engine


def cache_prefix(engine: Engine, number: int) -> None:
    cache, request = engine.cache, RequestId(number)
    tokens = np.full(PAGES * cache.page_size + 1, number + 1, np.int32)
    holding = cache.admit(request, cache.namespace(request, ""), tokens, cache.cold())
    cache.extend(holding, len(tokens))
    cache.copies_done()
    cache.advance(holding, len(tokens))
    cache.publish(holding, tokens)
    cache.drop(holding)


def lines(run: Callable[[], object]) -> int:
    """The lines of Python that `run` executes: its work, measured without the code's help."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
    return count


def slices(engine: Engine) -> list[int]:
    """The lines of each slice of a whole check."""
    more, counts = True, []

    def check_slice() -> None:
        nonlocal more
        more = engine.check_slice()

    while more:
        counts.append(lines(check_slice))
    return counts


def test_the_work_of_an_idle_iteration_does_not_depend_on_the_size_of_the_cache(model: Path) -> None:
    small, large = engine_with(model, 300), engine_with(model, 3000)
    pages = [inside(engine.cache).pools[0].tree for engine in (small, large)]
    assert pages == [1200, 12_000]
    assert lines(lambda: large.iterate([])) <= lines(lambda: small.iterate([]))
    first, second = slices(small), slices(large)
    assert len(second) > 5 * len(first), "a larger cache takes more slices"
    assert max(second) <= 1.25 * max(first), "and no larger ones"


def test_a_check_starts_again_after_the_cache_has_changed(model: Path) -> None:
    engine = engine_with(model, 300)
    whole = len(slices(engine))
    assert not engine.check_slice(), "all is checked"
    cache_prefix(engine, 300)
    engine.iterate([])
    assert engine.check_slice()
    cache_prefix(engine, 301)
    engine.iterate([])
    assert len(slices(engine)) >= whole


@pytest.mark.parametrize("part", ["pool", "tree", "table", "queue"])
def test_a_broken_invariant_is_found_while_idle_and_not_in_an_iteration(model: Path, part: str) -> None:
    engine = engine_with(model, 300)
    parts = inside(engine.cache)
    node = list(next(iter(parts.tree.roots.values())).children)[200]
    match part:
        case "pool":
            parts.pools[0].idle -= 1
        case "tree":
            node.start += 1
        case "table":
            parts.tables[0].table[1, 2] = 3
        case "queue":
            parts.tree.queues[0].queued[node.number] = 0
    assert engine.iterate([]).idle is not None
    with pytest.raises(AssertionError):
        slices(engine)

"""Sizes: the one formula against running requests, and the floor of a cache."""

import pytest
from tests.kv.world import MIXES, PAGE_SIZES, WINDOWS, World, components

from transom.errors import ConfigError
from transom.kv.cache import CacheLayout, HybridCache
from transom.kv.check import inside
from transom.kv.component_specs import Full, Window
from transom.kv.layout import longest_alone, pages_alone


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("page_size", PAGE_SIZES)
@pytest.mark.parametrize("chunk", [1, 5, 40])
def test_pages_alone_is_the_most_that_a_request_holds(
    page_size: int, window: int, mix: str, chunk: int
) -> None:
    """Over all places where its first chunk may end; equal to it for one of them, so not a page too many."""
    kinds, tokens = components(mix, window), 40
    pages = tuple(pages_alone(kind, page_size, tokens, chunk) for kind in kinds)
    peaks = [
        peak(World(kinds, pages, page_size, context=tokens), tokens, chunk, f) for f in range(1, chunk + 1)
    ]
    assert tuple(map(max, zip(*peaks, strict=True))) == pages


def peak(world: World, tokens: int, chunk: int, first: int) -> tuple[int, ...]:
    job = world.admit(range(tokens))
    most, end = [0] * len(world.kinds), first
    while job.holding.computed < tokens:
        world.compute(job, min(end, tokens))
        for component, rows in enumerate(inside(world.cache).tables):
            most[component] = max(most[component], int((rows.table[job.holding.row] != 0).sum()))
        world.settle(job)
        end = job.holding.computed + chunk
    return tuple(most)


def test_the_longest_request_alone_fits_and_one_token_more_does_not() -> None:
    layout = CacheLayout((Full(), Window(4)), (10, 3), 4, 2, 100)
    cache = HybridCache(layout)
    longest = cache.longest_alone(chunk=1)
    assert longest == 40 == longest_alone(layout, 1)


def test_a_large_chunk_fits_less_than_a_small_one() -> None:
    cache = HybridCache(CacheLayout((Full(), Window(4)), (10, 3), 4, 2, 100))
    assert cache.longest_alone(chunk=100) == 12


@pytest.mark.parametrize(
    ("pages", "page_size", "message"),
    [
        ((64, 1), 256, r"window: 1 pages of 256 tokens .* at least 2 are needed"),
        ((0, 4), 256, r"full: 0 pages .* at least 1 "),
        ((64, 100), 1, r"window: 100 pages of 1 tokens .* at least 128 are needed"),
    ],
)
def test_a_cache_too_small_for_one_request_is_refused_with_the_minimum(
    pages: tuple[int, int], page_size: int, message: str
) -> None:
    if page_size == 1:
        pages = (4096, pages[1])
    with pytest.raises(ConfigError, match=message):
        HybridCache(CacheLayout((Full(), Window(128)), pages, page_size, 4, 4096))


@pytest.mark.parametrize(
    ("page_size", "rows", "context", "field"),
    [(0, 2, 16, "page_size"), (4, 0, 16, "rows"), (4, 2, 0, "context")],
)
def test_an_empty_layout_is_refused(page_size: int, rows: int, context: int, field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        HybridCache(CacheLayout((Full(),), (8,), page_size, rows, context))

"""Regret: bound and clairvoyant policy compared with a search over all choices, on small traces."""

from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest

from transom.errors import ConfigError
from transom.kv.cache import HybridCache
from transom.kv.check import inside
from transom.kv.component_specs import ComponentSpec, Full, State, Window
from transom.kv.eviction_policy import CachePolicy
from transom.kv.layout import CacheLayout
from transom_lab.regret.bound import bound
from transom_lab.regret.clairvoyant import Clairvoyant, plan
from transom_lab.regret.problem import problem_of
from transom_lab.regret.replay import ReplayRequest, replay, replay_requests, with_memory
from transom_lab.regret.report import regret_table
from transom_lab.sim.trace import Arrival, Trace
from transom_lab.sim.workloads import make_trace

MIB = 1 << 20
GEMMA = CacheLayout(
    (Full(), Window(512)),
    (0, 0),
    16,
    4,
    32_768,
    budget=0,
    page_bytes=(49_152, 245_760),
    layers=(*[1] * 5, 0) * 3,
)


def layout(window: int, page: int = 1, layers: tuple[int, ...] = ()) -> CacheLayout:
    components: tuple[ComponentSpec, ...] = (Full(), Window(window)) if window else (Full(),)
    sizes = (10, 25)[: len(components)]
    return CacheLayout(components, (0,) * len(sizes), page, 2, 64, budget=0, page_bytes=sizes, layers=layers)


def drawn(seed: int, count: int, longest: int) -> tuple[ReplayRequest, ...]:
    """Random requests of two different tokens, so that many share a prefix."""
    random = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        length = int(random.integers(3, longest + 1))
        tokens = random.choice(2, length, p=(0.75, 0.25)).astype(np.int32)
        made.append(ReplayRequest(tokens, int(random.integers(2, length + 1))))
    return tuple(made)


# ---------------------------------------------------------------- an oracle that tries every choice


def best_of_all(requests: tuple[ReplayRequest, ...], window: int, size: int) -> int:
    """The most tokens found by any choice of where each request starts. Pages have one token."""
    texts = [tuple(request.tokens.tolist()) for request in requests]
    options = []
    for number, request in enumerate(requests):
        shared = max((_common(texts[number], other) for other in texts[:number]), default=0)
        options.append(range(min(shared, request.prompt - 1) + 1))
    for starts in sorted(product(*options), key=sum, reverse=True):
        if _fits(requests, texts, starts, window, size):
            return sum(starts)
    raise AssertionError("a request does not fit alone")


def _common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    return next(
        (n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


Page = tuple[str, tuple[int, ...]]


def _fits(
    requests: tuple[ReplayRequest, ...],
    texts: list[tuple[int, ...]],
    starts: tuple[int, ...],
    window: int,
    size: int,
) -> bool:
    kept: list[tuple[int, int, Page]] = []  # the request that left it, the request that reads it, the page
    for number, start in enumerate(starts):
        for page in _read(texts[number], start, window):
            source = _left_by(texts, starts, number, page)
            if source is None:
                return False
            kept.append((source, number, page))
    for number, request in enumerate(requests):
        across = {page for source, until, page in kept if source < number <= until}
        if _size(across) > size:
            return False
        later = {page for source, until, page in kept if source < number < until}
        own = {page for source, until, page in kept if source == number}
        for begin, end in _spans(request, starts[number]):
            row = _read(texts[number], begin, window) | {("full", texts[number][: n + 1]) for n in range(end)}
            row |= {("window", texts[number][: n + 1]) for n in range(begin, end) if window}
            done = {page for page in own if len(page[1]) <= end}
            if _size(row | later | done) > size:
                return False
    return True


def _read(tokens: tuple[int, ...], end: int, window: int) -> set[Page]:
    full: set[Page] = {("full", tokens[: n + 1]) for n in range(end)}
    near = range(max(0, end - window + 1), end) if window else ()
    return full | {("window", tokens[: n + 1]) for n in near}


def _left_by(texts: list[tuple[int, ...]], starts: tuple[int, ...], reader: int, page: Page) -> int | None:
    """The last request before `reader` that left the page: it computed it, or held it as a full page."""
    kind, prefix = page
    for number in range(reader - 1, -1, -1):
        if texts[number][: len(prefix)] == prefix and (kind == "full" or starts[number] < len(prefix)):
            return number
    return None


def _spans(request: ReplayRequest, start: int) -> Iterator[tuple[int, int]]:
    """The whole prompt, then token by token."""
    if start < request.prompt:
        yield start, request.prompt
    for at in range(request.prompt, len(request.tokens)):
        yield at, at + 1


def _size(pages: set[Page]) -> int:
    return sum(10 if kind == "full" else 25 for kind, _ in pages)


# ---------------------------------------------------------------- compared with the oracle


@pytest.mark.parametrize("seeds", [4, pytest.param(12, marks=pytest.mark.slow)])
@pytest.mark.parametrize("window", [0, 3])
def test_no_policy_exceeds_the_optimum_and_the_optimum_does_not_exceed_the_bound(
    window: int, seeds: int
) -> None:
    found, optimum, bounds = 0, 0, 0.0
    for seed in range(seeds):
        requests = drawn(seed, 5, 6)
        for size in (230, 300, 400):
            best = best_of_all(requests, window, size)
            problem = problem_of(layout(window), requests)
            priced = bound(problem, size)
            assert best <= priced.tokens + 1e-6, (seed, size)
            clairvoyant = Clairvoyant(problem, plan(problem, size, priced))
            planned = sum(replay(HybridCache(with_memory(layout(window), size)), requests, clairvoyant))
            assert planned <= best, (seed, size)
            for policy in CachePolicy:
                online = sum(replay(HybridCache(with_memory(layout(window), size, policy)), requests))
                assert online <= best, (seed, size, policy)
            found, optimum, bounds = found + planned, optimum + best, bounds + priced.tokens
    assert 0.95 * optimum <= found and bounds <= 1.1 * optimum, (found, optimum, bounds)


@pytest.mark.parametrize("seeds", [2, pytest.param(5, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("page", "window", "layers"), [(2, 4, ()), (2, 4, (1, 0, 1)), (3, 2, ()), (3, 2, (1, 0, 1)), (4, 0, ())]
)
def test_no_policy_exceeds_the_bound(page: int, window: int, layers: tuple[int, ...], seeds: int) -> None:
    """With hits inside pages of several tokens, and with windows repaired from full pages."""
    shape = layout(window, page, layers)
    for seed in range(seeds):
        requests = drawn(100 + seed, 12, 30)
        problem = problem_of(shape, requests)
        for size in (600, 900, 1500):
            priced = bound(problem, size, rounds=60)
            watcher = Clairvoyant(problem, plan(problem, size, priced))
            found = [sum(replay(HybridCache(with_memory(shape, size)), requests, watcher))]
            caches = [HybridCache(with_memory(shape, size, policy)) for policy in CachePolicy]
            found += [sum(replay(cache, requests)) for cache in caches]
            assert max(found) <= priced.tokens + 1e-6, (seed, size, found)


# ---------------------------------------------------------------- traces


def test_requests_start_when_a_client_is_free() -> None:
    """Two clients, four conversations: the third starts when the first has its answer."""
    token = np.ones(1, np.int32)
    first = [Arrival(0.0, np.full(4, n, np.int32), np.repeat(token, 3 - n % 2)) for n in range(4)]
    reply = Arrival(0.0, np.full(5, 0, np.int32), token, after=0)
    prompts = [request.tokens[0] for request in replay_requests(Trace("t", (*first, reply), concurrency=2))]
    assert prompts == [0, 1, 2, 3, 0]
    assert [len(request.tokens) for request in replay_requests(Trace("t", (first[0],)))] == [6], (
        "the last output token is not computed"
    )


def test_with_the_least_memory_the_clairvoyant_loses_nothing_and_lru_does() -> None:
    table = regret_table(make_trace("w4s", seed=1), GEMMA)
    row = next(row for row in table.rows if row.size == table.least)
    assert row.bound == row.clairvoyant == table.most
    assert table.least < table.all
    assert (row.found[CachePolicy.LRU] or 0) < table.most


@pytest.mark.parametrize(("workload", "requests"), [("w4s", 32), ("agents", 50)])
def test_with_half_of_all_memory_value_finds_nearly_as_much_as_the_clairvoyant(
    workload: str, requests: int
) -> None:
    trace = make_trace(workload, seed=1, requests=requests)
    (row,) = regret_table(trace, GEMMA, (cached_bytes(trace) // 2,)).rows
    found = row.found[CachePolicy.VALUE]
    assert found is not None and row.clairvoyant is not None
    assert found >= 0.95 * row.clairvoyant, row


def cached_bytes(trace: Trace) -> int:
    cache = HybridCache(with_memory(GEMMA, 1 << 40))
    replay(cache, replay_requests(trace))
    return inside(cache).budget.in_use()


def test_requests_that_do_not_fit_and_layouts_without_regret_are_reported() -> None:
    table = regret_table(make_trace("w4s", seed=1, requests=8), GEMMA, (2 * MIB,))
    assert table.rows[-1].size == 2 * MIB and table.rows[-1].found[CachePolicy.VALUE] is None
    with pytest.raises(ConfigError, match="longer than the context"):
        regret_table(Trace("t", (Arrival(0.0, np.ones(100, np.int32), np.ones(1, np.int32)),)), layout(3))
    with pytest.raises(ConfigError, match="snapshots"):
        regret_table(
            Trace("t", (Arrival(0.0, np.ones(10, np.int32), np.ones(1, np.int32)),)),
            CacheLayout((Full(), State(4)), (0, 0), 1, 2, 64, budget=0, page_bytes=(1, 1)),
        )

"""`transom bench kv`: speed of the memory core, as medians in microseconds on one thread.

The cache has full attention and a window and holds sequences that share prefixes. Times include transactions,
reference counts, ownership checks and events. Every measurement asserts that it takes the path it is named
for: hits are hits, and evicted pages become free.
"""

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from transom.bench.sheet import ResultFiles, Row, Sheet, publish
from transom.kv.cache import CacheLayout, HybridCache
from transom.kv.check import evict, inside
from transom.kv.component_specs import Full, Window
from transom.kv.holding import Holding
from transom.kv.journal import Journal
from transom.kv.pool import PagePool
from transom.values import RequestId, Tokens

WINDOW = 128
EVICTION_ROUNDS = 20


@dataclass(frozen=True, slots=True)
class CacheLoad:
    """The contents of the cache, and the sizes of the operations.

    prefixes  different prefixes, of `prefix` tokens each
    sequences cached sequences: each is one of the prefixes, followed by `suffix` tokens of its own
    fresh     tokens of a looked-up prompt that are not cached
    published tokens that are published at once
    evicted   pages that are evicted at once
    rounds    how often each operation is timed
    pools     sizes in pages of the pools whose allocation is timed
    """

    prefixes: int = 30
    sequences: int = 1000
    prefix: int = 1408
    suffix: int = 64
    fresh: int = 28
    published: int = 256
    evicted: int = 96
    rounds: int = 300
    pools: tuple[int, ...] = (1 << 14, 1 << 22)


DEFAULT = CacheLoad()


def bench_kv(files: ResultFiles, load: CacheLoad = DEFAULT) -> None:
    """Raises ConfigError for a file that cannot be written."""
    sixteen, one = CacheBench(16, load).rows(), CacheBench(1, load).rows()
    rows = [Row(name, (wide, narrow)) for (name, wide), (_, narrow) in zip(sixteen, one, strict=True)]
    for capacity in load.pools:
        name = f"allocate + free {load.evicted} pages of {capacity:,}"
        rows.append(Row(name, (allocate_free(capacity, load), None)))
    columns = ("page 16", "page 1")
    tokens = load.prefixes * load.prefix + load.sequences * load.suffix
    title = f"us, median; {tokens:,} tokens in the cache"
    publish("kv", [Sheet("operations", title, columns, tuple(rows), columns, "us")], files)


def median_us(measured: Callable[[int], object], prepare: Callable[[int], object], rounds: int) -> float:
    """The median time of `measured(n)`. Each runs after `prepare(n)`, which is not timed."""
    times = []
    for number in range(rounds):
        prepare(number)
        began = time.perf_counter_ns()
        measured(number)
        times.append(time.perf_counter_ns() - began)
    return statistics.median(times) / 1000


def nothing(number: int) -> None:
    """Prepares nothing."""


class CacheBench:
    """Owns a filled cache with pages of `page` tokens. Mutable."""

    def __init__(self, page: int, load: CacheLoad) -> None:
        self.random = np.random.default_rng(1)
        self.load = load
        # Far more than the load needs, so that eviction runs only where it is measured.
        pages = 3_000_000 // 16 // page * 4
        layout = CacheLayout((Full(), Window(WINDOW)), (pages, pages), page, 64, 4096)
        self.cache = HybridCache(layout)
        self.next_id = 0
        self.prompts: list[Tokens] = []
        prefixes = [self.random_tokens(load.prefix) for _ in range(load.prefixes)]
        for number in range(load.sequences):
            prompt = np.concatenate([prefixes[number % load.prefixes], self.random_tokens(load.suffix)])
            self.serve(prompt)
            self.prompts.append(prompt)

    def random_tokens(self, count: int) -> Tokens:
        return self.random.integers(0, 1 << 18, count).astype(np.int32)

    def admit(self, prompt: Tokens) -> Holding:
        self.next_id += 1
        request = RequestId(self.next_id)
        namespace = self.cache.namespace(request, "")
        return self.cache.admit(request, namespace, prompt, self.cache.offer(namespace, prompt))

    def compute(self, holding: Holding, prompt: Tokens) -> None:
        self.cache.extend(holding, len(prompt))
        self.cache.copies_done()
        self.cache.advance(holding, len(prompt))

    def serve(self, prompt: Tokens) -> None:
        holding = self.admit(prompt)
        self.compute(holding, prompt)
        self.cache.publish(holding, prompt)
        self.cache.drop(holding)

    # ---------------------------------------------------------------- measurements

    def rows(self) -> list[tuple[str, float]]:
        """Each operation and its median."""
        # The filled cache is a large object graph; a collection during a measurement would walk all of it.
        gc.collect()
        gc.freeze()
        known, pages = self.load.prefix + self.load.suffix, self.load.evicted
        return [
            (f"match {known + self.load.fresh:,} tokens, {known:,} cached", self.match()),
            ("admit + release", self.admit_release()),
            (f"publish {self.load.published} tokens after {self.load.prefix:,}", self.publish()),
            (f"evict {pages} window pages", self.evict(1, pages)),
            (f"evict {pages} full pages", self.evict(0, pages)),
        ]

    def new_prompts(self) -> list[Tokens]:
        """One prompt for each round: cached but for its last `fresh` tokens."""
        fresh = self.load.fresh
        rounds = range(self.load.rounds)
        return [np.concatenate([self.prompts[n], self.random_tokens(fresh)]) for n in rounds]

    def match(self) -> float:
        namespace = self.cache.namespace(RequestId(0), "")
        prompts, known = self.new_prompts(), self.load.prefix + self.load.suffix
        assert all(self.cache.offer(namespace, prompt).begin.start == known for prompt in prompts)
        return median_us(lambda n: self.cache.offer(namespace, prompts[n]), nothing, len(prompts))

    def admit_release(self) -> float:
        prompts = self.new_prompts()
        namespace = self.cache.namespace(RequestId(0), "")
        offers = [self.cache.offer(namespace, prompt) for prompt in prompts]

        def both(n: int) -> None:
            self.cache.drop(self.cache.admit(RequestId(n), namespace, prompts[n], offers[n]))

        return median_us(both, nothing, len(prompts))

    def publish(self) -> float:
        """Publishes new tokens after a hit that ends with the prefix."""
        prefix, new, rounds = self.load.prefix, self.load.published, self.load.rounds
        prompts = [np.concatenate([self.prompts[n][:prefix], self.random_tokens(new)]) for n in range(rounds)]
        held: dict[int, Holding] = {}

        def prepare(n: int) -> None:
            if n:
                self.cache.drop(held[n - 1])
            held[n] = self.admit(prompts[n])
            assert held[n].start == prefix
            self.compute(held[n], prompts[n])

        median = median_us(lambda n: self.cache.publish(held[n], prompts[n]), prepare, rounds)
        self.cache.drop(held[rounds - 1])
        return median

    def evict(self, component: int, pages: int) -> float:
        """Evicts from one pool. At page 16, a node has 7 useless window pages or 4 to 16 full pages."""
        before = inside(self.cache).pools[component].free

        def one(n: int) -> None:
            evict(self.cache, component, pages)

        median = median_us(one, nothing, EVICTION_ROUNDS)
        assert inside(self.cache).pools[component].free >= before + EVICTION_ROUNDS * pages
        return median


def allocate_free(capacity: int, load: CacheLoad) -> float:
    """Allocates and frees pages of an empty pool of `capacity` pages."""
    journal = Journal()
    pool = PagePool("pool", capacity, journal)

    def both(n: int) -> None:
        with journal.transaction():
            pool.free_private(pool.allocate(load.evicted, 1), 1)

    return median_us(both, nothing, 6 * load.rounds)

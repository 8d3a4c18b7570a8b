"""`transom bench kv`: the memory core's speed, in medians of microseconds, one thread, prompts already int32.

Sequences share some beginnings; full attention, and a window. Transactions, references, ownership checks and
events are included. Hits are asserted: no path is idle.
"""

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from transom.bench.sheet import Row, Sheet, Wanted, publish
from transom.kv.cache import CacheLayout, HybridCache
from transom.kv.check import evict, inside
from transom.kv.component_specs import Full, Window
from transom.kv.holding import Holding
from transom.kv.journal import Journal
from transom.kv.pool import PagePool
from transom.values import RequestId, Tokens

WINDOW = 128
RECLAIM_ROUNDS = 20


@dataclass(frozen=True, slots=True)
class Cached:
    """What is in the cache, in tokens, and how often each operation is timed."""

    stems: int = 30
    sequences: int = 1000
    stem: int = 1408
    tail: int = 64
    fresh: int = 28
    """Of a prompt that is looked up, beyond what is cached."""
    published: int = 256
    reclaimed: int = 96
    """Pages."""
    rounds: int = 300
    pools: tuple[int, ...] = (1 << 14, 1 << 22)


DEFAULT = Cached()


def bench_kv(wanted: Wanted, cached: Cached = DEFAULT) -> None:
    """Raises ConfigError for a file that cannot be written."""
    sixteen, one = Bench(16, cached).rows(), Bench(1, cached).rows()
    rows = [Row(name, (wide, narrow)) for (name, wide), (_, narrow) in zip(sixteen, one, strict=True)]
    for capacity in cached.pools:
        name = f"take + give {cached.reclaimed} pages of {capacity:,}"
        rows.append(Row(name, (take_give(capacity, cached), None)))
    columns = ("page 16", "page 1")
    tokens = cached.stems * cached.stem + cached.sequences * cached.tail
    title = f"us, median; {tokens:,} tokens in the cache"
    publish("kv", [Sheet("operations", title, columns, tuple(rows), columns, "us")], wanted)


def median_us(measured: Callable[[int], object], prepare: Callable[[int], object], rounds: int) -> float:
    """Of `measured(n)`, each after `prepare(n)`, which is not counted."""
    found = []
    for number in range(rounds):
        prepare(number)
        began = time.perf_counter_ns()
        measured(number)
        found.append(time.perf_counter_ns() - began)
    return statistics.median(found) / 1000


def nothing(number: int) -> None:
    """Where no round is prepared."""


class Bench:
    """Owns a filled cache. Mutable."""

    def __init__(self, page: int, cached: Cached) -> None:
        self.random = np.random.default_rng(1)
        self.cached = cached
        pages = 3_000_000 // 16 // page * 4
        layout = CacheLayout((Full(), Window(WINDOW)), (pages, pages), page, 64, 4096)
        self.cache = HybridCache(layout)
        self.next = 0
        self.prompts: list[Tokens] = []
        stems = [self.draw(cached.stem) for _ in range(cached.stems)]
        for number in range(cached.sequences):
            prompt = np.concatenate([stems[number % cached.stems], self.draw(cached.tail)])
            self.serve(prompt)
            self.prompts.append(prompt)

    def draw(self, count: int) -> Tokens:
        return self.random.integers(0, 1 << 18, count).astype(np.int32)

    def begin(self, prompt: Tokens) -> Holding:
        self.next += 1
        request = RequestId(self.next)
        namespace = self.cache.namespace(request, "")
        return self.cache.admit(request, namespace, prompt, self.cache.offer(namespace, prompt))

    def compute(self, holding: Holding, prompt: Tokens) -> None:
        self.cache.extend(holding, len(prompt))
        self.cache.copies_done()
        self.cache.advance(holding, len(prompt))

    def serve(self, prompt: Tokens) -> None:
        holding = self.begin(prompt)
        self.compute(holding, prompt)
        self.cache.publish(holding, prompt)
        self.cache.drop(holding)

    # ---------------------------------------------------------------- what is measured

    def rows(self) -> list[tuple[str, float]]:
        """Each operation and its median."""
        gc.collect()
        gc.freeze()
        known, pages = self.cached.stem + self.cached.tail, self.cached.reclaimed
        return [
            (f"match {known + self.cached.fresh:,} tokens, {known:,} cached", self.match()),
            ("admit + release", self.admit_release()),
            (f"publish {self.cached.published} tokens after {self.cached.stem:,}", self.publish()),
            (f"reclaim {pages} window pages", self.reclaim(1, pages)),
            (f"reclaim {pages} full pages", self.reclaim(0, pages)),
        ]

    def asked(self) -> list[Tokens]:
        """Prompts that are cached but for their ends."""
        fresh = self.cached.fresh
        return [np.concatenate([self.prompts[n], self.draw(fresh)]) for n in range(self.cached.rounds)]

    def match(self) -> float:
        namespace = self.cache.namespace(RequestId(0), "")
        asked, known = self.asked(), self.cached.stem + self.cached.tail
        assert all(self.cache.offer(namespace, prompt).begin.start == known for prompt in asked)
        return median_us(lambda n: self.cache.offer(namespace, asked[n]), nothing, len(asked))

    def admit_release(self) -> float:
        asked = self.asked()
        namespace = self.cache.namespace(RequestId(0), "")
        offers = [self.cache.offer(namespace, prompt) for prompt in asked]

        def both(n: int) -> None:
            self.cache.drop(self.cache.admit(RequestId(n), namespace, asked[n], offers[n]))

        return median_us(both, nothing, len(asked))

    def publish(self) -> float:
        """New tokens after a hit that ends with the stem."""
        stem, new, rounds = self.cached.stem, self.cached.published, self.cached.rounds
        prompts = [np.concatenate([self.prompts[n][:stem], self.draw(new)]) for n in range(rounds)]
        held: dict[int, Holding] = {}

        def prepare(n: int) -> None:
            if n:
                self.cache.drop(held[n - 1])
            held[n] = self.begin(prompts[n])
            assert held[n].start == stem
            self.compute(held[n], prompts[n])

        took = median_us(lambda n: self.cache.publish(held[n], prompts[n]), prepare, rounds)
        self.cache.drop(held[rounds - 1])
        return took

    def reclaim(self, component: int, pages: int) -> float:
        """Pages of one pool. At page 16 a victim has 7 window pages of no use, or 4 to 16 full ones."""
        before = inside(self.cache).pools[component].free

        def one(n: int) -> None:
            evict(self.cache, component, pages)

        took = median_us(one, nothing, RECLAIM_ROUNDS)
        assert inside(self.cache).pools[component].free >= before + RECLAIM_ROUNDS * pages
        return took


def take_give(capacity: int, cached: Cached) -> float:
    journal = Journal()
    pool = PagePool("pool", capacity, journal)

    def both(n: int) -> None:
        with journal.transaction():
            pool.free_private(pool.allocate(cached.reclaimed, 1), 1)

    return median_us(both, nothing, 6 * cached.rounds)

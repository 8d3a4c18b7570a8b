"""The memory core's speed: medians in microseconds, one thread, prompts already int32.

    python bench/kv.py

100,000 cached tokens in 1,000 sequences that share 30 beginnings of 1,408 tokens; full attention and a window
of 128. Transactions, references, ownership checks and events included. Hits are asserted: no path is idle.
"""

import gc
import statistics
import time
from collections.abc import Callable

import numpy as np

from transom.kv.cache import CacheLayout, HybridCache
from transom.kv.journal import Journal
from transom.kv.pool import PagePool
from transom.kv.reclaim import reclaim
from transom.values import Full, RequestId, Tokens, Window

STEMS, SEQUENCES, STEM, TAIL = 30, 1000, 1408, 64
ROUNDS = 300
Rows = list[tuple[str, float]]


def median_us(
    measured: Callable[[int], object], prepare: Callable[[int], object] = lambda n: None, rounds: int = ROUNDS
) -> float:
    """Of `measured(n)`, each after `prepare(n)`, which is not counted."""
    found = []
    for number in range(rounds):
        prepare(number)
        began = time.perf_counter_ns()
        measured(number)
        found.append(time.perf_counter_ns() - began)
    return statistics.median(found) / 1000


class Bench:
    """Owns a filled cache. Mutable."""

    def __init__(self, page: int) -> None:
        self.random = np.random.default_rng(1)
        pages = 3_000_000 // 16 // page * 4
        layout = CacheLayout((Full(), Window(128)), (pages, pages), page, 64, 4096)
        self.cache = HybridCache(layout)
        self.next = 0
        self.prompts: list[Tokens] = []
        stems = [self.draw(STEM) for _ in range(STEMS)]
        for number in range(SEQUENCES):
            prompt = np.concatenate([stems[number % STEMS], self.draw(TAIL)])
            self.serve(prompt)
            self.prompts.append(prompt)

    def draw(self, count: int) -> Tokens:
        return self.random.integers(0, 1 << 18, count).astype(np.int32)

    def begin(self, prompt: Tokens):  # type: ignore[no-untyped-def]
        self.next += 1
        request = RequestId(self.next)
        namespace = self.cache.namespace(request, "")
        return self.cache.admit(request, namespace, prompt, self.cache.offer(namespace, prompt))

    def compute(self, holding, prompt: Tokens) -> None:  # type: ignore[no-untyped-def]
        self.cache.extend(holding, len(prompt))
        self.cache.copies_done()
        self.cache.advance(holding, len(prompt))

    def serve(self, prompt: Tokens) -> None:
        holding = self.begin(prompt)
        self.compute(holding, prompt)
        self.cache.publish(holding, prompt)
        self.cache.drop(holding)

    # ---------------------------------------------------------------- what is measured

    def match(self) -> float:
        """A prompt of 1,500 tokens, of which 1,472 are cached."""
        namespace = self.cache.namespace(RequestId(0), "")
        asked = [np.concatenate([self.prompts[n], self.draw(28)]) for n in range(ROUNDS)]
        assert all(self.cache.offer(namespace, prompt).begin.start == STEM + TAIL for prompt in asked)
        return median_us(lambda n: self.cache.offer(namespace, asked[n]))

    def admit_release(self) -> float:
        asked = [np.concatenate([self.prompts[n], self.draw(28)]) for n in range(ROUNDS)]
        namespace = self.cache.namespace(RequestId(0), "")
        offers = [self.cache.offer(namespace, prompt) for prompt in asked]

        def both(n: int) -> None:
            self.cache.drop(self.cache.admit(RequestId(n), namespace, asked[n], offers[n]))

        return median_us(both)

    def publish(self) -> float:
        """256 new tokens after a hit of 1,408."""
        prompts = [np.concatenate([self.prompts[n][:STEM], self.draw(256)]) for n in range(ROUNDS)]
        held = {}

        def prepare(n: int) -> None:
            if n:
                self.cache.drop(held[n - 1])
            held[n] = self.begin(prompts[n])
            assert held[n].start == STEM
            self.compute(held[n], prompts[n])

        took = median_us(lambda n: self.cache.publish(held[n], prompts[n]), prepare)
        self.cache.drop(held[ROUNDS - 1])
        return took

    def reclaim(self, component: int, pages: int) -> float:
        """Pages of one pool. At page 16 a victim has 7 window pages of no use, or 4 to 16 full ones."""
        before = self.cache.pools[component].free

        def one(n: int) -> None:
            with self.cache.transaction():
                reclaim(self.cache.tree, component, pages)

        took = median_us(one, rounds=20)
        assert self.cache.pools[component].free >= before + 20 * pages
        return took


def take_give(capacity: int) -> float:
    journal = Journal()
    pool = PagePool("pool", capacity, journal)

    def both(n: int) -> None:
        with journal.transaction():
            pool.give(pool.take(96, 1), 1)

    return median_us(both, rounds=2000)


def measure(page: int) -> Rows:
    bench = Bench(page)
    gc.collect()
    gc.freeze()
    return [
        ("match 1,500 tokens", bench.match()),
        ("admit + release", bench.admit_release()),
        ("publish 256 tokens", bench.publish()),
        ("reclaim 96 window pages", bench.reclaim(1, 96)),
        ("reclaim 96 full pages", bench.reclaim(0, 96)),
    ]


def main() -> None:
    sixteen, one = measure(16), measure(1)
    print(f"{'us, median':<24}{'page 16':>10}{'page 1':>10}")
    for (name, wide), (_, narrow) in zip(sixteen, one, strict=True):
        print(f"{name:<24}{wide:>10.1f}{narrow:>10.1f}")
    print(f"{'take + give 96 pages':<24}{take_give(1 << 14):>10.1f}  in a pool of 16 thousand")
    print(f"{'':<24}{take_give(1 << 22):>10.1f}  in a pool of 4 million")


if __name__ == "__main__":
    main()

"""`transom bench kv --scale` and `bench sched --scale`: memory and time as caches and queues grow.

The tree of the cache has conversations of four turns, one page of 16 tokens each, with full attention and a
window: four nodes for each conversation, below one root. Bytes are those of all Python objects that the nodes
add to a cache, as tracemalloc counts them.
"""

import gc
import time
import tracemalloc
from collections.abc import Callable, Iterator
from statistics import median

import numpy as np

from transom.bench.sheet import ResultFiles, Row, Sheet, publish
from transom.kv.cache import CacheLayout, HybridCache
from transom.kv.check import evict, inside
from transom.kv.component_specs import Full, Window
from transom.kv.node import Node
from transom.kv.pool import owner_of
from transom.sched.config import SchedulerConfig
from transom.sched.scheduler import Scheduler
from transom.values import Request, RequestId, Tokens

PAGE, WINDOW, TURNS = 16, 64, 4
SPARE = 4096
"""Pages beyond those of the tree, so that only the measured evictions evict."""
BATCH = 1024
EVICTED = 16
NODES = (1000, 10_000, 100_000, 1_000_000)
WAITING = (100, 1000, 10_000, 100_000)


def bench_tree(files: ResultFiles, sizes: tuple[int, ...] = NODES, rounds: int = 100) -> None:
    """Raises ConfigError for a file that cannot be written."""
    columns = [dict(tree_costs(nodes, rounds)) for nodes in sizes]
    rows = [Row(name, tuple(column[name] for column in columns)) for name in columns[0]]
    names = tuple(f"{nodes:,} nodes" for nodes in sizes)
    title = "us, median, garbage collection included; bytes of Python objects for each node"
    publish("kv-scale", [Sheet("tree", title, names, tuple(rows), names, "us")], files)


def bench_queue(files: ResultFiles, sizes: tuple[int, ...] = WAITING, rounds: int = 30) -> None:
    """Raises ConfigError for a file that cannot be written."""
    columns = [dict(queue_costs(waiting, rounds)) for waiting in sizes]
    rows = [Row(name, tuple(column[name] for column in columns)) for name in columns[0]]
    names = tuple(f"{waiting:,} waiting" for waiting in sizes)
    title = "us of CPU time, median; bytes of Python objects for each waiting request"
    publish("sched-scale", [Sheet("queue", title, names, tuple(rows), names, "us")], files)


# ---------------------------------------------------------------- the tree


def grown(nodes: int, turns: int = TURNS) -> HybridCache:
    """A cache whose tree has `nodes` nodes of one page: conversations of `turns` turns."""
    pages = nodes + SPARE
    layout = CacheLayout((Full(), Window(WINDOW)), (pages, pages), PAGE, 4, PAGE * max(64, turns + 8))
    cache = HybridCache(layout)
    add_nodes(cache, nodes, turns)
    return cache


def add_nodes(cache: HybridCache, nodes: int, turns: int) -> None:
    """Adds nodes as publications do, without the requests that would compute them."""
    tree = inside(cache).tree
    namespace = cache.namespace(RequestId(0), "")
    random = np.random.default_rng(1)
    for begun in range(0, nodes, BATCH):
        count = min(BATCH, nodes - begun)
        keys = random.integers(0, 1 << 18, (count, PAGE)).astype(np.int32)
        with cache.transaction():
            pages = []
            for pool in tree.pools:
                pages.append(pool.allocate(count, owner_of(0)))
                pool.adopt(pages[-1], owner_of(0))
                pool.unreference(pages[-1])
            node: Node = tree.root(namespace)
            for number in range(count):
                if number % turns == 0:
                    tree.clock.tick()
                    node = tree.root(namespace)
                runs = tuple([ids[number : number + 1].tobytes() for ids in pages])
                node = tree.grow(node, keys[number].tobytes(), runs)


def bytes_for_each(nodes: int, turns: int = TURNS) -> float:
    """Bytes of Python objects for each node of a tree of `nodes` nodes."""
    pages = nodes + SPARE
    layout = CacheLayout((Full(), Window(WINDOW)), (pages, pages), PAGE, 4, PAGE * max(64, turns + 8))
    cache = HybridCache(layout)
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        add_nodes(cache, nodes, turns)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return (after - before) / nodes


def tree_costs(nodes: int, rounds: int) -> Iterator[tuple[str, float]]:
    """Each operation and its median, beside a tree of `nodes` nodes."""
    yield "bytes a node", bytes_for_each(nodes)
    began = time.perf_counter_ns()
    cache = grown(nodes)
    yield "add a node", (time.perf_counter_ns() - began) / nodes / 1000
    prompts = _conversations(cache, min(rounds, nodes // TURNS))
    namespace = cache.namespace(RequestId(0), "")
    assert all(cache.offer(namespace, each).begin.start == TURNS * PAGE for each in prompts)
    yield "match 4 nodes", _median_us(lambda n: cache.offer(namespace, prompts[n]), len(prompts))
    yield "admit, compute and publish a page", _median_us(lambda n: _serve(cache, prompts[n]), len(prompts))
    for component, name in enumerate(("full", "window")):
        free = inside(cache).pools[component].free
        often = len(prompts) // 8

        def evicted(number: int, component: int = component) -> None:
            evict(cache, component, EVICTED)

        yield f"evict {EVICTED} {name} pages", _median_us(evicted, often)
        assert inside(cache).pools[component].free >= free + often * EVICTED


def _median_us(measured: Callable[[int], object], rounds: int) -> float:
    times = []
    for number in range(rounds):
        began = time.perf_counter_ns()
        measured(number)
        times.append(time.perf_counter_ns() - began)
    return median(times) / 1000


def _conversations(cache: HybridCache, count: int) -> list[Tokens]:
    """`count` conversations of the tree, each with a page of new tokens and a last one."""
    (root,) = inside(cache).tree.roots.values()
    leaves = []
    for node in root.children:
        while node.children:
            (node,) = node.children
        leaves.append(node)
        if len(leaves) == count:
            break
    fresh = np.random.default_rng(2).integers(1 << 18, 1 << 19, (count, PAGE + 1)).astype(np.int32)
    return [np.concatenate([_tokens(leaf), new]) for leaf, new in zip(leaves, fresh, strict=True)]


def _tokens(node: Node) -> Tokens:
    keys = [node.key]
    while node.parent is not None:
        node = node.parent
        keys.append(node.key)
    return np.frombuffer(b"".join(keys[::-1]), np.int32)


def _serve(cache: HybridCache, prompt: Tokens) -> None:
    request = RequestId(1)
    namespace = cache.namespace(request, "")
    holding = cache.admit(request, namespace, prompt, cache.offer(namespace, prompt))
    cache.extend(holding, len(prompt))
    cache.copies_done()
    cache.advance(holding, len(prompt))
    cache.publish(holding, prompt)
    cache.drop(holding)


# ---------------------------------------------------------------- waiting requests


def queue_costs(waiting: int, rounds: int) -> Iterator[tuple[str, float]]:
    """The cost of a plan beside `waiting` requests that cannot be admitted, because no row is free."""
    layout = CacheLayout((Full(), Window(WINDOW)), (4096, 4096), PAGE, 2, 1024)
    scheduler = Scheduler(
        HybridCache(layout),
        SchedulerConfig(max_running=1, chunk_tokens=256, context=1024, first_outputs_expected=32),
    )
    random = np.random.default_rng(1)
    prompts = random.integers(0, 1 << 18, (waiting + 1, 2 * PAGE)).astype(np.int32)
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(waiting + 1):
            scheduler.submit(Request(RequestId(number + 1), prompts[number], 900))
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    yield "bytes a waiting request", (after - before) / waiting
    scheduler.plan()
    yield "plan", _median_us(lambda _: scheduler.plan(), rounds)
    last = RequestId(waiting + 1)

    def again(number: int) -> None:
        scheduler.abort(last)
        scheduler.submit(Request(last, prompts[-1], 900))

    yield "abort and submit the last", _median_us(again, rounds)

"""A trace against the real memory core, one request after the other: how many tokens were found.

The model of all that regret compares. Requests come in the order in which they would begin with every output
token taking `TOKEN_S` and nothing else taking time. Each runs alone: it matches, computes its prompt in
chunks and its outputs, publishes every page that is whole, and ends before the next begins. While it runs
its pages count. Nobody computes a request's last output token.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import Protocol

import numpy as np

from transom.kv.cache import HybridCache, Namespace
from transom.kv.eviction_policy import CachePolicy
from transom.kv.layout import CacheLayout, address_space
from transom.values import RequestId, Tokens
from transom_lab.sim.trace import Trace, followers, samples

TOKEN_S = 0.02
CHUNK = 512
"""Tokens of a prompt computed at a time."""


@dataclass(frozen=True, slots=True)
class Access:
    """What a request reads and leaves. `tokens` are its prompt, of `prompt` tokens, and outputs computed."""

    tokens: Tokens
    prompt: int
    priority: int = 0


class Watcher(Protocol):
    """Told of a cache as requests come and go, to do with it as it likes."""

    def begins(self, number: int) -> None: ...

    def computed(self, cache: HybridCache, namespace: Namespace, tokens: Tokens) -> None:
        """The request that runs has published `tokens` and let go of what it does not read any more."""
        ...

    def ended(self, cache: HybridCache) -> None: ...


class Onlooker:
    """Does nothing: the cache's own policy decides."""

    def begins(self, number: int) -> None:
        pass

    def computed(self, cache: HybridCache, namespace: Namespace, tokens: Tokens) -> None:
        pass

    def ended(self, cache: HybridCache) -> None:
        pass


def accesses(trace: Trace) -> tuple[Access, ...]:
    """In order of their beginnings."""
    return tuple(
        Access(
            np.concatenate([arrival.prompt, arrival.outputs[:-1]]).astype(np.int32),
            len(arrival.prompt),
            arrival.priority,
        )
        for arrival in (trace.arrivals[index] for index in beginnings(trace))
    )


def beginnings(trace: Trace) -> Iterator[int]:
    """Indices of the arrivals by when they begin: at most `concurrency` at once, others as they arrived.

    Several outputs of a request begin one after the other, and it ends with the last.
    """
    after, several = followers(trace.arrivals), samples(trace.arrivals)
    ahead: list[tuple[float, int]] = []
    for index, arrival in enumerate(trace.arrivals):
        if arrival.after is None and arrival.sample_of is None:
            heappush(ahead, (arrival.at, index))
    slots = [0.0] * (trace.concurrency or 0)
    while ahead:
        arrived, index = heappop(ahead)
        begin = max(arrived, heappop(slots)) if slots else arrived
        outputs = [index, *several.get(index, ())]
        ends = [begin + TOKEN_S * len(trace.arrivals[output].outputs) for output in outputs]
        if trace.concurrency:
            heappush(slots, max(ends))
        for output, end in zip(outputs, ends, strict=True):
            yield output
            for follower in after.get(output, ()):
                heappush(ahead, (end + trace.arrivals[follower].at, follower))


def with_memory(layout: CacheLayout, size: int, policy: CachePolicy = CachePolicy.VALUE) -> CacheLayout:
    """The same with `size` bytes that all pools share."""
    pages = address_space(size, layout.page_bytes)
    return replace(layout, budget=size, pages=pages, policy=policy)


def replay(cache: HybridCache, requests: Sequence[Access], watcher: Watcher | None = None) -> list[int]:
    """Tokens found by each request. Raises NoSpace if one does not fit alone."""
    watcher = watcher or Onlooker()
    found = []
    for number, access in enumerate(requests):
        watcher.begins(number)
        found.append(_serve(cache, RequestId(number), access, watcher))
        watcher.ended(cache)
    return found


def _serve(cache: HybridCache, request: RequestId, access: Access, watcher: Watcher) -> int:
    namespace = cache.namespace(request, "")
    prompt = access.tokens[: access.prompt]
    offer = cache.offer(namespace, prompt)
    holding = cache.admit(request, namespace, prompt, offer, priority=access.priority)
    for end in _stops(cache, holding.start, access):
        cache.extend(holding, end)
        cache.copies_done()
        cache.advance(holding, end)
        cache.publish(holding, access.tokens)
        cache.slide(holding)
        watcher.computed(cache, namespace, access.tokens[:end])
    cache.drop(holding)
    return offer.begin.start


def _stops(cache: HybridCache, start: int, access: Access) -> Iterator[int]:
    while start < len(access.tokens):
        end = next_stop(start, access.prompt, len(access.tokens), cache.layout.page_size)
        start = cache.stop(start, end)
        yield start


def next_stop(start: int, prompt: int, length: int, page_size: int) -> int:
    """Where the span from `start` ends: by chunks to the prompt's end, then by pages, as caches count."""
    if start >= prompt:
        return min(length, start - start % page_size + page_size)
    end = min(prompt, start + CHUNK)
    whole = end - end % page_size
    return whole if start < whole and end < prompt else end

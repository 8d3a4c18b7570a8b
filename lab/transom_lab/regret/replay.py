"""Replays a trace on the real cache, one request at a time, and counts the prompt tokens found in it.

Bound, clairvoyant policy and real policies share this serving model, which is simpler than the simulator:

- Requests run one after the other, so that the order of cache accesses does not depend on the policy. The
  order is that of their start times if an output token took `TOKEN_S` and everything else took no time.
- Each request matches its prompt, computes the rest of the prompt in chunks of `CHUNK` tokens and its outputs
  page by page, publishes every whole page, and ends before the next request starts.
- The pages of the running request count as memory.
- The last output token of a request is never computed, as in the engine: no token follows that would read it.
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
from transom_lab.sim.trace import Trace, followers, siblings

TOKEN_S = 0.02
CHUNK = 512


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """One request: `tokens` are its prompt, the first `prompt` of them, and every output but the last."""

    tokens: Tokens
    prompt: int
    priority: int = 0


class ReplayHook(Protocol):
    """Callbacks during a replay. A hook may evict pages: that is how the clairvoyant policy works."""

    def on_start(self, number: int) -> None:
        """Request `number` is about to match its prompt."""
        ...

    def on_span(self, cache: HybridCache, namespace: Namespace, tokens: Tokens) -> None:
        """The running request has computed and published `tokens`, and freed the pages that slid out."""
        ...

    def on_end(self, cache: HybridCache) -> None:
        """The running request has freed all its pages."""
        ...


class NoHook:
    """Does nothing: the eviction policy of the cache decides alone."""

    def on_start(self, number: int) -> None:
        pass

    def on_span(self, cache: HybridCache, namespace: Namespace, tokens: Tokens) -> None:
        pass

    def on_end(self, cache: HybridCache) -> None:
        pass


def replay_requests(trace: Trace) -> tuple[ReplayRequest, ...]:
    """The requests of a trace in the order in which they start."""
    return tuple(
        ReplayRequest(
            np.concatenate([arrival.prompt, arrival.outputs[:-1]]).astype(np.int32),
            len(arrival.prompt),
            arrival.priority,
        )
        for arrival in (trace.arrivals[index] for index in start_order(trace))
    )


def start_order(trace: Trace) -> Iterator[int]:
    """Indices of the arrivals in the order in which they start, at most `trace.concurrency` at once.

    Several outputs of one request (n > 1) start one after the other; the request ends with its longest
    output.
    """
    after, outputs_of = followers(trace.arrivals), siblings(trace.arrivals)
    pending: list[tuple[float, int]] = []
    for index, arrival in enumerate(trace.arrivals):
        if arrival.after is None and arrival.sample_of is None:
            heappush(pending, (arrival.at, index))
    slots = [0.0] * (trace.concurrency or 0)  # when each client is free
    while pending:
        arrived, index = heappop(pending)
        start = max(arrived, heappop(slots)) if slots else arrived
        outputs = [index, *outputs_of.get(index, ())]
        ends = [start + TOKEN_S * len(trace.arrivals[output].outputs) for output in outputs]
        if trace.concurrency:
            heappush(slots, max(ends))
        for output, end in zip(outputs, ends, strict=True):
            yield output
            for follower in after.get(output, ()):
                heappush(pending, (end + trace.arrivals[follower].at, follower))


def with_memory(layout: CacheLayout, size: int, policy: CachePolicy = CachePolicy.VALUE) -> CacheLayout:
    """The same layout with `size` bytes that all pools share, and `policy`."""
    pages = address_space(size, layout.page_bytes)
    return replace(layout, budget=size, pages=pages, policy=policy)


def replay(
    cache: HybridCache, requests: Sequence[ReplayRequest], hook: ReplayHook | None = None
) -> list[int]:
    """Prompt tokens that each request finds in the cache. Raises NoSpace if a request alone does not fit."""
    hook = hook or NoHook()
    found = []
    for number, request in enumerate(requests):
        hook.on_start(number)
        found.append(_serve(cache, RequestId(number), request, hook))
        hook.on_end(cache)
    return found


def _serve(cache: HybridCache, request_id: RequestId, request: ReplayRequest, hook: ReplayHook) -> int:
    namespace = cache.namespace(request_id, "")
    prompt = request.tokens[: request.prompt]
    offer = cache.offer(namespace, prompt)
    holding = cache.admit(request_id, namespace, prompt, offer, priority=request.priority)
    # The calls of one step, in the order of the scheduler's commit and apply.
    for end in _span_ends(cache, holding.start, request):
        cache.extend(holding, end)
        cache.copies_done()
        cache.advance(holding, end)
        cache.publish(holding, request.tokens)
        cache.slide(holding)
        hook.on_span(cache, namespace, request.tokens[:end])
    cache.drop(holding)
    return offer.begin.start


def _span_ends(cache: HybridCache, start: int, request: ReplayRequest) -> Iterator[int]:
    while start < len(request.tokens):
        end = span_end(start, request.prompt, len(request.tokens), cache.layout.page_size)
        start = cache.stop(start, end)
        yield start


def span_end(start: int, prompt: int, length: int, page_size: int) -> int:
    """Where the span from `start` ends: chunks up to the end of the prompt, then one page of outputs at a
    time.

    Outputs are computed token by token in the engine, but the cache changes only at page boundaries.
    """
    if start >= prompt:
        return min(length, start - start % page_size + page_size)
    end = min(prompt, start + CHUNK)
    # A chunk that does not end the prompt ends at a page boundary, so that all its pages can be published.
    whole = end - end % page_size
    return whole if start < whole and end < prompt else end

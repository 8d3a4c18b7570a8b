"""A runner without a model: a page holds the tokens it was computed from, and every read is looked at."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transom.kv.cache import HybridCache
from transom.kv.page_rules import first_needed
from transom.steps import SpanWork, StepResult, StepWork
from transom.values import RequestId, SampledToken

NextToken = Callable[[RequestId, int], int]
"""Which token a request gets at a position."""

Mask = NDArray[np.bool_]
Ints = NDArray[np.integer[Any]]


class TokenRunner:
    """Owns what every layer has stored, by page and slot. Mutable.

    A slot holds the token it is of, its negative where it was computed from keys that were missing or wrong
    themselves. A query that reads another token than its request has there is a failed assertion.
    """

    def __init__(self, cache: HybridCache, next_token: NextToken) -> None:
        layout = cache.layout
        self.layers = layout.layers or tuple(range(len(layout.components)))
        self.known: dict[RequestId, list[int]] = {}
        self.steps: list[StepWork] = []
        self.exact: list[Mask] = []
        """Of the last span, by layer: tokens whose keys are those of a cold run. Last, their outputs."""
        self._cache = cache
        self._next_token = next_token
        self._stored = [
            np.zeros((layout.pages[component] + 1, layout.page_size), np.int64) for component in self.layers
        ]

    def run(self, work: StepWork) -> StepResult:
        self.steps.append(work)
        for copy in work.copies:
            for layer, component in enumerate(self.layers):
                if component == copy.component:
                    pages = self._stored[layer]
                    pages[copy.target, : copy.tokens] = pages[copy.source, : copy.tokens]
        return StepResult(tuple([self._compute(span) for span in work.spans]))

    def page(self, component: int, page: int) -> list[int]:
        """What the last layer of a component has stored in a page."""
        layer = max(i for i, kind in enumerate(self.layers) if kind == component)
        return [int(token) for token in self._stored[layer][page]]

    def _compute(self, span: SpanWork) -> SampledToken | None:
        exact = np.ones(len(span.tokens), np.bool_)
        self.exact = []
        for layer in range(len(self.layers)):
            self.exact.append(exact)
            self._store(span, layer, exact)
            exact = exact & self._reads_exact(span, layer)
        self.exact.append(exact)
        if span.sampling is None:
            return None
        known = self.known[span.request]
        assert span.end == len(known) and exact[-1], (span, exact)
        known.append(self._next_token(span.request, span.end))
        return SampledToken(known[-1], 0.0)

    def _rooted(self, layer: int) -> bool:
        return self._cache.rules[self.layers[layer]].keeps_all

    def _slots(self, span: SpanWork, layer: int, start: int, end: int) -> tuple[Ints, Ints]:
        positions = np.arange(start, end)
        size = self._cache.layout.page_size
        pages = self._cache.page_tables[self.layers[layer]][span.row, positions // size]
        assert (pages > 0).all(), (span, layer, pages)
        return pages, positions % size

    def _store(self, span: SpanWork, layer: int, exact: Mask) -> None:
        first = max(span.start, span.store_from) if self._rooted(layer) else span.start
        if first < span.end:
            tokens = np.array(self.known[span.request][first : span.end])
            where = self._slots(span, layer, first, span.end)
            self._stored[layer][where] = np.where(exact[first - span.start :], tokens, -tokens)

    def _reads_exact(self, span: SpanWork, layer: int) -> Mask:
        """Of every token of the span: whether all it reads in this layer is there and exact."""
        component = self._cache.layout.components[self.layers[layer]]
        clip = 0 if self._rooted(layer) else span.clip
        reads = []
        for position in range(span.start, span.end):
            first = first_needed(component, position)
            low = max(first, clip)
            found = self._stored[layer][self._slots(span, layer, low, position + 1)]
            right = self.known[span.request][low : position + 1]
            assert np.abs(found).tolist() == right, (span, layer, position, found, right)
            reads.append(first >= clip and bool((found > 0).all()))
        return np.array(reads)

"""A runner with layers, for worlds with repairs: it follows which keys are exact, layer by layer.

What it stores for a token is the digest of all tokens up to it, marked where it was computed from keys that
were missing or themselves inexact. A mark that reaches a token beyond the full pages, or a digest that is
another's, is a failed assertion.
"""

import numpy as np
from numpy.typing import NDArray
from tests.sched.world import MODULUS, ContentRunner, RunnerBroke, digest, next_token

from transom.kv.cache import HybridCache
from transom.kv.component_specs import From
from transom.steps import SpanWork, StepResult, StepWork
from transom.values import SampledToken

MARK = 2 * MODULUS
Mask = NDArray[np.bool_]


class LayeredRunner(ContentRunner):
    """Stores digests by (layer, page, slot)."""

    def __init__(self, cache: HybridCache) -> None:
        super().__init__(cache)
        self.layers = cache.layout.layers
        self.stored = [
            np.full((cache.layout.pages[component] + 1, self.page_size), -1, np.int64)
            for component in self.layers
        ]
        self.inexact_tokens = 0

    def run(self, work: StepWork) -> StepResult:
        self.steps.append(work)
        if self.breaks_next:
            self.breaks_next = False
            raise RunnerBroke("as told")
        for copy in work.copies:
            for layer, component in enumerate(self.layers):
                if component == copy.component:
                    pages = self.stored[layer]
                    pages[copy.target, : copy.tokens] = pages[copy.source, : copy.tokens]
        for discard in work.discards:
            for layer, component in enumerate(self.layers):
                if component == discard.component:
                    self.stored[layer][list(discard.pages)] = -9
        for span in work.spans:
            self._check_tokens(span)
            self._compute(span)
        return StepResult(tuple(self._choose(span) for span in work.spans))

    def _compute(self, span: SpanWork) -> None:
        exact = np.ones(len(span.tokens), np.bool_)
        for layer, component in enumerate(self.layers):
            self._store(span, layer, exact)
            keeps_all = self._keeps_everything(component)
            exact = exact & self._reads_exact(span, layer, 0 if keeps_all else span.clip)
        self.inexact_tokens += int((~exact).sum())
        first = max(0, span.store_from - span.start) if span.clip else 0
        assert exact[first:].all(), (span, exact)

    def _keeps_everything(self, component: int) -> bool:
        need = self.cache.layout.components[component].needed(self.cache.layout.context)
        return isinstance(need, From) and need.start == 0

    def _store(self, span: SpanWork, layer: int, exact: Mask) -> None:
        component = self.layers[layer]
        first = max(span.start, span.store_from) if self._keeps_everything(component) else span.start
        if first >= span.end:
            return
        pages, offsets = self._slots(component, span.row, first, span.end)
        right = np.array(self.truth[span.request][first : span.end])
        self.stored[layer][pages, offsets] = np.where(exact[first - span.start :], right, right + MARK)

    def _reads_exact(self, span: SpanWork, layer: int, clip: int) -> Mask:
        """Of every token of the span: whether its keys are all there, and none is marked."""
        component = self.layers[layer]
        needs = [self.cache.layout.components[component].needed(t) for t in range(span.start, span.end)]
        firsts = [need.start for need in needs if isinstance(need, From)]
        low = max(clip, firsts[0])
        pages, offsets = self._slots(component, span.row, low, span.end)
        found = self.stored[layer][pages, offsets]
        right = np.array(self.truth[span.request][low : span.end])
        assert ((found == right) | (found == right + MARK)).all(), (span, layer, low, found, right)
        bad = np.concatenate([[0], np.cumsum(found != right)])
        ends = range(span.start + 1, span.end + 1)
        return np.array(
            [f >= clip and bad[e - low] == bad[max(f, low) - low] for f, e in zip(firsts, ends, strict=True)]
        )

    def _choose(self, span: SpanWork) -> SampledToken | None:
        known = self.known[span.request]
        if span.sampling is None:
            return None
        assert span.end == len(known), (span, len(known))
        token = next_token(self.truth[span.request][span.end - 1])
        known.append(token)
        self.truth[span.request].append(digest(self.truth[span.request][-1], token))
        return SampledToken(token, -float(token))

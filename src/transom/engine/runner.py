"""The runner that is a model: copies, then one forward, then tokens are chosen and scored."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from transom.engine.batch import assemble, choices, chosen_from
from transom.models.decoder import head, hidden
from transom.models.spec import Model
from transom.ops.protocol import F32, I32, Ops
from transom.ops.store import KVStore
from transom.steps import SpanWork, StepResult, StepWork
from transom.values import Alternative, SampledToken

SCORED_ROWS = 64
"""Rows of logits scored at a time: of a vocabulary of 262,144 they are 64 MB, those of a prompt gigabytes."""


class ModelRunner:
    """Writes the KV bytes. `model` may be replaced between two steps: mutable.

    Per component: the cache's row table, int32 `[rows, pages]`, read where it lies, and whether it is rooted,
    that is never slides.
    """

    def __init__(
        self, ops: Ops, model: Model, store: KVStore, tables: Sequence[I32], keeps_all: Sequence[bool]
    ) -> None:
        self.model = model
        self._ops = ops
        self._store = store
        self._rooted = tuple(keeps_all)
        self._kv = tuple(store.paged(component, table) for component, table in enumerate(tables))

    def run(self, work: StepWork) -> StepResult:
        began = time.perf_counter()
        result = self.results(work, self.hidden(work))
        return replace(result, seconds=time.perf_counter() - began)

    def hidden(self, work: StepWork) -> F32:
        """The step, up to the last layer: a row for each token of which logits are wanted."""
        for copy in work.copies:
            self._ops.copy_pages(self._kv[copy.component], copy.source, copy.target, copy.tokens)
        for discard in work.discards:
            self._store.discard(discard.component, discard.pages)
        return hidden(self._ops, self.model, self._kv, assemble(work, self._rooted))

    def results(self, work: StepWork, rows: F32) -> StepResult:
        """The tokens, from what `hidden` returned."""
        if all(span.scoring is None for span in work.spans):
            choices, siblings = self._chosen(work, rows)
            return StepResult(choices, siblings=siblings)
        chosen = chosen_from(work)
        choices, siblings = self._chosen(work, rows[chosen])
        return StepResult(choices, siblings=siblings, scores=self._scores(work, rows[~chosen]))

    # ------------------------------------------------------------ choose

    def _chosen(
        self, work: StepWork, rows: F32
    ) -> tuple[tuple[SampledToken | None, ...], tuple[tuple[SampledToken, ...], ...]]:
        """A token for each span that samples; and for its siblings, if there are any in the step."""
        if len(rows) == 0:
            return (None,) * len(work.spans), ()
        found = self._choices(work, head(self._ops, self.model, rows))
        if not any(span.siblings for span in work.spans):
            return tuple(None if span.sampling is None else next(found) for span in work.spans), ()
        choices: list[SampledToken | None] = []
        siblings: list[tuple[SampledToken, ...]] = []
        for span in work.spans:
            choices.append(None if span.sampling is None else next(found))
            siblings.append(tuple(next(found) for _ in span.siblings))
        return tuple(choices), tuple(siblings)

    def _choices(self, work: StepWork, logits: F32) -> Iterator[SampledToken]:
        """Of every span that samples, one for itself, one for each sibling."""
        spans = [span for span in work.spans if span.sampling is not None]
        outputs = [1 + len(span.siblings) for span in spans]
        if len(logits) < sum(outputs):
            logits = np.repeat(logits, outputs, axis=0)
        tokens, logprobs = self._ops.sample(logits, choices(work))
        if not any(span.top for span in spans):
            return map(SampledToken, tokens.tolist(), logprobs.tolist())
        tops = [span.top for span, count in zip(spans, outputs, strict=True) for _ in range(count)]
        return iter(self._scored(logits, tokens, tops))

    # ------------------------------------------------------------ score

    def _scores(self, work: StepWork, rows: F32) -> tuple[tuple[SampledToken, ...], ...]:
        """Of each span, its scored tokens."""
        tokens = np.concatenate([_scored_tokens(span) for span in work.spans], dtype=np.int32)
        tops = [span.top for span in work.spans for _ in _scored_tokens(span)]
        found: list[SampledToken] = []
        for start in range(0, len(rows), SCORED_ROWS):
            part = slice(start, start + SCORED_ROWS)
            found += self._scored(head(self._ops, self.model, rows[part]), tokens[part], tops[part])
        scores = iter(found)
        return tuple(tuple(next(scores) for _ in _scored_tokens(span)) for span in work.spans)

    def _scored(self, logits: F32, tokens: I32, tops: Sequence[int]) -> list[SampledToken]:
        """`tokens`, each by a row of logits, with as many alternatives as `tops` says."""
        logprobs, best, best_logprobs = self._ops.logprobs(logits, tokens, max(tops))
        alternatives = [
            tuple(map(Alternative, best[row, :top].tolist(), best_logprobs[row, :top].tolist()))
            for row, top in enumerate(tops)
        ]
        return list(map(SampledToken, tokens.tolist(), logprobs.tolist(), alternatives))


def _scored_tokens(span: SpanWork) -> I32:
    return span.scoring.tokens if span.scoring is not None else np.empty(0, np.int32)

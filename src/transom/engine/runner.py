"""The model runner: copies pages, runs one forward pass, then samples tokens and reads prompt logprobs."""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from math import isnan

import numpy as np

from transom.engine.batch import assemble, sampled_rows, sampling_rows
from transom.engine.logit_rules import EVERY, apply_rules
from transom.engine.masks import Masks, StepMasks
from transom.models.decoder import head, hidden
from transom.models.spec import Model
from transom.ops.protocol import F32, I32, Ops
from transom.ops.store import KVStore
from transom.steps import NOT_FINITE, RuledOutput, SpanFailure, SpanWork, StepResult, StepWork
from transom.values import Alternative, SampledToken

PROMPT_LOGPROB_ROWS = 64
"""Rows of logits computed at a time for prompt logprobs.

64 rows of a vocabulary of 262,144 take 64 MB; the rows of a whole prompt would take gigabytes.
"""


class ModelRunner:
    """Writes the KV bytes. Mutable: `model` may be replaced between two steps.

    `tables` and `clips` have one entry per component: the cache's page table, int32 `[rows, pages]`, read in
    place, and `PageRule.clips`.
    """

    def __init__(
        self, ops: Ops, model: Model, store: KVStore, tables: Sequence[I32], clips: Sequence[bool]
    ) -> None:
        self.model = model
        self.masks: Masks | None = None
        """Set where outputs can be constrained."""
        self._ops = ops
        self._store = store
        self._clips = tuple(clips)
        self._kv = tuple(store.paged(component, table) for component, table in enumerate(tables))

    def run(self, work: StepWork) -> StepResult:
        started = time.perf_counter()
        # Masks follow from tokens that are known, so they are computed beside the forward pass.
        masks = self.begin_masks(work)
        result = self.results(work, self.hidden(work), masks)
        return replace(result, seconds=time.perf_counter() - started)

    # The parts of `run` are public so that tests can look at the hidden states between them.

    def begin_masks(self, work: StepWork) -> "Future[StepMasks] | None":
        if self.masks is None:
            assert all(span.constraint is None for span in work.spans), "an engine without masks"
            return None
        return self.masks.begin(work)

    def hidden(self, work: StepWork) -> F32:
        """Runs the step up to the last layer: one row for each token that needs logits."""
        for copy in work.copies:
            self._ops.copy_pages(self._kv[copy.component], copy.source, copy.target, copy.tokens)
        for discard in work.discards:
            self._store.discard(discard.component, discard.pages)
        return hidden(self._ops, self.model, self._kv, assemble(work, self._clips))

    def results(self, work: StepWork, rows: F32, masks: "Future[StepMasks] | None" = None) -> StepResult:
        """Samples tokens and reads prompt logprobs from the rows that `hidden` returned."""
        samples = None
        if any(span.prompt_logprobs is not None for span in work.spans):
            samples = sampled_rows(work)
        masks = masks or self.begin_masks(work)
        constrained = None if masks is None else masks.result()
        sampled, siblings = self._sample(work, rows if samples is None else rows[samples], constrained)
        result = StepResult(
            sampled,
            siblings=siblings,
            prompt_logprobs=() if samples is None else self._prompt_logprobs(work, rows[~samples]),
        )
        failures = _not_finite(result)
        if constrained is not None:
            failures |= constrained.failures
        return replace(result, failures=failures)

    # ------------------------------------------------------------ sample

    def _sample(
        self, work: StepWork, rows: F32, masks: StepMasks | None
    ) -> tuple[tuple[SampledToken | None, ...], tuple[tuple[SampledToken, ...], ...]]:
        """A token for each span that samples; tokens for siblings if any span of the step has some."""
        if len(rows) == 0:
            return (None,) * len(work.spans), ()
        logits = head(self._ops, self.model, rows)
        if masks is not None:
            masks.apply(logits)
        tokens = self._sampled_tokens(work, logits)
        if not any(span.siblings for span in work.spans):
            return tuple(None if span.sampling is None else next(tokens) for span in work.spans), ()
        sampled: list[SampledToken | None] = []
        siblings: list[tuple[SampledToken, ...]] = []
        for span in work.spans:
            sampled.append(None if span.sampling is None else next(tokens))
            siblings.append(tuple(next(tokens) for _ in span.siblings))
        return tuple(sampled), tuple(siblings)

    def _sampled_tokens(self, work: StepWork, logits: F32) -> Iterator[SampledToken]:
        """For each span that samples: its own token, then one per sibling."""
        spans = [span for span in work.spans if span.sampling is not None]
        outputs = [1 + len(span.siblings) for span in spans]
        if len(logits) < sum(outputs):
            logits = np.repeat(logits, outputs, axis=0)
        ruled = _ruled_rows(spans, outputs)
        changed = [apply_rules(logits[row], output) for row, output in ruled.items()]
        tokens, logprobs = self._ops.sample(logits, sampling_rows(work))
        if ruled:
            # Log-probabilities are the model's own.
            for one in changed:
                one.undo()
            rows = EVERY if len(ruled) == len(logits) else list(ruled)
            own = self._ops.logprobs(logits[rows], tokens[rows], 0)[0]
            # Rules can make finite logits infinite: such a row has no distribution either.
            logprobs[rows] = np.where(np.isnan(logprobs[rows]), np.float32(np.nan), own)
        if not any(span.top for span in spans):
            return map(SampledToken, tokens.tolist(), logprobs.tolist())
        tops = [span.top for span, count in zip(spans, outputs, strict=True) for _ in range(count)]
        found = self._with_logprobs(logits, tokens, tops)
        for row in np.flatnonzero(np.isnan(logprobs)).tolist():
            found[row] = found[row]._replace(logprob=np.nan)
        return iter(found)

    # ------------------------------------------------------------ prompt logprobs

    def _prompt_logprobs(self, work: StepWork, rows: F32) -> tuple[tuple[SampledToken, ...], ...]:
        """For each span, its prompt tokens with logprobs. `rows` are the hidden states that predict them."""
        tokens = np.concatenate([_prompt_tokens(span) for span in work.spans], dtype=np.int32)
        tops = [span.top for span in work.spans for _ in _prompt_tokens(span)]
        found: list[SampledToken] = []
        for start in range(0, len(rows), PROMPT_LOGPROB_ROWS):
            part = slice(start, start + PROMPT_LOGPROB_ROWS)
            logits = head(self._ops, self.model, rows[part])
            found += self._with_logprobs(logits, tokens[part], tops[part])
        remaining = iter(found)
        return tuple(tuple(next(remaining) for _ in _prompt_tokens(span)) for span in work.spans)

    def _with_logprobs(self, logits: F32, tokens: I32, tops: Sequence[int]) -> list[SampledToken]:
        """Each of `tokens` with its logprob in its row of logits and as many alternatives as `tops` says."""
        logprobs, best, best_logprobs = self._ops.logprobs(logits, tokens, max(tops))
        alternatives = [
            tuple(map(Alternative, best[row, :top].tolist(), best_logprobs[row, :top].tolist()))
            for row, top in enumerate(tops)
        ]
        return list(map(SampledToken, tokens.tolist(), logprobs.tolist(), alternatives))


def _not_finite(result: StepResult) -> dict[int, SpanFailure]:
    """The spans with a row of logits that has no distribution: backends mark it with the logprob NaN."""
    wrong = {number for number, token in enumerate(result.sampled) if token and isnan(token.logprob)}
    for tokens_of_spans in (result.siblings, result.prompt_logprobs):
        for number, tokens in enumerate(tokens_of_spans):
            if any(isnan(token.logprob) for token in tokens):
                wrong.add(number)
    return dict.fromkeys(wrong, NOT_FINITE)


def _ruled_rows(spans: Sequence[SpanWork], outputs: Sequence[int]) -> dict[int, RuledOutput]:
    """By row of logits: the outputs with logit rules. `outputs[i]` rows in turn belong to span i."""
    rows: dict[int, RuledOutput] = {}
    row = 0
    for span, count in zip(spans, outputs, strict=True):
        if span.ruled is not None:
            # Siblings sample their first tokens: so far all have the same outputs, that is none.
            rows |= dict.fromkeys(range(row, row + count), span.ruled)
        row += count
    return rows


def _prompt_tokens(span: SpanWork) -> I32:
    return span.prompt_logprobs.tokens if span.prompt_logprobs is not None else np.empty(0, np.int32)

"""The runner that is a model: copies, then one forward, then one choice per span that samples."""

import time
from collections.abc import Sequence

from transom.engine.batch import assemble, choices
from transom.models.decoder import forward
from transom.models.spec import Model
from transom.ops.protocol import F32, I32, Ops
from transom.ops.store import KVStore
from transom.values import Choice, StepResult, StepWork


class ModelRunner:
    """Writes the KV bytes.

    Per component: the cache's row table, int32 `[rows, pages]`, read where it lies, and whether it is rooted,
    that is never slides.
    """

    def __init__(
        self, ops: Ops, model: Model, store: KVStore, tables: Sequence[I32], rooted: Sequence[bool]
    ) -> None:
        self._ops = ops
        self._model = model
        self._store = store
        self._rooted = tuple(rooted)
        self._kv = tuple(store.paged(component, table) for component, table in enumerate(tables))

    def run(self, work: StepWork) -> StepResult:
        began = time.perf_counter()
        chosen = self._chosen(work)
        return StepResult(chosen, time.perf_counter() - began)

    def _chosen(self, work: StepWork) -> tuple[Choice | None, ...]:
        logits = self.logits(work)
        if len(logits) == 0:
            return (None,) * len(work.spans)
        tokens, logprobs = self._ops.choose(logits, choices(work))
        chosen = iter(map(Choice, tokens.tolist(), logprobs.tolist()))
        return tuple(None if span.sampling is None else next(chosen) for span in work.spans)

    def logits(self, work: StepWork) -> F32:
        """The step, up to the logits `[spans that sample, vocabulary]`."""
        for copy in work.copies:
            self._ops.copy_pages(self._kv[copy.component], copy.source, copy.target, copy.tokens)
        for discard in work.discards:
            self._store.discard(discard.component, discard.pages)
        return forward(self._ops, self._model, self._kv, assemble(work, self._rooted))

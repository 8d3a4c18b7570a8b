"""From a step's spans to the arrays a forward takes."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from transom.models.decoder import Batch
from transom.ops.protocol import ChoiceRows, SpanRows
from transom.values import SpanWork, StepWork


def assemble(work: StepWork, rooted: Sequence[bool]) -> Batch:
    """All spans end to end; logits are wanted of the last token of every span that samples.

    `rooted` says of every component whether it keeps everything. One that does has the keys of tokens before
    `store_from`; one that slides has none before `clip`.
    """
    spans = work.spans
    lengths = np.fromiter((len(span.tokens) for span in spans), np.int32, len(spans))
    starts = np.fromiter((span.start for span in spans), np.int32, len(spans))
    rows = np.fromiter((span.row for span in spans), np.int32, len(spans))
    offsets = np.zeros(len(spans) + 1, dtype=np.int32)
    np.cumsum(lengths, out=offsets[1:])
    within = np.arange(offsets[-1], dtype=np.int32) - np.repeat(offsets[:-1], lengths)
    positions = np.repeat(starts, lengths) + within
    samples = np.fromiter((span.sampling is not None for span in spans), np.bool_, len(spans))
    whole = SpanRows(rows, starts, offsets, positions, np.repeat(rows, lengths))
    rooted_spans, sliding_spans = _storing_less(spans, whole), _clipped(spans, whole)
    return Batch(
        tokens=np.concatenate([span.tokens for span in spans], dtype=np.int32),
        spans=tuple(rooted_spans if keeps_all else sliding_spans for keeps_all in rooted),
        wanted=(offsets[1:] - 1)[samples],
    )


def _storing_less(spans: Sequence[SpanWork], rows: SpanRows) -> SpanRows:
    if all(span.store_from <= span.start for span in spans):
        return rows
    first = np.fromiter((span.store_from for span in spans), np.int32, len(spans))
    return replace(rows, stored=rows.positions >= np.repeat(first, np.diff(rows.offsets)))


def _clipped(spans: Sequence[SpanWork], rows: SpanRows) -> SpanRows:
    if not any(span.clip for span in spans):
        return rows
    return replace(rows, clips=np.fromiter((span.clip for span in spans), np.int32, len(spans)))


def choices(work: StepWork) -> ChoiceRows:
    """How to choose, one row per span that samples. The counter is the position of the token chosen."""
    sampled = [(span, span.sampling) for span in work.spans if span.sampling is not None]
    return ChoiceRows(
        temperature=_floats([how.temperature for _, how in sampled]),
        top_k=np.array([how.top_k for _, how in sampled], dtype=np.int32),
        top_p=_floats([how.top_p for _, how in sampled]),
        min_p=_floats([how.min_p for _, how in sampled]),
        seed=np.array([how.seed & (2**64 - 1) for _, how in sampled], dtype=np.uint64),
        position=np.array([span.end for span, _ in sampled], dtype=np.int32),
    )


def _floats(values: list[float]) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.array(values, dtype=np.float32)

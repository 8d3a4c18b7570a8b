"""From a step's spans to the arrays a forward takes."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from transom.models.decoder import Batch
from transom.ops.protocol import I32, SamplingRows, SpanRows
from transom.steps import SpanWork, StepWork


def assemble(work: StepWork, keeps_all: Sequence[bool]) -> Batch:
    """All spans end to end; of each, logits are wanted where it scores, and of the last token if it samples.

    `keeps_all` says of every component whether it keeps everything. One that does has the keys before
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
    whole = SpanRows(rows, starts, offsets, positions, np.repeat(rows, lengths))
    rooted_spans, sliding_spans = _storing_less(spans, whole), _clipped(spans, whole)
    return Batch(
        tokens=np.concatenate([span.tokens for span in spans], dtype=np.int32),
        spans=tuple(rooted_spans if keeps_all else sliding_spans for keeps_all in keeps_all),
        wanted=_wanted(spans, offsets),
    )


def _wanted(spans: Sequence[SpanWork], offsets: I32) -> I32:
    samples = np.fromiter((span.sampling is not None for span in spans), np.bool_, len(spans))
    lasts = offsets[1:] - 1
    if all(span.scoring is None for span in spans):
        return lasts[samples]
    wanted: list[NDArray[np.int32]] = []
    for number, span in enumerate(spans):
        if span.scoring is not None:
            first = offsets[number] - span.start
            wanted.append(np.arange(first + span.scoring.start, first + span.scoring.end, dtype=np.int32))
        wanted.append(lasts[number : number + int(samples[number])])
    return np.concatenate(wanted, dtype=np.int32)


def chosen_from(work: StepWork) -> NDArray[np.bool_]:
    """Of every row of logits wanted, in order, whether a token is chosen from it; else one is scored."""
    rows: list[bool] = []
    for span in work.spans:
        if span.scoring is not None:
            rows += [False] * len(span.scoring.tokens)
        if span.sampling is not None:
            rows.append(True)
    return np.array(rows, dtype=np.bool_)


def _storing_less(spans: Sequence[SpanWork], rows: SpanRows) -> SpanRows:
    if all(span.store_from <= span.start for span in spans):
        return rows
    first = np.fromiter((span.store_from for span in spans), np.int32, len(spans))
    return replace(rows, stored=rows.positions >= np.repeat(first, np.diff(rows.offsets)))


def _clipped(spans: Sequence[SpanWork], rows: SpanRows) -> SpanRows:
    if not any(span.clip for span in spans):
        return rows
    return replace(rows, clips=np.fromiter((span.clip for span in spans), np.int32, len(spans)))


def choices(work: StepWork) -> SamplingRows:
    """How to choose, one row per token: of each span that samples, then of its siblings.

    The counter is the position of the token chosen.
    """
    asked = [
        (span.end, how)
        for span in work.spans
        if span.sampling is not None
        for how in (span.sampling, *span.siblings)
    ]
    return SamplingRows(
        temperature=_floats([how.temperature for _, how in asked]),
        top_k=np.array([how.top_k for _, how in asked], dtype=np.int32),
        top_p=_floats([how.top_p for _, how in asked]),
        min_p=_floats([how.min_p for _, how in asked]),
        seed=np.array([how.seed & (2**64 - 1) for _, how in asked], dtype=np.uint64),
        position=np.array([end for end, _ in asked], dtype=np.int32),
    )


def _floats(values: list[float]) -> NDArray[np.float32]:
    return np.array(values, dtype=np.float32)

"""From a step's spans to the arrays a forward takes."""

import numpy as np

from transom.models.decoder import Batch
from transom.ops.protocol import ChoiceRows, SpanRows
from transom.values import StepWork


def assemble(work: StepWork) -> Batch:
    """All spans end to end; logits are wanted of the last token of every span that samples."""
    spans = work.spans
    lengths = np.fromiter((len(span.tokens) for span in spans), np.int32, len(spans))
    starts = np.fromiter((span.start for span in spans), np.int32, len(spans))
    rows = np.fromiter((span.row for span in spans), np.int32, len(spans))
    offsets = np.zeros(len(spans) + 1, dtype=np.int32)
    np.cumsum(lengths, out=offsets[1:])
    within = np.arange(offsets[-1], dtype=np.int32) - np.repeat(offsets[:-1], lengths)
    samples = np.fromiter((span.sampling is not None for span in spans), np.bool_, len(spans))
    return Batch(
        tokens=np.concatenate([span.tokens for span in spans], dtype=np.int32),
        spans=SpanRows(rows, starts, offsets, np.repeat(starts, lengths) + within, np.repeat(rows, lengths)),
        wanted=(offsets[1:] - 1)[samples],
    )


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

"""Turns the spans of a step into the arrays of one forward pass."""

from collections.abc import Sequence
from dataclasses import fields, replace
from operator import attrgetter
from typing import Any, get_args, get_type_hints

import numpy as np
from numpy.typing import NDArray

from transom.models.decoder import Batch
from transom.ops.protocol import I32, SamplingRows, SpanRows
from transom.steps import SpanWork, StepWork
from transom.values import Sampling

SEED_MASK = 2**64 - 1
"""Negative seeds are taken modulo 2**64."""


def assemble(work: StepWork, clips: Sequence[bool]) -> Batch:
    """The batch of a step: the tokens of all spans, concatenated.

    `clips` has one entry per component, see `PageRule.clips`: whether it has no keys below a span's `clip`.
    Otherwise it already has the keys and values below `store_from`.
    """
    spans = work.spans
    lengths = np.fromiter((len(span.tokens) for span in spans), np.int32, len(spans))
    starts = np.fromiter((span.start for span in spans), np.int32, len(spans))
    rows = np.fromiter((span.row for span in spans), np.int32, len(spans))
    offsets = np.zeros(len(spans) + 1, dtype=np.int32)
    np.cumsum(lengths, out=offsets[1:])
    # No loop over tokens: index of each token in its span, plus where the span starts.
    within = np.arange(offsets[-1], dtype=np.int32) - np.repeat(offsets[:-1], lengths)
    positions = np.repeat(starts, lengths) + within
    plain = SpanRows(rows, starts, offsets, positions, np.repeat(rows, lengths))
    storing, clipped = _without_stored(spans, plain), _with_clips(spans, plain)
    return Batch(
        tokens=np.concatenate([span.tokens for span in spans], dtype=np.int32),
        spans=tuple(clipped if clip else storing for clip in clips),
        wanted=_logit_rows(spans, offsets),
    )


def _logit_rows(spans: Sequence[SpanWork], offsets: I32) -> I32:
    """Indices of the tokens that need logits.

    In each span: the positions that give prompt logprobs, then the last token if the span samples. The same
    token may appear twice, once for each purpose.
    """
    samples = np.fromiter((span.sampling is not None for span in spans), np.bool_, len(spans))
    lasts = offsets[1:] - 1
    if all(span.prompt_logprobs is None for span in spans):
        return lasts[samples]
    indices: list[NDArray[np.int32]] = []
    for number, span in enumerate(spans):
        if span.prompt_logprobs is not None:
            origin = offsets[number] - span.start  # index of position 0, were it in the batch
            start, end = span.prompt_logprobs.start, span.prompt_logprobs.end
            indices.append(np.arange(origin + start, origin + end, dtype=np.int32))
        indices.append(lasts[number : number + int(samples[number])])
    return np.concatenate(indices, dtype=np.int32)


def sampled_rows(work: StepWork) -> NDArray[np.bool_]:
    """Mask over the rows of logits: True to sample a token, False to read a prompt logprob."""
    rows: list[bool] = []
    for span in work.spans:
        if span.prompt_logprobs is not None:
            rows += [False] * len(span.prompt_logprobs.tokens)
        if span.sampling is not None:
            rows.append(True)
    return np.array(rows, dtype=np.bool_)


def _without_stored(spans: Sequence[SpanWork], rows: SpanRows) -> SpanRows:
    """Marks the tokens to store. The mask is left out in the usual case, in which every token is stored."""
    if all(span.store_from <= span.start for span in spans):
        return rows
    store_from = np.fromiter((span.store_from for span in spans), np.int32, len(spans))
    return replace(rows, stored=rows.positions >= np.repeat(store_from, np.diff(rows.offsets)))


def _with_clips(spans: Sequence[SpanWork], rows: SpanRows) -> SpanRows:
    """Adds the first readable position of each span, unless every span reads from position 0."""
    if not any(span.clip for span in spans):
        return rows
    return replace(rows, clips=np.fromiter((span.clip for span in spans), np.int32, len(spans)))


def sampling_rows(work: StepWork) -> SamplingRows:
    """Sampling parameters, one row per token: for each span that samples, its own, then its siblings'.

    The random counter is the position of the sampled token: a sample depends on seed and position, never on
    the batch that it was computed in.
    """
    samplings: list[Sampling] = []
    positions: list[int] = []
    for span in work.spans:
        if span.sampling is not None:
            outputs = (span.sampling, *span.siblings)
            samplings += outputs
            positions += [span.end] * len(outputs)
    return SamplingRows(
        position=np.array(positions, dtype=np.int32),
        **{name: _column(name, dtype, samplings) for name, dtype in _PARAMETERS},
    )


def _element_type(hint: object) -> type[np.generic]:
    """`np.float32` of `NDArray[np.float32]`."""
    _, dtype = get_args(hint)
    element: type[np.generic] = get_args(dtype)[0]
    return element


_PARAMETERS = tuple(
    (field.name, _element_type(get_type_hints(SamplingRows)[field.name])) for field in fields(Sampling)
)
"""Each sampling parameter with the type of its column: a new parameter needs no change here."""


def _column(name: str, dtype: type[np.generic], samplings: Sequence[Sampling]) -> NDArray[Any]:
    values = list(map(attrgetter(name), samplings))
    if name == "seed":
        # Seeds are unsigned on this side. Negative ones are accepted because other servers accept them.
        values = [seed & SEED_MASK for seed in values]
    return np.array(values, dtype=dtype)

"""Choosing a token, in numpy: cuts and draw in the one order that `Ops.sample` fixes."""

import numpy as np
from numpy.typing import NDArray

from transom.ops.elementary import exp, folded_sum, log64
from transom.ops.philox import uniform
from transom.ops.protocol import F32, SamplingRows


@np.errstate(over="ignore", under="ignore", invalid="ignore", divide="ignore")
def sample_row(logits: F32, sampling: SamplingRows, row: int) -> tuple[int, np.float32]:
    """Token and log-probability for one row of logits, sampled as `sampling` says for row `row`."""
    largest = logits.max()
    if not np.isfinite(largest):  # NaN or +inf somewhere, or -inf everywhere
        return 0, np.float32(np.nan)
    token = int(np.argmax(logits)) if sampling.temperature[row] == 0 else _draw(logits, sampling, row)
    return token, _logprobs(logits - largest, [token])[0]


@np.errstate(over="ignore", under="ignore", invalid="ignore")
def logprobs_row(logits: F32, token: int, top: int) -> tuple[list[int], list[np.float32]]:
    """The `top` most probable tokens; the log-probabilities of `token`, and of them."""
    largest = logits.max()
    if not np.isfinite(largest):
        return [0] * top, [np.float32(np.nan)] * (1 + top)
    best = np.argsort(-logits, kind="stable")[:top].tolist()
    return best, _logprobs(logits - largest, [token, *best])


def _logprobs(shifted: F32, tokens: list[int]) -> list[np.float32]:
    total = log64(float(folded_sum(exp(shifted).astype(np.float64))))
    return [np.float32(np.float64(shifted[token]) - total) for token in tokens]


def _draw(logits: F32, sampling: SamplingRows, row: int) -> int:
    # Of the logits themselves: two that differ may be equally far from the highest, once rounded.
    order = np.argsort(-logits, kind="stable")
    cumulated = np.cumsum(_weights(logits[order] - logits.max(), sampling, row))
    target = uniform(int(sampling.seed[row]), int(sampling.position[row])) * cumulated[-1]
    return int(order[np.searchsorted(cumulated, target, side="right")])


def _weights(shifted: F32, sampling: SamplingRows, row: int) -> NDArray[np.float64]:
    """Weights of the tokens kept, largest first, in float64."""
    top_k = int(sampling.top_k[row]) or len(shifted)
    weights = exp(shifted[:top_k] / sampling.temperature[row]).astype(np.float64)
    weights = weights[weights >= np.float64(sampling.min_p[row])]
    cumulated = np.cumsum(weights)
    enough = cumulated >= np.float64(sampling.top_p[row]) * cumulated[-1]
    return weights[: max(1, int(np.argmax(enough)) + 1)]

"""Sampling in numpy: sorts the whole row, then cuts and draws in the order that `Ops.sample` specifies."""

import numpy as np
from numpy.typing import NDArray

from transom.ops.elementary import exp, folded_sum, log64
from transom.ops.philox import uniform
from transom.ops.protocol import F32, SamplingRows


@np.errstate(over="ignore", under="ignore", invalid="ignore", divide="ignore")
def sample_row(logits: F32, sampling: SamplingRows, row: int) -> tuple[int, np.float32]:
    """Token and log-probability for one row of logits, with the parameters of row `row` of `sampling`."""
    largest = logits.max()
    if not np.isfinite(largest):  # NaN or +inf somewhere, or -inf everywhere
        return 0, np.float32(np.nan)
    token = int(np.argmax(logits)) if sampling.temperature[row] == 0 else _draw(logits, sampling, row)
    return token, _logprobs(logits - largest, [token])[0]


@np.errstate(over="ignore", under="ignore", invalid="ignore")
def logprobs_row(logits: F32, token: int, top: int) -> tuple[list[int], list[np.float32]]:
    """The `top` most probable tokens; and the log-probabilities of `token`, then of these."""
    largest = logits.max()
    if not np.isfinite(largest):
        return [0] * top, [np.float32(np.nan)] * (1 + top)
    best = np.argsort(-logits, kind="stable")[:top].tolist()
    return best, _logprobs(logits - largest, [token, *best])


def _logprobs(shifted: F32, tokens: list[int]) -> list[np.float32]:
    total = log64(float(folded_sum(exp(shifted).astype(np.float64))))
    return [np.float32(np.float64(shifted[token]) - total) for token in tokens]


def _draw(logits: F32, sampling: SamplingRows, row: int) -> int:
    # Sort the logits themselves, not their distances to the highest: different logits may have the same
    # distance once it is rounded.
    order = np.argsort(-logits, kind="stable")
    cumulated = np.cumsum(_weights(logits[order] - logits.max(), sampling, row))
    target = uniform(int(sampling.seed[row]), int(sampling.position[row])) * cumulated[-1]
    return int(order[np.searchsorted(cumulated, target, side="right")])


def _weights(shifted: F32, sampling: SamplingRows, row: int) -> NDArray[np.float64]:
    """Weights of the tokens that all cuts leave, in float64, largest first."""
    top_k = int(sampling.top_k[row]) or len(shifted)
    weights = exp(shifted[:top_k] / sampling.temperature[row]).astype(np.float64)
    weights = weights[weights >= np.float64(sampling.min_p[row])]
    cumulated = np.cumsum(weights)
    enough = cumulated >= np.float64(sampling.top_p[row]) * cumulated[-1]
    return weights[: max(1, int(np.argmax(enough)) + 1)]

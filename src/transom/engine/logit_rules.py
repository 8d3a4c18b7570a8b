"""Penalties, biases and bans: changes to one row of logits before a token is sampled from it.

They run in numpy, above all backends, so that every backend samples from the same bits. Each operation is one
float32 operation per logit, in the order of the fields of `LogitRules`.
"""

import numpy as np

from transom.ops.protocol import F32, I32
from transom.steps import RuledOutput
from transom.values import LogitRules, Tokens

BANNED = np.float32(-np.inf)


def apply_rules(logits: F32, output: RuledOutput) -> None:
    """Changes the logits of the vocabulary, `[vocab]`, in place, for the token after `output.tokens`."""
    rules = output.rules
    _penalize(logits, output)
    if rules.allowed is not None:
        _allow_only(logits, rules.allowed)
    if len(output.outputs) < rules.min_tokens:
        _ban(logits, np.array(sorted(output.stop_ids), np.int32))
    if rules.banned:
        _ban(logits, _completed(rules, output.outputs))


def _penalize(logits: F32, output: RuledOutput) -> None:
    rules = output.rules
    if rules.biased is not None:
        logits[rules.biased] += np.array(rules.bias, np.float32)
    if rules.repetition != 1:
        seen = np.zeros(len(logits), np.bool_)  # faster than to sort a long prompt
        seen[output.tokens] = True
        ids, factor = np.flatnonzero(seen), np.float32(rules.repetition)
        values = logits[ids]
        logits[ids] = np.where(values > 0, values / factor, values * factor)
    if (rules.frequency or rules.presence) and len(output.outputs):
        ids, counts = np.unique(output.outputs, return_counts=True)
        logits[ids] -= np.float32(rules.frequency) * counts.astype(np.float32)
        logits[ids] -= np.float32(rules.presence)


# A ban that would leave no token to sample does not apply: a sequence may forbid the only allowed token.


def _allow_only(logits: F32, allowed: Tokens) -> None:
    kept = logits[allowed]
    if kept.max() > BANNED:
        logits.fill(BANNED)
        logits[allowed] = kept


def _ban(logits: F32, tokens: I32) -> None:
    kept = logits[tokens]
    logits[tokens] = BANNED
    if len(tokens) and logits.max() == BANNED:
        logits[tokens] = kept


def _completed(rules: LogitRules, outputs: Tokens) -> I32:
    """The tokens that would complete a banned sequence."""
    last = outputs[-max(map(len, rules.banned)) :].tolist()
    # Without its last token, the sequence must be the end of the outputs.
    found = {
        word[-1]
        for word in rules.banned
        if len(word) == 1 or tuple(last[max(0, len(last) - len(word) + 1) :]) == word[:-1]
    }
    return np.array(sorted(found), np.int32)

"""Penalties, biases and bans: changes to one row of logits before a token is sampled from it.

They run in numpy, above all backends, so that every backend samples from the same bits. Each operation is one
float32 operation per logit, in the order of the fields of `LogitRules`.
"""

import numpy as np

from transom.ops.protocol import F32, I32
from transom.steps import RuledOutput
from transom.values import LogitRules, Tokens

BANNED = np.float32(-np.inf)
EVERY = slice(None)


class ChangedRow:
    """One row of logits, `[vocab]`, and what it was before. Mutable: it changes the row in place.

    Most rules touch a few tokens of a vocabulary of 262,144: to keep these is faster than to copy the row.
    """

    def __init__(self, logits: F32) -> None:
        self.logits = logits
        self._before: list[tuple[I32 | slice, F32]] = []

    def keep(self, tokens: I32 | slice) -> F32:
        """A copy of the logits of these tokens, which are about to change."""
        values = self.logits[tokens].copy()
        self._before.append((tokens, values))
        return values

    def undo(self) -> None:
        """Writes all logits back as they were."""
        for tokens, values in reversed(self._before):
            self.logits[tokens] = values


def apply_rules(logits: F32, output: RuledOutput) -> ChangedRow:
    """Changes the logits of the vocabulary, `[vocab]`, in place, for the token after `output.tokens`."""
    rules, row = output.rules, ChangedRow(logits)
    _penalize(row, output)
    if rules.allowed is not None:
        _allow_only(row, rules.allowed)
    if len(output.outputs) < rules.min_tokens:
        _ban(row, np.array(sorted(output.stop_ids), np.int32))
    if rules.banned:
        _ban(row, _completed(rules, output.outputs))
    return row


def _penalize(row: ChangedRow, output: RuledOutput) -> None:
    rules, logits = output.rules, row.logits
    if rules.biased is not None:
        logits[rules.biased] = row.keep(rules.biased) + np.array(rules.bias, np.float32)
    if rules.repetition != 1:
        seen = np.zeros(len(logits), np.bool_)  # faster than to sort a long prompt
        seen[output.tokens] = True
        tokens, factor = np.flatnonzero(seen).astype(np.int32), np.float32(rules.repetition)
        values = row.keep(tokens)
        logits[tokens] = np.where(values > 0, values / factor, values * factor)
    if (rules.frequency or rules.presence) and len(output.outputs):
        tokens, counts = np.unique(output.outputs, return_counts=True)
        values = row.keep(tokens) - np.float32(rules.frequency) * counts.astype(np.float32)
        logits[tokens] = values - np.float32(rules.presence)


# A ban that would leave no token to sample does not apply: a sequence may forbid the only allowed token.


def _allow_only(row: ChangedRow, allowed: Tokens) -> None:
    kept = row.logits[allowed]
    if kept.max() > BANNED:
        row.keep(EVERY)
        row.logits.fill(BANNED)
        row.logits[allowed] = kept


def _ban(row: ChangedRow, tokens: I32) -> None:
    kept = row.keep(tokens)
    row.logits[tokens] = BANNED
    if len(tokens) and row.logits.max() == BANNED:
        row.logits[tokens] = kept


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

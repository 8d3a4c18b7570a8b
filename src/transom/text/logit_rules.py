"""Logit rules from the fields in which clients ask for them: the checks, and words as tokens."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from transom.errors import BadRequest
from transom.limits import LIMITS
from transom.sampling import BIAS_MAX, RULE_PARAMETERS, check_range, shown
from transom.values import LogitRules, Tokens

Encode = Callable[[str], Tokens]
"""Tokens of a text, without a begin token."""

DIGITS_MAX = 12
FIELDS = (*RULE_PARAMETERS, "logit_bias", "allowed_token_ids", "bad_words")


def logit_rules(asked: Mapping[str, Any], vocabulary: int, encode: Encode) -> LogitRules | None:
    """The rules of the fields in `asked`; None if all fields have their defaults.

    A null field counts as absent. BadRequest, naming the field, for a value out of range.
    """
    numbers = {name: _number(asked, name) for name in RULE_PARAMETERS}
    bias = _bias(asked.get("logit_bias") or {}, vocabulary)
    allowed = asked.get("allowed_token_ids")
    banned = _banned(asked.get("bad_words") or (), encode)
    is_default = all(numbers[name] == one.default for name, one in RULE_PARAMETERS.items())
    if is_default and not bias and allowed is None and not banned:
        return None
    return LogitRules(
        biased=np.array(list(bias), np.int32) if bias else None,
        bias=tuple(bias.values()),
        repetition=numbers["repetition_penalty"],
        frequency=numbers["frequency_penalty"],
        presence=numbers["presence_penalty"],
        allowed=None if allowed is None else _allowed(allowed, vocabulary),
        min_tokens=int(numbers["min_tokens"]),
        banned=banned,
    )


def _number(asked: Mapping[str, Any], name: str) -> float:
    parameter, value = RULE_PARAMETERS[name], asked.get(name)
    if value is None:
        return parameter.default
    check_range(name, value, parameter.low, parameter.high)
    return parameter.kind(value)


def _bias(biases: Mapping[str | int, float], vocabulary: int) -> dict[int, float]:
    """Keys are token ids, written as texts in JSON."""
    _check_length("logit_bias", biases, LIMITS.biased_tokens)
    found: dict[int, float] = {}
    for key, value in biases.items():
        token = _token("logit_bias", key, vocabulary)
        check_range(f"logit_bias.{token}", value, -BIAS_MAX, BIAS_MAX)
        if token in found:
            raise BadRequest(f"logit_bias has the token id {token} twice", param="logit_bias")
        found[token] = float(value)
    return found


def _allowed(ids: Sequence[int], vocabulary: int) -> Tokens:
    _check_length("allowed_token_ids", ids, LIMITS.allowed_tokens)
    if not ids:
        raise BadRequest("allowed_token_ids is empty: no token could be sampled", param="allowed_token_ids")
    tokens = {_token("allowed_token_ids", token, vocabulary) for token in ids}
    return np.array(sorted(tokens), np.int32)


def _banned(words: Sequence[str], encode: Encode) -> tuple[tuple[int, ...], ...]:
    """The tokens of each word, at the start of a text and behind a space."""
    _check_length("bad_words", words, LIMITS.bad_words)
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        bare = word.lstrip(" ") if isinstance(word, str) else ""
        if not 1 <= len(bare) <= LIMITS.bad_word_characters:
            rule = f"must be a text of 1 to {LIMITS.bad_word_characters} characters beside leading spaces"
            raise BadRequest(f"each of bad_words {rule}", param="bad_words")
        for text in (bare, f" {bare}"):
            if ids := tuple(encode(text).tolist()):
                found[ids] = None
    return tuple(found)


def _check_length(name: str, values: Mapping[Any, Any] | Sequence[Any], most: int) -> None:
    if len(values) > most:
        raise BadRequest(f"{name} has {len(values)} entries; at most {most} are allowed", param=name)


def _token(name: str, key: str | int, vocabulary: int) -> int:
    """A token id, or its decimal digits."""
    if isinstance(key, str):
        # Python also reads "1_0" and the digits of other alphabets as numbers.
        is_number = key.isascii() and key.isdecimal() and len(key) < DIGITS_MAX
        if not is_number:
            raise BadRequest(f"{name} has the key {key[:40]!a}; keys are token ids", param=name)
        key = int(key)
    if not 0 <= key < vocabulary:
        rule = f"ids are between 0 and {vocabulary - 1}"
        raise BadRequest(f"{name} has the token id {shown(key)}; {rule}", param=name)
    return key

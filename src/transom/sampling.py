"""Sampling parameters: names, ranges and help texts, once for `LLM`, the server and the command line.

Only the standard library is imported, because `transom --help` must not wait for numpy. Static types cannot
be derived from a table: a new parameter is also a field of `values.Sampling` and of `server/protocol.py`, and
a key of `SamplingOptions`. A test compares the four.
"""

import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

from transom.errors import BadRequest


@dataclass(frozen=True, slots=True)
class Parameter:
    """One sampling parameter. Both ends of its range are allowed.

    `default` is that of `LLM` and the command line; the HTTP API has OpenAI's defaults. `symbol` stands for
    the value in help texts.
    """

    name: str
    default: float
    low: float
    high: float
    symbol: str
    help: str

    @property
    def kind(self) -> type[int] | type[float]:
        return type(self.default)

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"


NO_SEED = -1
"""As in llama.cpp: a seed of -1 means none. Interfaces of its users send it."""

_IN_ORDER = (
    Parameter(
        name="temperature",
        default=0.0,
        low=0,
        high=2,
        symbol="T",
        help="0 to 2; 0 always samples the most probable token, 1 samples from the model's own distribution",
    ),
    Parameter(
        name="top_k",
        default=0,
        low=0,
        high=(1 << 31) - 1,
        symbol="K",
        help="sample from the K most probable tokens; 0: from all",
    ),
    Parameter(
        name="min_p",
        default=0.0,
        low=0,
        high=1,
        symbol="P",
        help="sample from tokens at least P times as probable as the most probable one; 0: from all",
    ),
    Parameter(
        name="top_p",
        default=1.0,
        low=0,
        high=1,
        symbol="P",
        help="sample from the most probable tokens that together reach probability P; 1: from all",
    ),
    Parameter(
        name="seed",
        default=NO_SEED,
        # OpenAI's API allows negative seeds. The range covers signed and unsigned 64-bit numbers.
        low=-(1 << 63),
        high=(1 << 64) - 1,
        symbol="N",
        help="the same seed gives the same output",
    ),
)
"""In the order in which they apply: the truncations are top-k first, then min-p, then top-p."""

PARAMETERS = {parameter.name: parameter for parameter in _IN_ORDER}


_RULES = (
    Parameter(
        name="repetition_penalty",
        default=1.0,
        low=0.01,
        high=100,
        symbol="R",
        help="divides the logits of tokens of prompt and output, or multiplies negative ones; 1: off",
    ),
    Parameter(
        name="frequency_penalty",
        default=0.0,
        low=-2,
        high=2,
        symbol="F",
        help="subtracted from a token's logit for each time that the output contains the token",
    ),
    Parameter(
        name="presence_penalty",
        default=0.0,
        low=-2,
        high=2,
        symbol="P",
        help="subtracted from a token's logit if the output contains the token",
    ),
    Parameter(
        name="min_tokens",
        default=0,
        low=0,
        high=(1 << 31) - 1,
        symbol="N",
        help="no stop id and no stop string ends the output before this many tokens",
    ),
)
RULE_PARAMETERS = {parameter.name: parameter for parameter in _RULES}
"""Numbers that change the logits, or what ends an output: fields of `values.LogitRules`."""
BIAS_MAX = 100.0
"""Of `logit_bias`, as in OpenAI's API: a bias of -100 bans a token in practice, 100 forces it."""


class SamplingOptions(TypedDict, total=False):
    """Sampling parameters as keyword arguments. By default, sampling is greedy."""

    temperature: float
    """0 to 2, default 0: always the most probable token."""
    top_k: int
    """Sample from this many of the most probable tokens; default 0: from all."""
    top_p: float
    """Sample from the most probable tokens that together reach this probability; default 1: from all."""
    min_p: float
    """Sample from tokens at least this many times as probable as the top one; default 0: from all."""
    repetition_penalty: float
    """Divides the logits of tokens of prompt and output, multiplies negative ones; default 1: off."""
    frequency_penalty: float
    """Subtracted from a logit for each time that the token is in the output; -2 to 2, default 0."""
    presence_penalty: float
    """Subtracted from a logit if the token is in the output; -2 to 2, default 0."""
    min_tokens: int
    """No stop id and no stop string ends the output before this many tokens; default 0."""
    seed: int
    """Output i of a call has the seed `seed + i`; default -1: each output draws anew."""


def output_seeds(seed: int | None, outputs: range) -> list[int]:
    """Seeds, unsigned, of outputs that are numbered within one call or HTTP request: `seed + number`.

    Without a seed, each output gets a random one, so that equal prompts have different outputs.
    """
    if seed is None or seed == NO_SEED:
        return [secrets.randbits(64) for _ in outputs]
    return [(seed + number) % 2**64 for number in outputs]


def sampling_arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `values.Sampling` in `options`; None counts as absent. BadRequest if out of range."""
    given = {name: options[name] for name in PARAMETERS if options.get(name) is not None}
    for name, value in given.items():
        check_range(name, value, PARAMETERS[name].low, PARAMETERS[name].high)
    return given


def check_range(name: str, value: float, low: float, high: float | None) -> None:
    """BadRequest, naming the parameter, unless `low <= value <= high`; `high` None is no upper bound.

    NaN is outside every range.
    """
    if not low <= value <= (math.inf if high is None else high):
        bounds = f"at least {low}" if high is None else f"between {low} and {high}"
        raise BadRequest(f"{name} is {shown(value)}; it must be {bounds}", param=name)


def shown(value: float) -> str:
    """A client's number as a message may quote it."""
    # JSON allows integers of a thousand digits, and Python refuses to print the longest ones.
    if isinstance(value, int) and abs(value) >= 10**30:
        return "a number of more than 30 digits"
    return str(value)

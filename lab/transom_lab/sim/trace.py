"""A workload as data: which requests arrive when, and which tokens the model answers. And its file format.

A trace file has one JSON object per line, one for each request. An optional first line describes the whole
trace: {"trace": NAME, "concurrency": N, "block_size": N}. The fields of a request:

  arrival        seconds from the start of the trace, or from the end of request `after`; or
  timestamp      the same in milliseconds, as in Mooncake's traces
  prompt         token ids; or
  hash_ids       a number per block of `block_size` tokens, equal if all text up to the block's end is equal,
                 with
  input_length   the number of prompt tokens
  outputs        token ids of the answer; or
  output_length  their number
  tenant, priority, after
                 optional; `after` is the number of an earlier request, counted from 0

A line with `sample_of`, the number of an earlier request, is one more output of that request (n > 1). It has
no other field but outputs or output_length.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from transom.errors import ConfigError
from transom.json_text import JsonError, object_of, read_lines
from transom.values import Tokens

FIRST_TOKEN, LAST_TOKEN = 1_000, 250_000
"""The range of random tokens. They are only compared with each other, so their text does not matter."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request, or one more output of an earlier request.

    at         seconds from the start of the trace, or from the end of the arrival with index `after`
    outputs    the tokens that the model will answer. They are given, so that a later prompt can contain them.
    sample_of  index of an earlier arrival: this is another output of that request (n > 1), with the same
               prompt, and `at` and `after` are not used
    """

    at: float
    prompt: Tokens
    outputs: Tokens
    tenant: str = ""
    priority: int = 0
    after: int | None = None
    sample_of: int | None = None


@dataclass(frozen=True, slots=True)
class Trace:
    """Arrivals, not necessarily sorted by time.

    At most `concurrency` requests are in flight at once; further ones wait at the client, in order of
    arrival.
    """

    name: str
    arrivals: tuple[Arrival, ...]
    concurrency: int | None = None

    def __post_init__(self) -> None:
        assert self.concurrency is None or self.concurrency >= 1, self.concurrency
        for index, arrival in enumerate(self.arrivals):
            assert arrival.after is None or 0 <= arrival.after < index, (index, arrival.after)
            assert arrival.at >= 0 and len(arrival.prompt) and len(arrival.outputs), (index, arrival.at)
            if (first := arrival.sample_of) is not None:
                assert 0 <= first < index and self.arrivals[first].sample_of is None, (index, first)
                # The same array, not an equal one: samples of a long prompt must not multiply its memory.
                assert arrival.prompt is self.arrivals[first].prompt and arrival.after is None, (index, first)

    @property
    def prompt_tokens(self) -> int:
        """Each request's prompt counts once, even if the request has several outputs."""
        return sum(len(arrival.prompt) for arrival in self.arrivals if arrival.sample_of is None)

    @property
    def output_tokens(self) -> int:
        return sum(len(arrival.outputs) for arrival in self.arrivals)


def siblings(arrivals: Sequence[Arrival]) -> dict[int, list[int]]:
    """By index of a request with several outputs: the indices of its further outputs."""
    result: dict[int, list[int]] = {}
    for index, arrival in enumerate(arrivals):
        if arrival.sample_of is not None:
            result.setdefault(arrival.sample_of, []).append(index)
    return result


def followers(arrivals: Sequence[Arrival]) -> dict[int, list[int]]:
    """By index of an arrival: the indices of the requests that are sent after its end."""
    result: dict[int, list[int]] = {}
    for index, arrival in enumerate(arrivals):
        if arrival.after is not None:
            result.setdefault(arrival.after, []).append(index)
    return result


# ---------------------------------------------------------------- files

BLOCK_TOKENS = 512
"""Tokens per hash in Mooncake's traces."""
SHOWN_MAX = 80
TOKENS_MAX = 1 << 24
"""The longest prompt or answer that is read: a typing error must not allocate all memory."""
HEADER_FIELDS = {"trace", "concurrency", "block_size"}
FIELDS = {
    "arrival",
    "timestamp",
    "prompt",
    "hash_ids",
    "input_length",
    "outputs",
    "output_length",
    "tenant",
    "priority",
    "after",
    "sample_of",
}
SAMPLE_FIELDS = {"sample_of", "outputs", "output_length"}


class _LineError(Exception):
    """An error in a line; `read_trace` adds the file and the line number."""


def _short(value: object) -> str:
    """A value of the file as a message may quote it."""
    shown = ascii(value)
    return shown if len(shown) <= SHOWN_MAX else f"{shown[:SHOWN_MAX]}..."


def read_trace(path: Path) -> Trace:
    """Raises ConfigError, which names the file and the line, for a file that is not a trace."""
    header: Mapping[str, Any] = {}
    arrivals: list[Arrival] = []
    for number, line in read_lines(path):
        try:
            fields = object_of(line)
            if number == 1 and fields.keys() and fields.keys() <= HEADER_FIELDS:
                header = _header(fields)
            elif fields:
                arrivals.append(_arrival(fields, arrivals, header.get("block_size", BLOCK_TOKENS)))
        except (_LineError, JsonError) as error:
            raise ConfigError(f"{path}:{number}: {error}") from None
    if not arrivals:
        raise ConfigError(f"{path}: no requests")
    return Trace(header.get("trace", path.stem), tuple(arrivals), header.get("concurrency"))


def write_trace(trace: Trace, path: Path) -> None:
    """Writes token ids, so that reading the file gives the same trace again."""
    with path.open("w", encoding="utf-8") as file:
        for line in _lines(trace):
            file.write(json.dumps(line, separators=(",", ":")) + "\n")


def _lines(trace: Trace) -> Iterator[dict[str, Any]]:
    header: dict[str, Any] = {"trace": trace.name}
    yield header if trace.concurrency is None else {**header, "concurrency": trace.concurrency}
    for arrival in trace.arrivals:
        outputs = arrival.outputs.tolist()
        if arrival.sample_of is not None:
            yield {"sample_of": arrival.sample_of, "outputs": outputs}
            continue
        line: dict[str, Any] = {"arrival": arrival.at, "prompt": arrival.prompt.tolist(), "outputs": outputs}
        optional = {"tenant": arrival.tenant, "priority": arrival.priority}
        line |= {name: value for name, value in optional.items() if value}
        yield line if arrival.after is None else {**line, "after": arrival.after}


def _header(fields: dict[str, Any]) -> dict[str, Any]:
    name = fields.get("trace", "trace")
    if not isinstance(name, str):
        raise _LineError(f"trace is {_short(name)}; a name is expected")
    for key in fields.keys() - {"trace"}:
        _whole(fields, key, 1, 1 << 20)
    return fields


def _arrival(fields: dict[str, Any], earlier: Sequence[Arrival], block_tokens: int) -> Arrival:
    index, unknown = len(earlier), sorted(fields.keys() - FIELDS)
    if unknown:
        raise _LineError(f"unknown field {_short(unknown[0])}")
    if "sample_of" in fields:
        return _sample(fields, earlier)
    after = None if "after" not in fields else _whole(fields, "after", 0, index - 1)
    tenant = fields.get("tenant", "")
    if not isinstance(tenant, str):
        raise _LineError(f"tenant is {_short(tenant)}; a string is expected")
    return Arrival(
        at=_moment(fields),
        prompt=_prompt(fields, block_tokens),
        outputs=_outputs(fields, index),
        tenant=tenant,
        priority=_whole(fields, "priority", -1000, 1000) if "priority" in fields else 0,
        after=after,
    )


def _sample(fields: dict[str, Any], earlier: Sequence[Arrival]) -> Arrival:
    excess = sorted(fields.keys() - SAMPLE_FIELDS)
    if excess:
        raise _LineError(f"{excess[0]} beside sample_of: the first line of the request has it")
    first = _whole(fields, "sample_of", 0, len(earlier) - 1)
    if earlier[first].sample_of is not None:
        raise _LineError(
            f"sample_of is {first}, which has sample_of itself; name the first line of the request"
        )
    return replace(earlier[first], outputs=_outputs(fields, len(earlier)), after=None, sample_of=first)


def _moment(fields: dict[str, Any]) -> float:
    name = _one_of(fields, "arrival", "timestamp")
    value = fields[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        raise _LineError(f"{name} is {_short(value)}; a time of at least 0 is expected")
    return float(value) if name == "arrival" else value / 1000.0


def _prompt(fields: dict[str, Any], block_tokens: int) -> Tokens:
    if _one_of(fields, "prompt", "hash_ids") == "prompt":
        return _tokens(fields, "prompt")
    blocks = _numbers(fields, "hash_ids", 0, 1 << 62)
    length = _whole(fields, "input_length", 1, TOKENS_MAX)
    needed = -(-length // block_tokens)
    if len(blocks) != needed:
        raise _LineError(
            f"{len(blocks)} hash_ids for {length} tokens; blocks of {block_tokens} tokens make {needed}"
        )
    # A hash stands for all text up to its block, so equal hashes must become equal tokens: the hash is the
    # seed.
    return np.concatenate([_block(block, block_tokens) for block in blocks])[:length]


def _outputs(fields: dict[str, Any], index: int) -> Tokens:
    if _one_of(fields, "outputs", "output_length") == "outputs":
        return _tokens(fields, "outputs")
    # The seeds (0, hash) and (1, line) cannot collide: no answer repeats a block of a prompt.
    return _random((1, index), _whole(fields, "output_length", 1, TOKENS_MAX))


@lru_cache(maxsize=4096)
def _block(block: int, tokens: int) -> Tokens:
    return _random((0, block), tokens)


def _random(seed: tuple[int, int], count: int) -> Tokens:
    generator = np.random.Generator(np.random.PCG64(seed))
    return generator.integers(FIRST_TOKEN, LAST_TOKEN, count, dtype=np.int32)


def _one_of(fields: dict[str, Any], one: str, other: str) -> str:
    """The one of two alternative fields that the line has."""
    if (one in fields) == (other in fields):
        raise _LineError(f"{'both' if one in fields else 'neither'} {one} and {other}; give one of them")
    return one if one in fields else other


def _whole(fields: dict[str, Any], name: str, low: int, high: int) -> int:
    if name not in fields:
        raise _LineError(f"{name} is missing")
    value = fields[name]
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        expected = f"a whole number between {low} and {high} is expected"
        raise _LineError(f"{name} is {_short(value)}; {expected}")
    return value


def _tokens(fields: dict[str, Any], name: str) -> Tokens:
    return np.array(_numbers(fields, name, 0, (1 << 31) - 1), np.int32)


def _numbers(fields: dict[str, Any], name: str, low: int, high: int) -> list[int]:
    values = fields[name]
    if not isinstance(values, list) or not values or len(values) > TOKENS_MAX:
        raise _LineError(f"{name}: a list of at least one number is expected")
    for value in values:
        if type(value) is not int or not low <= value <= high:
            raise _LineError(
                f"{name} has {_short(value)}; whole numbers between {low} and {high} are expected"
            )
    return values

"""Traces as files: JSON lines, one request each.

A first line may say more of all of them: {"trace": NAME, "concurrency": N, "block_size": N}. Then:

  arrival        seconds from the start (after the end of request `after`, if that is given); or
  timestamp      milliseconds, as Mooncake's traces have them
  prompt         token ids; or
  hash_ids       a number for each block of `block_size` tokens, equal where the text up to it is, and
  input_length   tokens of the prompt
  outputs        token ids of the answer; or
  output_length  tokens of it
  tenant, priority, after (the number of an earlier request, from 0)

A line that has `sample_of`, the number of an earlier one, is another output of its prompt, in the same
request (n > 1), and has nothing but outputs or output_length.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from transom.errors import ConfigError
from transom.values import Tokens
from transom_lab.sim.draw import FIRST, LAST
from transom_lab.sim.trace import Arrival, Trace

BLOCK_TOKENS = 512
"""Of a hash in Mooncake's traces."""
TOKENS_MAX = 1 << 24
"""Of one prompt or answer."""
HEADER = {"trace", "concurrency", "block_size"}
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
OF_SAMPLES = {"sample_of", "outputs", "output_length"}


class _Wrong(Exception):
    """What is wrong with a line."""


def read_trace(path: Path) -> Trace:
    """Raises ConfigError, naming file and line, for what is no trace."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {getattr(error, 'strerror', None) or 'not UTF-8 text'}") from None
    header: Mapping[str, Any] = {}
    arrivals: list[Arrival] = []
    for number, line in enumerate(lines, 1):
        try:
            found = _parsed(line)
            if number == 1 and found.keys() and found.keys() <= HEADER:
                header = _header(found)
            elif found:
                arrivals.append(_arrival(found, arrivals, header.get("block_size", BLOCK_TOKENS)))
        except _Wrong as wrong:
            raise ConfigError(f"{path}:{number}: {wrong}") from None
    if not arrivals:
        raise ConfigError(f"{path}: no requests")
    return Trace(header.get("trace", path.stem), tuple(arrivals), header.get("concurrency"))


def write_trace(trace: Trace, path: Path) -> None:
    """As token ids, so that it is the same when read."""
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
        more = {"tenant": arrival.tenant, "priority": arrival.priority}
        line |= {name: value for name, value in more.items() if value}
        yield line if arrival.after is None else {**line, "after": arrival.after}


# ---------------------------------------------------------------- one line


def _parsed(line: str) -> dict[str, Any]:
    """Empty for an empty line."""
    if not line.strip():
        return {}
    try:
        found = json.loads(line)
    except ValueError as error:
        raise _Wrong(f"not JSON: {error}") from None
    if not isinstance(found, dict):
        raise _Wrong(f"an object is expected, not {type(found).__name__}")
    return found


def _header(found: dict[str, Any]) -> dict[str, Any]:
    name = found.get("trace", "trace")
    if not isinstance(name, str):
        raise _Wrong(f"trace is {name!r}; a name is expected")
    for key in found.keys() - {"trace"}:
        _whole(found, key, 1, 1 << 20)
    return found


def _arrival(found: dict[str, Any], earlier: Sequence[Arrival], block_tokens: int) -> Arrival:
    index, unknown = len(earlier), sorted(found.keys() - FIELDS)
    if unknown:
        raise _Wrong(f"unknown field {unknown[0]!r}")
    if "sample_of" in found:
        return _sample(found, earlier)
    after = None if "after" not in found else _whole(found, "after", 0, index - 1)
    tenant = found.get("tenant", "")
    if not isinstance(tenant, str):
        raise _Wrong(f"tenant is {tenant!r}; a string is expected")
    return Arrival(
        at=_moment(found),
        prompt=_prompt(found, block_tokens),
        outputs=_outputs(found, index),
        tenant=tenant,
        priority=_whole(found, "priority", -1000, 1000) if "priority" in found else 0,
        after=after,
    )


def _sample(found: dict[str, Any], earlier: Sequence[Arrival]) -> Arrival:
    more = sorted(found.keys() - OF_SAMPLES)
    if more:
        raise _Wrong(f"{more[0]} beside sample_of: it is that request's")
    first = _whole(found, "sample_of", 0, len(earlier) - 1)
    if earlier[first].sample_of is not None:
        raise _Wrong(f"sample_of is {first}, which is another's sample itself")
    return replace(earlier[first], outputs=_outputs(found, len(earlier)), after=None, sample_of=first)


def _moment(found: dict[str, Any]) -> float:
    name = _one_of(found, "arrival", "timestamp")
    value = found[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        raise _Wrong(f"{name} is {value!r}; a time of at least 0 is expected")
    return float(value) if name == "arrival" else value / 1000.0


def _prompt(found: dict[str, Any], block_tokens: int) -> Tokens:
    if _one_of(found, "prompt", "hash_ids") == "prompt":
        return _tokens(found, "prompt")
    blocks = _numbers(found, "hash_ids", 0, 1 << 62)
    length = _whole(found, "input_length", 1, TOKENS_MAX)
    needed = -(-length // block_tokens)
    if len(blocks) != needed:
        raise _Wrong(
            f"{len(blocks)} hash_ids for {length} tokens; blocks of {block_tokens} tokens make {needed}"
        )
    return np.concatenate([_block(block, block_tokens) for block in blocks])[:length]


def _outputs(found: dict[str, Any], index: int) -> Tokens:
    if _one_of(found, "outputs", "output_length") == "outputs":
        return _tokens(found, "outputs")
    return _random((1, index), _whole(found, "output_length", 1, TOKENS_MAX))


@lru_cache(maxsize=4096)
def _block(block: int, tokens: int) -> Tokens:
    return _random((0, block), tokens)


def _random(seed: tuple[int, int], count: int) -> Tokens:
    """The same tokens for the same seed, and others for another."""
    generator = np.random.Generator(np.random.PCG64(seed))
    return generator.integers(FIRST, LAST, count, dtype=np.int32)


# ---------------------------------------------------------------- fields


def _one_of(found: dict[str, Any], one: str, other: str) -> str:
    """Which of the two is there. Wrong if both are, or neither."""
    if (one in found) == (other in found):
        raise _Wrong(f"{'both' if one in found else 'neither'} {one} and {other}; give one of them")
    return one if one in found else other


def _whole(found: dict[str, Any], name: str, low: int, high: int) -> int:
    if name not in found:
        raise _Wrong(f"{name} is missing")
    value = found[name]
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise _Wrong(f"{name} is {value!r}; a whole number between {low} and {high} is expected")
    return value


def _tokens(found: dict[str, Any], name: str) -> Tokens:
    return np.array(_numbers(found, name, 0, (1 << 31) - 1), np.int32)


def _numbers(found: dict[str, Any], name: str, low: int, high: int) -> list[int]:
    values = found[name]
    if not isinstance(values, list) or not values or len(values) > TOKENS_MAX:
        raise _Wrong(f"{name}: a list of at least one number is expected")
    for value in values:
        if type(value) is not int or not low <= value <= high:
            raise _Wrong(f"{name} has {value!r}; whole numbers between {low} and {high} are expected")
    return values

"""What a step takes on a machine: finer than what the scheduler learns, as it stands in for the machine."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from transom.errors import ConfigError
from transom.sched.costs import keys_near, keys_read
from transom.values import StepWork


class Load(NamedTuple):
    """What is counted of a step. Keys are what tokens read, in spans of one token and in longer ones."""

    spans: int
    tokens: int
    choices: int
    copies: int
    decode_keys: int
    decode_near: int
    chunk_keys: int
    chunk_near: int


def load_of(work: StepWork, window: int) -> Load:
    """`near` keys are those within `window`, in place of all; 0 is no window."""
    tokens = choices = decode_keys = decode_near = chunk_keys = chunk_near = 0
    for span in work.spans:
        start, count = span.start, len(span.tokens)
        end = start + count
        tokens += count
        choices += span.sampling is not None
        if count == 1:
            decode_keys += end
            decode_near += min(end, window)
        else:
            chunk_keys += keys_read(start, end)
            chunk_near += keys_near(start, end, window) if window else 0
    copies = len(work.copies)
    return Load(len(work.spans), tokens, choices, copies, decode_keys, decode_near, chunk_keys, chunk_near)


@dataclass(frozen=True, slots=True)
class MachineCost:
    """Seconds of a step, scheduling it included.

    base, choosing  once for the step; once more if it chooses any token (the output head is read)
    per_span, per_token, per_choice, per_copy
                    for each; of `tokens_free` tokens the arithmetic is hidden behind reading the weights
    per_..._key     for each key that full layers read, near: that window layers read
    window          of the window layers, in tokens; 0 is none
    """

    base: float = 0.0
    choosing: float = 0.0
    per_span: float = 0.0
    per_token: float = 0.0
    per_choice: float = 0.0
    per_copy: float = 0.0
    per_decode_key: float = 0.0
    per_decode_near_key: float = 0.0
    per_chunk_key: float = 0.0
    per_chunk_near_key: float = 0.0
    tokens_free: int = 0
    window: int = 0

    def seconds(self, work: StepWork) -> float:
        return self.of(load_of(work, self.window))

    def of(self, load: Load) -> float:
        seconds = self.base
        for rate, count in zip(self.rates()[1:], terms(load, self.tokens_free)[1:], strict=True):
            seconds += rate * count
        return seconds

    def rates(self) -> tuple[float, ...]:
        """In the order of `terms`."""
        return (
            self.base,
            self.choosing,
            self.per_span,
            self.per_token,
            self.per_choice,
            self.per_copy,
            self.per_decode_key,
            self.per_decode_near_key,
            self.per_chunk_key,
            self.per_chunk_near_key,
        )


RATES = tuple(field.name for field in fields(MachineCost) if field.type is float)


def terms(load: Load, tokens_free: int) -> tuple[int, ...]:
    """What each rate is multiplied with."""
    return (
        1,
        int(load.choices > 0),
        load.spans,
        max(0, load.tokens - tokens_free),
        load.choices,
        load.copies,
        load.decode_keys,
        load.decode_near,
        load.chunk_keys,
        load.chunk_near,
    )


# ---------------------------------------------------------------- files


def write_cost(cost: MachineCost, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(cost), indent=1) + "\n", encoding="utf-8")


def read_cost(path: Path) -> MachineCost:
    """Raises ConfigError, naming file and field, for what is no cost."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path}: not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: an object is expected, not {type(found).__name__}")
    _require_known(path, found)
    for name, value in found.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise ConfigError(f"{path}: {name} is {value!r}; a number of at least 0 is expected")
    values: dict[str, Any] = {
        name: float(value) if name in RATES else int(value) for name, value in found.items()
    }
    return MachineCost(**values)


def _require_known(path: Path, names: Iterable[str]) -> None:
    known = [field.name for field in fields(MachineCost)]
    for name in names:
        if name not in known:
            raise ConfigError(f"{path}: unknown field {name!r}; there are {', '.join(known)}")

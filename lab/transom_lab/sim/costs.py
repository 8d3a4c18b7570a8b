"""What a step takes on a machine: finer than what the scheduler learns, as it stands in for the machine."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from transom.errors import ConfigError
from transom.kv.cache import HybridCache
from transom.kv.component_specs import Full, Window
from transom.sched.step_cost import keys_near, keys_read
from transom.steps import SpanWork, StepWork


class Load(NamedTuple):
    """What is counted of a step. Keys are what tokens read, in spans of one token and in longer ones.

    Of the keys that spans of one token read, `fresh` are those that none before in the step has read: where
    requests share a prefix they share its pages, and who comes later finds them in the processor's caches.
    """

    spans: int
    tokens: int
    choices: int
    copies: int
    decode_keys: int
    decode_near: int
    chunk_keys: int
    chunk_near: int
    fresh_keys: int
    fresh_near: int


def load_of(work: StepWork, window: int, cache: HybridCache) -> Load:
    """`near` keys are those within `window`, in place of all; 0 is no window. `cache` says who reads what."""
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
    decodes = [span for span in work.spans if len(span.tokens) == 1]
    return Load(
        spans=len(work.spans),
        tokens=tokens,
        choices=choices,
        copies=len(work.copies),
        decode_keys=decode_keys,
        decode_near=decode_near,
        chunk_keys=chunk_keys,
        chunk_near=chunk_near,
        fresh_keys=round(decode_keys * _fresh_share(cache, decodes, Full)),
        fresh_near=round(decode_near * _fresh_share(cache, decodes, Window)),
    )


def _fresh_share(cache: HybridCache, spans: Sequence[SpanWork], kind: type[Full] | type[Window]) -> float:
    """Of the first component of this kind: the pages that `spans` read / the times that they are read."""
    kinds = [isinstance(component, kind) for component in cache.layout.components]
    if len(spans) < 2 or not any(kinds):
        return 1.0
    component = kinds.index(True)
    table, rule = cache.page_tables[component], cache.rules[component]
    pages = np.concatenate([table[s.row, rule.needed(s.start) : rule.entries(s.end)] for s in spans])
    return len(np.unique(pages)) / len(pages)


@dataclass(frozen=True, slots=True)
class MachineCost:
    """Seconds of a step, scheduling it included.

    base, choosing  once for the step; once more if it chooses any token (the output head is read)
    per_span, per_token, per_choice, per_copy
                    for each; of `tokens_free` tokens the arithmetic is hidden behind reading the weights
    per_..._key     for each key that full layers read, near: that window layers read; fresh: as in `Load`
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
    per_fresh_key: float = 0.0
    per_fresh_near_key: float = 0.0
    tokens_free: int = 0
    window: int = 0

    def seconds(self, work: StepWork, cache: HybridCache) -> float:
        return self.of(load_of(work, self.window, cache))

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
            self.per_fresh_key,
            self.per_fresh_near_key,
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
        load.fresh_keys,
        load.fresh_near,
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

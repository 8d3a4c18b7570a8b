"""Cost model: how many seconds a step takes on a machine, as a linear function of its load.

The scheduler learns a simpler one while it runs (`transom.sched.step_cost`). This one replaces the machine,
so it also tells keys read by full and window layers apart, and counts keys in the processor's caches.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from transom.errors import ConfigError
from transom.json_text import JsonError, object_of
from transom.kv.cache import HybridCache
from transom.kv.component_specs import Full, Window
from transom.sched.step_cost import keys_near, keys_read
from transom.steps import SpanWork, StepWork


class StepLoad(NamedTuple):
    """The work of a step, counted.

    Keys are counted per token that reads them and per layer kind: `keys` by a full layer, `near` by a window
    layer. Decode keys are read by spans of one token, chunk keys by longer ones. Of the decode keys, `fresh`
    are those on pages that no earlier span of the step has read. Requests with a common prefix share its
    pages, and the later spans find them in the processor's caches.
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


def load_of(work: StepWork, window: int, cache: HybridCache) -> StepLoad:
    """The load of `work`. `window` is that of the window layers, or 0; `cache` knows the rows' pages."""
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
    return StepLoad(
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
    """Distinct pages that `spans` read, divided by page reads. Of the first component of this kind."""
    kinds = [isinstance(component, kind) for component in cache.layout.components]
    if len(spans) < 2 or not any(kinds):
        return 1.0
    component = kinds.index(True)
    table, rule = cache.page_tables[component], cache.rules[component]
    pages = np.concatenate([table[s.row, rule.needed(s.start) : rule.entries(s.end)] for s in spans])
    return len(np.unique(pages)) / len(pages)


@dataclass(frozen=True, slots=True)
class MachineCost:
    """Rates in seconds. A step takes the sum of rate times count; its scheduling is included.

    base        once per step
    choosing    once per step that samples a token, because the output head is read then
    per_span, per_token, per_choice, per_copy
                per span, token, sampled token and copied page. The first `tokens_free` tokens cost nothing:
                their arithmetic is hidden behind reading the weights from memory.
    per_..._key per key as counted in `StepLoad`; `near` for window layers, `fresh` in addition to decode keys
    window      tokens of the window layers; 0 if all layers are full
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

    def of(self, load: StepLoad) -> float:
        seconds = self.base
        for rate, count in zip(self.rates()[1:], counts_of(load, self.tokens_free)[1:], strict=True):
            seconds += rate * count
        return seconds

    def rates(self) -> tuple[float, ...]:
        """The rates in the order of `counts_of`."""
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


# Field types are compared as types: this module must not postpone annotations.
RATES = tuple(field.name for field in fields(MachineCost) if field.type is float)


def counts_of(load: StepLoad, tokens_free: int) -> tuple[int, ...]:
    """The number that each rate is multiplied by."""
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
    """Raises ConfigError, which names the file and the field, for a file that is not a cost model."""
    try:
        data = object_of(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except JsonError as error:
        raise ConfigError(f"{path}: {error}") from None
    _require_known(path, data)
    for name, value in data.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise ConfigError(f"{path}: {name} is {value!r}; a number of at least 0 is expected")
    values: dict[str, Any] = {
        name: float(value) if name in RATES else int(value) for name, value in data.items()
    }
    return MachineCost(**values)


def _require_known(path: Path, names: Iterable[str]) -> None:
    known = [field.name for field in fields(MachineCost)]
    for name in names:
        if name not in known:
            raise ConfigError(f"{path}: unknown field {name!r}; there are {', '.join(known)}")

"""Operations on a cache, as data: drawn, replayed, and left out again when a failing script is shrunk.

An operation names its request by number. Where it cannot be done (the request has ended, nothing is left to
compute) it does nothing, so any part of a script is a script. `Flush`, `Pin` and `Evict` are events of the
scheduler campaigns as well; the rest are the calls that a scheduler makes, which no client sees.
"""

import ast
from dataclasses import dataclass
from typing import Any

from transom.errors import ConfigError
from transom_lab.worlds.events import Evict as Evict
from transom_lab.worlds.events import Flush as Flush
from transom_lab.worlds.events import Pin as Pin


@dataclass(frozen=True, slots=True)
class Setting:
    """One cache. `mix` and `window` are as in `mixes.components`; `pages` are usable pages per component.

    With `page_bytes` all components share the bytes of these pages. With `layers`, as in CacheLayout, the
    cache offers repairs.
    """

    page_size: int
    window: int
    mix: str
    pages: tuple[int, ...]
    rows: int
    context: int
    prefix_caching: bool
    page_bytes: tuple[int, ...] = ()
    policy: str = "value"
    pin_tokens: int = 1 << 16
    layers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Ask:
    """Asks for the offers for these tokens, and keeps number `way` of them for `Admit`."""

    request: int
    tokens: tuple[int, ...]
    salt: str
    way: int = 0


@dataclass(frozen=True, slots=True)
class Admit:
    """Admits by the offer that was kept, however long ago."""

    request: int


@dataclass(frozen=True, slots=True)
class AdmitCold:
    request: int
    tokens: tuple[int, ...]
    salt: str


@dataclass(frozen=True, slots=True)
class Extend:
    """Allocates pages for `tokens` more than are computed, up to the context."""

    request: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Run:
    """Runs pending copies, then computes `tokens` more where pages are allocated.

    Behind the prompt, tokens are sampled.
    """

    request: int
    tokens: int


@dataclass(frozen=True, slots=True)
class RunCopies:
    """Runs the pending copies alone."""


@dataclass(frozen=True, slots=True)
class Publish:
    request: int


@dataclass(frozen=True, slots=True)
class Slide:
    request: int


@dataclass(frozen=True, slots=True)
class Truncate:
    """Frees `tokens` of the allocation beyond `computed`."""

    request: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Drop:
    request: int


@dataclass(frozen=True, slots=True)
class Fork:
    """Forks `request`: `child` continues from its state."""

    request: int
    child: int


Bookkeeping = Admit | AdmitCold | Extend | Publish | Slide | Truncate | Drop | Fork | Pin | Evict | Flush
"""Operations that a transaction may contain: every one that needs no runner."""


@dataclass(frozen=True, slots=True)
class Undone:
    """A transaction over `operations` that is rolled back at its end."""

    operations: tuple[Bookkeeping, ...]


Operation = Ask | Bookkeeping | Run | RunCopies | Undone

Script = tuple[Setting, list[Operation]]

_WORDS: dict[str, type[Any]] = {
    word.__name__: word
    for word in (
        Setting, Ask, Admit, AdmitCold, Extend, Run, RunCopies, Publish, Slide, Truncate, Drop, Fork, Pin,
        Evict, Flush, Undone,
    )
}  # fmt: skip


def write_script(script: Script) -> str:
    """One line per operation, the setting first, in a form that `read_script` reads."""
    setting, operations = script
    return "".join(f"{line!r}\n" for line in (setting, *operations))


def read_script(text: str) -> Script:
    """Parses a script. Skips blank lines and comments. ConfigError names a line that is no operation."""
    lines: list[Any] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            try:
                lines.append(_value(ast.parse(line.strip(), mode="eval").body))
            except (KeyError, ValueError, SyntaxError, TypeError):
                raise ConfigError(f"line {number} is no operation: {line.strip()}") from None
    if not lines or not isinstance(lines[0], Setting):
        raise ConfigError("a script begins with its Setting(...)")
    return lines[0], lines[1:]


def _value(node: ast.expr) -> Any:
    """The value of a call of a known operation, a tuple, or a literal. No code is evaluated."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return _WORDS[node.func.id](**{str(word.arg): _value(word.value) for word in node.keywords})
    if isinstance(node, ast.Tuple):
        return tuple(_value(part) for part in node.elts)
    return ast.literal_eval(node)

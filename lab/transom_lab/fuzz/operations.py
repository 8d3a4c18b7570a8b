"""What can be done to a memory core, as data: drawn, replayed, left out again when a failure is shrunk.

Each names its request by number. One that cannot be done where it stands (the request has ended, nothing is
left to compute) does nothing, so that any part of a script is a script.
"""

import ast
from dataclasses import dataclass
from typing import Any

from transom.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Setting:
    """One cache: `mix` and `window` as `kinds.components` means them, usable `pages` per component.

    With `page_bytes` all share what those pages would cost together, and any may take it. `layers` as in
    CacheLayout: with them repairs are offered.
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
    """What would be the best offers for these tokens? Number `way` of them is kept for `Admit`."""

    request: int
    tokens: tuple[int, ...]
    salt: str
    way: int = 0


@dataclass(frozen=True, slots=True)
class Admit:
    """By the offer asked for, now or long ago."""

    request: int


@dataclass(frozen=True, slots=True)
class AdmitCold:
    request: int
    tokens: tuple[int, ...]
    salt: str


@dataclass(frozen=True, slots=True)
class Extend:
    """Pages for `tokens` more than are computed, at most up to the context."""

    request: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Run:
    """Pending copies, then `tokens` more, as far as there are pages. Beyond the prompt, tokens are chosen."""

    request: int
    tokens: int


@dataclass(frozen=True, slots=True)
class RunCopies:
    """The pending copies alone."""


@dataclass(frozen=True, slots=True)
class Publish:
    request: int


@dataclass(frozen=True, slots=True)
class Slide:
    request: int


@dataclass(frozen=True, slots=True)
class Truncate:
    """Gives `tokens` of what is allocated beyond `computed` back."""

    request: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Drop:
    request: int


@dataclass(frozen=True, slots=True)
class Fork:
    """`child` goes on from where `request` stands."""

    request: int
    child: int


@dataclass(frozen=True, slots=True)
class Pin:
    """What is cached of `tokens` goes last, for some steps."""

    tokens: tuple[int, ...]
    steps: int


@dataclass(frozen=True, slots=True)
class Reclaim:
    """Somebody was short of pages of one component: at most as many as nobody reads go."""

    component: int
    pages: int


@dataclass(frozen=True, slots=True)
class Flush:
    """A new epoch."""


Bookkeeping = Admit | AdmitCold | Extend | Publish | Slide | Truncate | Drop | Fork | Pin | Reclaim | Flush
"""What may happen inside a transaction: all but what a runner does."""


@dataclass(frozen=True, slots=True)
class Undone:
    """A transaction over `operations` that fails at its end: none of it has happened."""

    operations: tuple[Bookkeeping, ...]


Operation = Ask | Bookkeeping | Run | RunCopies | Undone

Script = tuple[Setting, list[Operation]]

_WORDS: dict[str, type[Any]] = {
    word.__name__: word
    for word in (
        Setting, Ask, Admit, AdmitCold, Extend, Run, RunCopies, Publish, Slide, Truncate, Drop, Fork, Pin,
        Reclaim, Flush, Undone,
    )
}  # fmt: skip


def write_script(script: Script) -> str:
    """One line each, the setting first, in words that `read_script` reads back."""
    setting, operations = script
    return "".join(f"{line!r}\n" for line in (setting, *operations))


def read_script(text: str) -> Script:
    """Blank lines and those that begin with # are skipped. ConfigError names the line that is none."""
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
    """A call of one of our words, a tuple of values, or a literal. Nothing is evaluated."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return _WORDS[node.func.id](**{str(word.arg): _value(word.value) for word in node.keywords})
    if isinstance(node, ast.Tuple):
        return tuple(_value(part) for part in node.elts)
    return ast.literal_eval(node)

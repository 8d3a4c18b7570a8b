"""Kinds of KV memory (full, window, chunked, state), each defined by the positions that a token reads.

`needed(end)` is the whole definition. Hits, sliding, eviction and admission are derived from it in
`page_rules`, so a new kind of attention is a new class here and nothing else.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class From:
    """Every position in `[start, end)` must be resident."""

    start: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state after exactly `at` tokens must be resident."""

    at: int


Need = From | Snapshot


class ComponentSpec(Protocol):
    """A kind of memory. `needed(end)`: what must be resident to compute the token at position `end`."""

    @property
    def name(self) -> str: ...

    def __hash__(self) -> int: ...

    def needed(self, end: int) -> Need: ...

    def cuts(self, start: int, end: int) -> Sequence[int]:
        """Positions in `(start, end]`, ascending, at which snapshots are kept. Spans stop there."""
        ...


@dataclass(frozen=True, slots=True)
class Full:
    """Full attention: a query reads all keys before it."""

    name: str = "full"

    def needed(self, end: int) -> From:
        return From(0)

    def cuts(self, start: int, end: int) -> Sequence[int]:
        return ()


@dataclass(frozen=True, slots=True)
class Window:
    """Sliding-window attention: a query at q reads keys k with q - window < k <= q, itself included."""

    window: int
    name: str = "window"

    def __post_init__(self) -> None:
        assert self.window >= 1, self.window

    def needed(self, end: int) -> From:
        # The token at `end` is one of the `window` keys, and is computed now.
        return From(max(0, end - (self.window - 1)))

    def cuts(self, start: int, end: int) -> Sequence[int]:
        return ()


@dataclass(frozen=True, slots=True)
class Chunked:
    """Chunked attention (Llama 4): a query reads the keys of its own chunk of `chunk` positions.

    No model family uses it yet. Tests do: a chunk's first token reads nothing, so a hit may end at a hole.
    """

    chunk: int
    name: str = "chunked"

    def __post_init__(self) -> None:
        assert self.chunk >= 1, self.chunk

    def needed(self, end: int) -> From:
        return From(end - end % self.chunk)  # nothing, for the first token of a chunk

    def cuts(self, start: int, end: int) -> Sequence[int]:
        return ()


@dataclass(frozen=True, slots=True)
class State:
    """A recurrent state, as in Mamba: it changes with every token; a snapshot is kept every `every` tokens.

    No model family uses it yet.
    """

    every: int = 256
    name: str = "state"

    def __post_init__(self) -> None:
        assert self.every >= 1, self.every

    def needed(self, end: int) -> Snapshot:
        return Snapshot(end)

    def cuts(self, start: int, end: int) -> Sequence[int]:
        return range(start - start % self.every + self.every, end + 1, self.every)

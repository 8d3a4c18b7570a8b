"""The contents of a story as values: cells, strips of cells, scenes of one engine, frames."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final


class Look(Enum):
    """The looks of words, then the looks of cells."""

    PLAIN = auto()
    STRONG = auto()
    FAINT = auto()
    OURS = auto()
    THEIRS = auto()
    BAD = auto()
    BLANK = auto()
    FREE = auto()
    NOT_YET = auto()
    HOLE = auto()
    TREE = auto()
    SHARED = auto()
    WRONG = auto()
    A = auto()
    B = auto()
    C = auto()
    D = auto()
    E = auto()


@dataclass(frozen=True, slots=True)
class Cell:
    """One page. The label is two characters wide."""

    look: Look
    label: str

    def __post_init__(self) -> None:
        assert len(self.label) == 2, self


FREE: Final = Cell(Look.FREE, "··")
"""A free page."""
NOT_YET: Final = Cell(Look.NOT_YET, "__")
"""A page of tokens that are not computed yet."""
HOLE: Final = Cell(Look.HOLE, "░░")
"""The full page is cached and the window page was evicted."""
BLANK: Final = Cell(Look.BLANK, "  ")


@dataclass(frozen=True, slots=True)
class Strip:
    """One line of a scene: a pool, a request's pages, a branch of the tree."""

    name: str
    cells: tuple[Cell, ...]
    note: str = ""


class Fate(Enum):
    """The state of an engine in a frame."""

    WELL = "well"
    HARMED = "harmed"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class Scene:
    """One engine at one moment, and the event that led there."""

    strips: tuple[Strip, ...]
    event: str
    fate: Fate = Fate.WELL


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a chart: a value for each of the chart's `xs`."""

    name: str
    look: Look
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """A step chart. `top` is the value at the upper edge; `unit` follows each value on the scale."""

    xs: tuple[int, ...]
    series: tuple[Series, ...]
    top: float
    unit: str
    below: str
    """The caption of `xs`, and of the values."""

    def __post_init__(self) -> None:
        assert all(len(series.values) == len(self.xs) for series in self.series), self


@dataclass(frozen=True, slots=True)
class Beside:
    """A frame: two engines at the same moment."""

    title: str
    text: str
    ours: Scene
    theirs: Scene


@dataclass(frozen=True, slots=True)
class Charted:
    """A frame: a measurement in one chart."""

    title: str
    text: str
    chart: Chart


Frame = Beside | Charted


@dataclass(frozen=True, slots=True)
class Story:
    """Frames in order. `other` names the second engine, `source` the report behind its part."""

    name: str
    other: str
    source: str
    frames: tuple[Frame, ...]


def one_cell(readers: Sequence[str], label: str) -> Cell:
    """A page of the tree, in the colour of its only reader, or of idle or shared pages."""
    if not readers:
        return Cell(Look.TREE, label)
    return Cell(Look[readers[0]] if len(readers) == 1 else Look.SHARED, label)

"""Lays a frame out as lines, for terminals and pictures alike. Lines are not wrapped later."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from textwrap import wrap
from typing import Final

from transom_lab.story.chart import chart_lines
from transom_lab.story.pieces import EMPTY, Line, Piece, length, padded
from transom_lab.story.scene import FREE, HOLE, Beside, Cell, Fate, Frame, Look, Scene, Story, Strip

PANE: Final = 76
GAP: Final = 3
NAME: Final = 8
AIRY_ROWS: Final = 36
MARK: Final = "!"
TEXT: Final = 104
"""The widest line of prose, on any screen."""

LEGEND: Final = (
    (Cell(Look.A, "a0"), "own"),
    (Cell(Look.A, "A0"), "cached, in use"),
    (Cell(Look.SHARED, "P0"), "shared"),
    (Cell(Look.TREE, "P0"), "cached, idle"),
    (HOLE, "window gone"),
    (FREE, "free"),
)


@dataclass(frozen=True, slots=True)
class Space:
    """Columns and rows to draw on. Without `rows` there is no limit."""

    columns: int
    rows: int | None = None

    @property
    def is_wide(self) -> bool:
        """Whether two panes fit side by side."""
        return self.columns >= 2 * PANE + GAP + 1

    @property
    def is_airy(self) -> bool:
        """Whether there is room for empty lines between pools, requests and tree."""
        return self.rows is not None and self.rows >= AIRY_ROWS


@dataclass(frozen=True, slots=True)
class Pane:
    """One engine, drawn: heading and strips, and the event below them."""

    picture: tuple[Line, ...]
    event: tuple[Line, ...]

    @property
    def lines(self) -> list[Line]:
        return [*self.picture, *self.event]


def frame_lines(story: Story, index: int, space: Space) -> list[Line]:
    """A whole frame: head, panes or chart, legend. Empty lines separate them as far as there is room."""
    frame = story.frames[index]
    space = Space(max(space.columns, PANE + 4), space.rows)
    blocks = [_head(story, index, space), *_body(story, frame, space), _foot(story, index)]
    spare = len(blocks) if space.rows is None else space.rows - sum(map(len, blocks))
    lines = list(blocks[0])
    for block in blocks[1:]:
        if block and spare > 0:
            lines.append(EMPTY)
            spare -= 1
        lines += block
    return [(Piece(" ", Look.PLAIN), *line) if line else line for line in lines]


def _head(story: Story, index: int, space: Space) -> list[Line]:
    frame = story.frames[index]
    where = f"{story.name} {index + 1}/{len(story.frames)}  "
    title = (Piece(where, Look.FAINT), Piece(frame.title, Look.STRONG))
    prose = wrap(frame.text, min(space.columns - 2, TEXT))
    return [title, *((Piece(words, Look.PLAIN),) for words in prose)]


def _body(story: Story, frame: Frame, space: Space) -> list[list[Line]]:
    if not isinstance(frame, Beside):
        return [chart_lines(frame.chart, PANE)]
    left = _pane("Transom", Look.OURS, frame.ours, space)
    right = _pane(story.other, Look.THEIRS, frame.theirs, space)
    return [_side_by_side(left, right)] if space.is_wide else [left.lines, right.lines]


def _side_by_side(left: Pane, right: Pane) -> list[Line]:
    """Two panes side by side, with their events starting on the same line."""
    return [*_zipped(left.picture, right.picture), *_zipped(left.event, right.event)]


def _zipped(left: Sequence[Line], right: Sequence[Line]) -> list[Line]:
    pairs = zip_longest(left, right, fillvalue=EMPTY)
    return [(*padded(ours, PANE + GAP), *theirs) if theirs else ours for ours, theirs in pairs]


def _pane(name: str, look: Look, scene: Scene, space: Space) -> Pane:
    dead = scene.fate is Fate.DEAD
    title = f"── {name} {'── dead ' if dead else ''}"
    lines: list[Line] = [(Piece(title.ljust(PANE, "─"), Look.BAD if dead else look),)]
    kind = ""
    for strip in scene.strips:
        if space.is_airy and _kind(strip) != kind:
            lines.append(EMPTY)
        kind = _kind(strip)
        lines.append(_strip(strip, dead))
    return Pane(tuple(lines), (*[EMPTY] * space.is_airy, *_event(scene, look)))


def _kind(strip: Strip) -> str:
    """The group of a strip: strips of one group are drawn together."""
    return "pool" if strip.name in ("full", "window") else "request" if len(strip.name) == 1 else "tree"


def _event(scene: Scene, look: Look) -> list[Line]:
    text = Look.PLAIN if scene.fate is Fate.WELL else Look.BAD
    heads = [Piece("▸ ", look), *[Piece("  ", look)] * len(scene.event)]
    return [(head, Piece(line, text)) for head, line in zip(heads, wrap(scene.event, PANE - 2), strict=False)]


def _strip(strip: Strip, dead: bool) -> Line:
    """A line of cells. A mark follows each wrong page, for readers without colours."""
    pieces = [Piece(strip.name.ljust(NAME), Look.FAINT)]
    for cell in strip.cells:
        is_wrong = cell.look is Look.WRONG
        look = Look.FAINT if dead and not is_wrong and cell.look is not Look.BLANK else cell.look
        pieces += [Piece(cell.label, look), Piece(MARK if is_wrong else " ", Look.BAD)]
    if strip.note:
        pieces.append(Piece(" " * bool(strip.cells) + strip.note, Look.FAINT))
    elif strip.cells and pieces[-1].text == " ":
        del pieces[-1]
    assert length(pieces) <= PANE, (strip, length(pieces))
    return tuple(pieces)


def _foot(story: Story, index: int) -> list[Line]:
    """The legend of cells, and on the first frame the source of the other side."""
    source: Line = (Piece(story.source, Look.FAINT),)
    lines = [_legend()] if isinstance(story.frames[index], Beside) else []
    return [*lines, source] if index == 0 else lines


def _legend() -> Line:
    pieces: list[Piece] = []
    for cell, meaning in LEGEND:
        pieces += [Piece(cell.label, cell.look), Piece(f" {meaning}  ", Look.FAINT)]
    return (*pieces[:-1], Piece(pieces[-1].text.rstrip(), Look.FAINT))


def width_of(lines: Iterable[Line]) -> int:
    """The width of the longest line, in columns."""
    return max((length(line) for line in lines), default=0)

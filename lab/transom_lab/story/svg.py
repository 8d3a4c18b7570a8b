"""Draws frames as SVG: the lines of the terminal, with cells as rounded boxes and rules as strokes."""

import re
from collections.abc import Iterable, Sequence
from typing import Final
from xml.sax.saxutils import escape, quoteattr

from transom_lab.story.layout import MARK, Space, frame_lines, width_of
from transom_lab.story.pieces import Line, Piece
from transom_lab.story.scene import Look, Story
from transom_lab.story.theme import THEME

COLUMNS: Final = 80
STEP, ROW, MARGIN, FONT = 8.43, 21.0, 18.0, 14
BOX_HEIGHT: Final = 16.0
BASE: Final = 14.5
"""The baseline of text, below the top of its row."""
INK, FAINT_INK = "#24303c", "#66717d"
PARTS: Final = {
    "─": "lr", "━": "lr", "│": "ud", "┃": "ud", "┬": "lrd", "├": "udr", "└": "ur", "┤": "udl",
    "┓": "ld", "┏": "rd", "┗": "ur", "┛": "ul", "┳": "lrd", "┻": "lru",
}  # fmt: skip
"""The strokes of a box character, from its middle to the left, right, up or down."""
HEAVY: Final = "━┃┓┏┗┛┳┻"
FONTS: Final = "DejaVu Sans Mono, Menlo, Consolas, ui-monospace, monospace"
HATCH: Final = (
    '<defs><pattern id="h" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect width="5" height="5" fill="#fff"/><path d="M0 0v5" stroke="#aab4bf" stroke-width="2"/>'
    "</pattern></defs>"
)


def picture(story: Story, indices: Sequence[int]) -> str:
    """An SVG of these frames, one below the other."""
    lines: list[Line] = []
    for number, index in enumerate(indices):
        lines += [()] * 2 * bool(number) + frame_lines(story, index, Space(COLUMNS))
    width = 2 * MARGIN + STEP * width_of(lines)
    height = 2 * MARGIN + ROW * len(lines)
    what = "; ".join(story.frames[index].title for index in indices)
    body = "\n".join(part for row, line in enumerate(lines) for part in _line(line, MARGIN + ROW * row))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" font-family="{FONTS}" '
        f'font-size="{FONT}" role="img" aria-label={quoteattr(f"{story.name}: {what}")}>\n'
        f'<rect width="{width:g}" height="{height:g}" fill="#fff"/>\n{HATCH}\n{body}\n</svg>\n'
    )


def _line(line: Line, top: float) -> Iterable[str]:
    column = 0
    for piece in line:
        if piece.text.strip():
            yield from _piece(piece, MARGIN + STEP * column, top)
        column += len(piece.text)


def _piece(piece: Piece, left: float, top: float) -> Iterable[str]:
    box = _box(piece.look)
    if box and len(piece.text) == 2:
        size = f'width="20.8" height="{_n(BOX_HEIGHT)}"'
        yield f'<rect x="{_n(left - 2)}" y="{_n(top + 2)}" {size} rx="3" {box}/>'
        if piece.look not in (Look.FREE, Look.NOT_YET, Look.HOLE):
            yield _label(piece, left + STEP, top)
    elif piece.text != MARK:  # the mark replaces a colour in plain text, and a picture has colours
        yield from _ruled(piece, left, top)


def _ruled(piece: Piece, left: float, top: float) -> Iterable[str]:
    """Strokes, and the words between them. Each group of words is placed by itself: SVG collapses spaces."""
    strokes = "".join(_strokes(sign, left + STEP * place, top) for place, sign in enumerate(piece.text))
    if strokes:
        width = 2 if any(sign in HEAVY for sign in piece.text) else 1
        yield f'<path d="{strokes}" fill="none" stroke="{_ink(piece.look)}" stroke-width="{width}"/>'
    rest = "".join(" " if sign in PARTS else sign for sign in piece.text)
    for group in re.finditer(r"\S+(?: \S+)*", rest):
        yield _words(group.group(), piece.look, left + STEP * group.start(), top)


def _box(look: Look) -> str:
    if look is Look.FREE:
        return 'fill="#eef1f4"'
    if look is Look.NOT_YET:
        return 'fill="#fff" stroke="#aab4bf" stroke-dasharray="2 2"'
    if look is Look.HOLE:
        return 'fill="url(#h)" stroke="#aab4bf"'
    return f'fill="{THEME[look].ground}"' if THEME[look].ground else ""


def _words(text: str, look: Look, left: float, top: float) -> str:
    size = f' textLength="{_n(STEP * len(text))}"' if len(text) > 2 else ""
    where = f'x="{_n(left)}" y="{_n(top + BASE)}"'
    return f'<text {where} fill="{_ink(look)}"{_bold(look)}{size}>{escape(text)}</text>'


def _label(piece: Piece, middle: float, top: float) -> str:
    where = f'x="{_n(middle)}" y="{_n(top + BASE)}" text-anchor="middle"'
    return f'<text {where} fill="{_ink(piece.look)}"{_bold(piece.look)}>{escape(piece.text.strip())}</text>'


def _bold(look: Look) -> str:
    return ' font-weight="bold"' if THEME[look].weight == "bold" else ""


def _ink(look: Look) -> str:
    return THEME[look].ink or (FAINT_INK if look is Look.FAINT else INK)


def _strokes(sign: str, left: float, top: float) -> str:
    """From the middle of the column to its edges."""
    x, y = left + STEP / 2, top + ROW / 2
    ends = {"l": f"H{_n(left)}", "r": f"H{_n(left + STEP)}", "u": f"V{_n(top)}", "d": f"V{_n(top + ROW)}"}
    return "".join(f"M{_n(x)} {_n(y)}{ends[part]}" for part in PARTS.get(sign, ""))


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")

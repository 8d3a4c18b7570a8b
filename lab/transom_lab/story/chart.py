"""Draws a step chart as lines of text: box characters, a scale at the left, numbers below."""

from itertools import pairwise
from typing import Final

from transom_lab.story.pieces import Line, Piece
from transom_lab.story.scene import Chart, Look, Series

HEIGHT: Final = 12
SCALE: Final = 8
"""Columns of the scale."""

Grid = list[list[Piece]]


def chart_lines(chart: Chart, width: int) -> list[Line]:
    """The legend, the chart and its captions, within `width` columns."""
    step = (width - SCALE) // len(chart.xs)
    grid: Grid = [[Piece(" ", Look.PLAIN)] * (step * len(chart.xs)) for _ in range(HEIGHT + 1)]
    for draw in (_levels, _risers):
        for series in reversed(chart.series):
            draw(grid, _rows(chart, series), step, series.look)
    lines = [_names(chart)]
    for row, cells in enumerate(grid):
        value = chart.top * (HEIGHT - row) / HEIGHT
        scale = f"{value:g}{chart.unit}" if row % (HEIGHT // 2) == 0 else ""
        lines.append((Piece(f"{scale:>{SCALE - 2}} ┤", Look.FAINT), *_merged(cells)))
    numbers = "".join(f"{x:>{step}}" for x in chart.xs)
    below = f"{'':{SCALE}}{chart.below}"
    return [*lines, (Piece(f"{'':{SCALE}}{numbers}", Look.FAINT),), (Piece(below, Look.FAINT),)]


def _names(chart: Chart) -> Line:
    pieces = [Piece(" " * SCALE, Look.PLAIN)]
    for series in chart.series:
        pieces += [Piece("━━ ", series.look), Piece(f"{series.name}   ", Look.PLAIN)]
    return tuple(pieces)


def _rows(chart: Chart, series: Series) -> list[int]:
    return [HEIGHT - round(HEIGHT * min(value, chart.top) / chart.top) for value in series.values]


def _levels(grid: Grid, rows: list[int], step: int, look: Look) -> None:
    for number, row in enumerate(rows):
        for column in range(number * step, (number + 1) * step):
            grid[row][column] = Piece("━", look)


def _risers(grid: Grid, rows: list[int], step: int, look: Look) -> None:
    """The vertical strokes between levels. A corner on the line of another series becomes a crossing."""
    for number, (before, row) in enumerate(pairwise(rows), start=1):
        if before == row:
            continue
        at, (high, low) = number * step, sorted((before, row))
        for between in range(high + 1, low):
            grid[between][at] = Piece("┃", look)
        falls = before == high
        for end, corner, crossing in ((high, "┓" if falls else "┏", "┳"), (low, "┗" if falls else "┛", "┻")):
            is_crossing = grid[end][at].text == "━" and grid[end][at].look is not look
            grid[end][at] = Piece(crossing if is_crossing else corner, look)


def _merged(cells: list[Piece]) -> list[Piece]:
    """Adjacent pieces of one look joined into one."""
    pieces: list[Piece] = []
    for cell in cells:
        if pieces and pieces[-1].look is cell.look:
            pieces[-1] = Piece(pieces[-1].text + cell.text, cell.look)
        else:
            pieces.append(cell)
    return pieces

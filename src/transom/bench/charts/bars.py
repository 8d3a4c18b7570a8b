"""Horizontal bars: one group per name, with one bar per series and its value at the end of the bar."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from transom.bench.charts.page import COLOURS, GREY, WIDTH, Chart, page, text

TOP, BOTTOM, RIGHT = 92, 62, 90
"""Margins of the bars, in pixels. The values are written into the right margin."""
THICK, GAP, BETWEEN = 14, 3, 12
"""Pixels: a bar, between bars of a group, and between groups."""
LETTER = 7
"""Approximate width of a letter, in pixels. SVG cannot measure text."""


@dataclass(frozen=True, slots=True)
class Group:
    """One value for each series; None draws no bar."""

    name: str
    values: Sequence[float | None]


def bars_svg(chart: Chart, series: Sequence[str], groups: Sequence[Group]) -> str:
    """Bars begin at 0 and share one scale. `series` names the values of every group, in order."""
    left = 40 + LETTER * max((len(group.name) for group in groups), default=0)
    most = max((v for group in groups for v in group.values if v is not None), default=0.0) or 1.0
    scale = (WIDTH - RIGHT - left) / most
    drawn = [text(left, TOP - 10, chart.x_unit, f'fill="{GREY}"')]
    y = TOP
    for group in groups:
        middle = y + _height(series) / 2 + 4
        drawn.append(text(left - 10, middle, group.name, 'text-anchor="end"'))
        drawn += _bars(group.values, left, y, scale)
        y += _height(series) + BETWEEN
    legend = [(name, _colour(number)) for number, name in enumerate(series)] if len(series) > 1 else []
    return page(chart, y + BOTTOM, drawn, legend)


def _bars(values: Sequence[float | None], left: int, y: int, scale: float) -> Iterator[str]:
    for number, value in enumerate(values):
        if value is None:
            continue
        at, width = y + number * (THICK + GAP), value * scale
        yield f'<rect x="{left}" y="{at}" width="{width:.1f}" height="{THICK}" fill="{_colour(number)}"/>'
        yield text(left + width + 6, at + THICK - 3, f"{value:,.4g}", f'font-size="11" fill="{GREY}"')


def _height(series: Sequence[str]) -> int:
    return len(series) * (THICK + GAP) - GAP


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]

"""Horizontal bar charts: a group of bars per name, one bar per series, with its value at its end."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from transom.bench.charts.page import COLOURS, GREY, WIDTH, Chart, page, text

TOP, BOTTOM, RIGHT = 92, 62, 90
"""Margins around the bars, in pixels. The right one has space for the values."""
BAR_HEIGHT, BAR_GAP, GROUP_GAP = 14, 3, 12
"""Height of a bar, distance between bars of a group, and distance between groups, in pixels."""
LETTER_WIDTH = 7
"""Approximate width of a letter in pixels."""


@dataclass(frozen=True, slots=True)
class Group:
    """One value per series; None draws no bar."""

    name: str
    values: Sequence[float | None]


def bars_svg(chart: Chart, series: Sequence[str], groups: Sequence[Group]) -> str:
    """All bars start at 0 and share one scale. `series`: the names of a group's values, in order."""
    left = 40 + LETTER_WIDTH * max((len(group.name) for group in groups), default=0)
    most = max((v for group in groups for v in group.values if v is not None), default=0.0) or 1.0
    scale = (WIDTH - RIGHT - left) / most
    drawn = [text(left, TOP - 10, chart.x_unit, f'fill="{GREY}"')]
    y = TOP
    for group in groups:
        middle = y + _height(series) / 2 + 4
        drawn.append(text(left - 10, middle, group.name, 'text-anchor="end"'))
        drawn += _bars(group.values, left, y, scale)
        y += _height(series) + GROUP_GAP
    legend = [(name, _colour(number)) for number, name in enumerate(series)] if len(series) > 1 else []
    return page(chart, y + BOTTOM, drawn, legend)


def _bars(values: Sequence[float | None], left: int, y: int, scale: float) -> Iterator[str]:
    for number, value in enumerate(values):
        if value is None:
            continue
        at, width = y + number * (BAR_HEIGHT + BAR_GAP), value * scale
        colour = _colour(number)
        yield f'<rect x="{left}" y="{at}" width="{width:.1f}" height="{BAR_HEIGHT}" fill="{colour}"/>'
        yield text(left + width + 6, at + BAR_HEIGHT - 3, f"{value:,.4g}", f'font-size="11" fill="{GREY}"')


def _height(series: Sequence[str]) -> int:
    return len(series) * (BAR_HEIGHT + BAR_GAP) - BAR_GAP


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]

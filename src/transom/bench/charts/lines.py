"""Line charts and stacked areas. Both axes begin at 0."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import floor, log10

from transom.bench.charts.page import COLOURS, GREY, LEFT, RULE, WIDTH, Chart, page, text

HEIGHT = 420
RIGHT, TOP, BOTTOM = 24, 84, 84
"""Margins of the plot, in pixels; `LEFT` is common to all charts."""


@dataclass(frozen=True, slots=True)
class Series:
    """Values `y` over the x of the chart, or over `x` of their own."""

    name: str
    y: Sequence[float]
    x: Sequence[float] = ()
    colour: str = ""
    """Default: the next of `COLOURS`."""


def lines_svg(chart: Chart, series: Sequence[Series], y_max: float) -> str:
    """One line per series, over its own `x`."""
    x_max = max((max(s.x, default=0.0) for s in series), default=0.0)
    field = Field(x_max or 1.0, y_max)
    drawn = [
        f'<polyline points="{field.points(s.x, s.y)}" fill="none" stroke="{colour}" stroke-width="2"/>'
        for s, colour in zip(series, _colours(series), strict=True)
    ]
    return _document(chart, field, drawn, series)


def areas_svg(chart: Chart, x: Sequence[float], series: Sequence[Series]) -> str:
    """Stacked areas over the same `x`. The first series is at the bottom."""
    below = [0.0] * len(x)
    tops = []
    for one in series:
        below = [low + y for low, y in zip(below, one.y, strict=True)]
        tops.append(below)
    field = Field(max(x, default=0.0) or 1.0, max(below, default=0.0) or 1.0)
    drawn = []
    floors = [[0.0] * len(x), *tops]
    for low, high, colour in zip(floors, tops, _colours(series), strict=False):
        outline = f"{field.points(x, high)} {field.points(x[::-1], low[::-1])}"
        drawn.append(f'<polygon points="{outline}" fill="{colour}"/>')
    return _document(chart, field, drawn, series)


@dataclass(frozen=True, slots=True)
class Field:
    """Maps values to pixels."""

    x_max: float
    y_max: float

    def x(self, value: float) -> float:
        return LEFT + value / self.x_max * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - value / self.y_max * (HEIGHT - TOP - BOTTOM)

    def points(self, x: Sequence[float], y: Sequence[float]) -> str:
        return " ".join(f"{self.x(a):.1f},{self.y(b):.1f}" for a, b in zip(x, y, strict=True))


def ticks(most: float, count: int = 5) -> list[float]:
    """About `count` round numbers from 0 to `most`."""
    rough = most / count
    scale = 10.0 ** floor(log10(rough))
    step = next(scale * nice for nice in (1, 2, 5, 10) if scale * nice >= rough * 0.999)
    return [step * number for number in range(int(most / step * 1.001) + 1)]


def _colours(series: Sequence[Series]) -> list[str]:
    return [one.colour or COLOURS[number % len(COLOURS)] for number, one in enumerate(series)]


def _document(chart: Chart, field: Field, drawn: Sequence[str], series: Sequence[Series]) -> str:
    legend = [(one.name, colour) for one, colour in zip(series, _colours(series), strict=True)]
    return page(chart, HEIGHT, [*_rules(chart, field), *drawn], legend)


def _rules(chart: Chart, field: Field) -> Iterator[str]:
    right, low = WIDTH - RIGHT, HEIGHT - BOTTOM
    for value in ticks(field.y_max):
        y = field.y(value)
        yield f'<line x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="{RULE}"/>'
        yield text(LEFT - 8, y + 4, f"{value:,g}", f'text-anchor="end" fill="{GREY}"')
    for value in ticks(field.x_max, 8):
        yield text(field.x(value), low + 18, f"{value:,g}", f'text-anchor="middle" fill="{GREY}"')
    yield text(24, TOP - 12, chart.y_unit, f'fill="{GREY}"')
    yield text(right, low + 36, chart.x_unit, f'text-anchor="end" fill="{GREY}"')

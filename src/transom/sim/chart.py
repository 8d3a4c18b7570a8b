"""Charts as SVG: lines and stacked areas over one axis each, in the style of this project's pictures."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from math import floor, log10

INK, GREY, RULE = "#24303c", "#7d8a97", "#e3e8ed"
COLOURS = ("#2f6db0", "#e0a13a", "#5f97cf", "#c4573a", "#4f9d69", "#9fb8d6", "#8a6fb0", "#f0cd94")
WIDTH, HEIGHT = 900, 420
LEFT, RIGHT, TOP, BOTTOM = 84, 24, 84, 84
"""Around the field in which values are drawn."""


@dataclass(frozen=True, slots=True)
class Series:
    """One y for each x of the chart, or an x of its own for each y."""

    name: str
    y: Sequence[float]
    x: Sequence[float] = ()
    colour: str = ""
    """The next of `COLOURS` if not given."""


@dataclass(frozen=True, slots=True)
class Chart:
    """`x_unit` and `y_unit` are written beside the axes."""

    title: str
    subtitle: str
    x_unit: str
    y_unit: str


def lines_svg(chart: Chart, series: Sequence[Series], y_max: float) -> str:
    """A line for each series over its own `x`."""
    x_max = max((max(s.x, default=0.0) for s in series), default=0.0)
    field = Field(x_max or 1.0, y_max)
    drawn = [
        f'<polyline points="{field.points(s.x, s.y)}" fill="none" stroke="{colour}" stroke-width="2"/>'
        for s, colour in zip(series, _colours(series), strict=True)
    ]
    return _document(chart, field, drawn, series)


def areas_svg(chart: Chart, x: Sequence[float], series: Sequence[Series]) -> str:
    """Areas over the same `x`, one on top of the other, the first lowest."""
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
    """Where values lie on the picture: both axes begin at 0."""

    x_max: float
    y_max: float

    def x(self, value: float) -> float:
        return LEFT + value / self.x_max * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - value / self.y_max * (HEIGHT - TOP - BOTTOM)

    def points(self, x: Sequence[float], y: Sequence[float]) -> str:
        return " ".join(f"{self.x(a):.1f},{self.y(b):.1f}" for a, b in zip(x, y, strict=True))


def ticks(most: float, count: int = 5) -> list[float]:
    """Round numbers from 0 up to `most`, about `count` of them."""
    rough = most / count
    scale = 10.0 ** floor(log10(rough))
    step = next(scale * nice for nice in (1, 2, 5, 10) if scale * nice >= rough * 0.999)
    return [step * number for number in range(int(most / step * 1.001) + 1)]


def _colours(series: Sequence[Series]) -> list[str]:
    return [one.colour or COLOURS[number % len(COLOURS)] for number, one in enumerate(series)]


def _document(chart: Chart, field: Field, drawn: Sequence[str], series: Sequence[Series]) -> str:
    title = escape(chart.title)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
            f'font-family="Helvetica, Arial, sans-serif" font-size="13" role="img" aria-label="{title}">',
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
            _text(24, 30, chart.title, 'font-size="18" font-weight="bold"'),
            _text(24, 52, chart.subtitle),
            *_rules(chart, field),
            *drawn,
            *_legend(series),
            "</svg>",
            "",
        ]
    )


def _rules(chart: Chart, field: Field) -> Iterator[str]:
    right, low = WIDTH - RIGHT, HEIGHT - BOTTOM
    for value in ticks(field.y_max):
        y = field.y(value)
        yield f'<line x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="{RULE}"/>'
        yield _text(LEFT - 8, y + 4, f"{value:,g}", f'text-anchor="end" fill="{GREY}"')
    for value in ticks(field.x_max, 8):
        yield _text(field.x(value), low + 18, f"{value:,g}", f'text-anchor="middle" fill="{GREY}"')
    yield _text(24, TOP - 12, chart.y_unit, f'fill="{GREY}"')
    yield _text(right, low + 36, chart.x_unit, f'text-anchor="end" fill="{GREY}"')


def _legend(series: Sequence[Series]) -> Iterator[str]:
    width = (WIDTH - 2 * LEFT) / max(1, len(series))
    for number, (one, colour) in enumerate(zip(series, _colours(series), strict=True)):
        x, y = LEFT + number * width, HEIGHT - 30
        yield f'<rect x="{x:.0f}" y="{y}" width="14" height="14" rx="3" fill="{colour}"/>'
        yield _text(x + 22, y + 12, one.name, 'font-size="12"')


def _text(x: float, y: float, text: str, how: str = "") -> str:
    fill = "" if "fill=" in how else f'fill="{INK}" '
    return f'<text x="{x:.0f}" y="{y:.0f}" {fill}{how}>{escape(text)}</text>'

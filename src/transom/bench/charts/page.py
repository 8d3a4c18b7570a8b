"""The parts that all charts share: a white page with a title, text, colours, and a legend below."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

INK, GREY, RULE = "#24303c", "#7d8a97", "#e3e8ed"
COLOURS = ("#2f6db0", "#e0a13a", "#5f97cf", "#c4573a", "#4f9d69", "#9fb8d6", "#8a6fb0", "#f0cd94")
WIDTH = 900
LEFT = 84
"""Left edge of the plot and of the legend, in pixels."""


@dataclass(frozen=True, slots=True)
class Chart:
    """Texts of a chart. `x_unit` and `y_unit` label the axes."""

    title: str
    subtitle: str
    x_unit: str
    y_unit: str


def page(chart: Chart, height: int, drawn: Sequence[str], legend: Sequence[tuple[str, str]]) -> str:
    """The SVG document: the title, the elements `drawn`, and a legend of names and colours."""
    title = escape(chart.title)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'font-family="Helvetica, Arial, sans-serif" font-size="13" role="img" aria-label="{title}">',
            f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
            text(24, 30, chart.title, 'font-size="18" font-weight="bold"'),
            text(24, 52, chart.subtitle),
            *drawn,
            *_legend(legend, height - 30),
            "</svg>",
            "",
        ]
    )


def _legend(entries: Sequence[tuple[str, str]], y: int) -> list[str]:
    width = (WIDTH - 2 * LEFT) / max(1, len(entries))
    drawn = []
    for number, (name, colour) in enumerate(entries):
        x = LEFT + number * width
        drawn.append(f'<rect x="{x:.0f}" y="{y}" width="14" height="14" rx="3" fill="{colour}"/>')
        drawn.append(text(x + 22, y + 12, name, 'font-size="12"'))
    return drawn


def text(x: float, y: float, words: str, attributes: str = "") -> str:
    fill = "" if "fill=" in attributes else f'fill="{INK}" '
    return f'<text x="{x:.0f}" y="{y:.0f}" {fill}{attributes}>{escape(words)}</text>'

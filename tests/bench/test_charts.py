"""Charts are well-formed SVG, and draw every value at its place on the axis."""

from xml.etree import ElementTree

import pytest
from tests.lab.sim.traces import arrival_of, setting, tokens, trace

from transom.bench.charts.bars import Group, bars_svg
from transom.bench.charts.lines import BOTTOM, HEIGHT, RIGHT, TOP, Series, areas_svg, lines_svg, ticks
from transom.bench.charts.page import LEFT, WIDTH, Chart
from transom_lab.sim.pictures import hits_svg, memory_svg, ttft_svg
from transom_lab.sim.player import play

SVG = "{http://www.w3.org/2000/svg}"
CHART = Chart("a < b", "under it", "s", "MiB")


def points(svg: str, kind: str) -> list[list[tuple[float, float]]]:
    shapes = ElementTree.fromstring(svg).findall(SVG + kind)
    pairs = [[p.split(",") for p in shape.attrib["points"].split()] for shape in shapes]
    return [[(float(x), float(y)) for x, y in shape] for shape in pairs]


def test_a_line_between_the_extremes_connects_the_corners_of_the_plot() -> None:
    (line,) = points(lines_svg(CHART, [Series("one", [0.0, 100.0], [0.0, 8.0])], 100.0), "polyline")
    assert line == [(LEFT, HEIGHT - BOTTOM), (WIDTH - RIGHT, TOP)]


def test_areas_are_stacked() -> None:
    series = [Series("low", [1.0, 1.0]), Series("high", [3.0, 1.0])]
    low, high = points(areas_svg(CHART, [0.0, 2.0], series), "polygon")
    middle = HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) / 4
    assert low[:2] == [(LEFT, middle), (WIDTH - RIGHT, middle)]
    assert high[0] == (LEFT, TOP) and high[-1] == low[0]


@pytest.mark.parametrize(("most", "expected"), [(100.0, [0, 20, 40, 60, 80, 100]), (0.7, [0, 0.2, 0.4, 0.6])])
def test_ticks_are_round_and_reach_the_top(most: float, expected: list[float]) -> None:
    assert ticks(most) == pytest.approx(expected)


def test_bars_are_as_long_as_their_values_and_none_draws_no_bar() -> None:
    groups = [Group("match", [4.0, 2.0]), Group("take <96>", [1.0, None])]
    document = ElementTree.fromstring(bars_svg(CHART, ("page 16", "page 1"), groups))
    background, first, second, third, *legend = document.findall(SVG + "rect")
    widths = [float(bar.attrib["width"]) for bar in (first, second, third)]
    assert widths == pytest.approx([4 * widths[2], 2 * widths[2], widths[2]], abs=0.5) and widths[2] > 0
    assert len({bar.attrib["x"] for bar in (first, second, third)}) == 1
    assert [square.attrib["fill"] for square in legend] == [first.attrib["fill"], second.attrib["fill"]]
    assert float(background.attrib["height"]) > float(third.attrib["y"]) > float(second.attrib["y"])


def test_pictures_of_a_simulation_with_a_single_request_are_well_formed() -> None:
    played = play(trace([arrival_of(tokens(0, 4), 1)]), setting())
    for svg in (memory_svg(played), hits_svg(played), ttft_svg({"value": played})):
        assert ElementTree.fromstring(svg).tag == SVG + "svg"

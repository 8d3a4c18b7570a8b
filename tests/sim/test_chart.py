"""Charts: well-formed, and every value where its axis says."""

from xml.etree import ElementTree

import pytest
from tests.sim.scripts import asks, setting, tokens, trace

from transom.sim.chart import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Chart,
    Series,
    areas_svg,
    lines_svg,
    ticks,
)
from transom.sim.pictures import hits_svg, memory_svg, ttft_svg
from transom.sim.player import play

SVG = "{http://www.w3.org/2000/svg}"
CHART = Chart("a < b", "under it", "s", "MiB")


def points(svg: str, kind: str) -> list[list[tuple[float, float]]]:
    shapes = ElementTree.fromstring(svg).findall(SVG + kind)
    pairs = [[p.split(",") for p in shape.attrib["points"].split()] for shape in shapes]
    return [[(float(x), float(y)) for x, y in shape] for shape in pairs]


def test_ends_of_a_line_are_corners_of_the_field() -> None:
    (line,) = points(lines_svg(CHART, [Series("one", [0.0, 100.0], [0.0, 8.0])], 100.0), "polyline")
    assert line == [(LEFT, HEIGHT - BOTTOM), (WIDTH - RIGHT, TOP)]


def test_areas_stand_on_each_other() -> None:
    series = [Series("low", [1.0, 1.0]), Series("high", [3.0, 1.0])]
    low, high = points(areas_svg(CHART, [0.0, 2.0], series), "polygon")
    middle = HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) / 4
    assert low[:2] == [(LEFT, middle), (WIDTH - RIGHT, middle)]
    assert high[0] == (LEFT, TOP) and high[-1] == low[0]


@pytest.mark.parametrize(("most", "expected"), [(100.0, [0, 20, 40, 60, 80, 100]), (0.7, [0, 0.2, 0.4, 0.6])])
def test_ticks_are_round_and_reach_the_top(most: float, expected: list[float]) -> None:
    assert ticks(most) == pytest.approx(expected)


def test_pictures_of_a_simulation_are_well_formed_even_of_one_request_without_time() -> None:
    played = play(trace([asks(tokens(0, 4), 1)]), setting())
    for svg in (memory_svg(played), hits_svg(played), ttft_svg({"value": played})):
        assert ElementTree.fromstring(svg).tag == SVG + "svg"

"""SVG pictures of a simulation: memory over time, hits over time, distribution of times to first token."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from transom.bench.charts.lines import Series, areas_svg, lines_svg
from transom.bench.charts.page import Chart
from transom.bench.files import write_files
from transom_lab.sim.player import Played
from transom_lab.sim.records import StartKind
from transom_lab.sim.summary import summary_of, ttft_ms

MIB = float(1 << 20)
COLOURS = (("#2f6db0", "#9fb8d6"), ("#e0a13a", "#f0cd94"), ("#4f9d69", "#b5d6c0"))
"""By component: of used and of cached pages."""


def write_pictures(runs: Mapping[str, Played], folder: Path) -> list[Path]:
    """Draws `runs`, by name. Returns the paths. Raises ConfigError if a file cannot be written."""
    pictures = {"ttft.svg": ttft_svg(runs)}
    for name, played in runs.items():
        suffix = f"-{name}" if len(runs) > 1 else ""
        pictures[f"memory{suffix}.svg"] = memory_svg(played)
        pictures[f"hits{suffix}.svg"] = hits_svg(played)
    return write_files(folder, pictures)


def memory_svg(played: Played) -> str:
    series = []
    for number, component in enumerate(played.sizing.layout.components):
        used = [sample.used_bytes[number] / MIB for sample in played.samples]
        cached = [sample.cached_bytes[number] / MIB for sample in played.samples]
        dark, light = COLOURS[number % len(COLOURS)]
        series.append(Series(f"{component.name}, used by requests", used, colour=dark))
        series.append(Series(f"{component.name}, cached beside", cached, colour=light))
    chart = Chart("Memory over time", _about(played), "s", "MiB")
    return areas_svg(chart, [sample.at for sample in played.samples], series)


def hits_svg(played: Played) -> str:
    series = [
        Series(words, [sample.tokens[kind] / 1e3 for sample in played.samples])
        for kind, words in (
            (StartKind.ISLAND, "found: island"),
            (StartKind.COLD, "computed"),
            (StartKind.REPAIR, "found: repair"),
        )
    ]
    share = summary_of(played).hit_share
    about = f"{_about(played)}: {share:.1%} of prompt tokens were found"
    chart = Chart("Prompt tokens of finished requests", about, "s", "thousands")
    return areas_svg(chart, [sample.at for sample in played.samples], series)


def ttft_svg(runs: Mapping[str, Played]) -> str:
    """Cumulative share of requests over their time to first token, one line per run.

    Drawn up to the 99th percentile: a few outliers would press the rest into the left margin.
    """
    series = []
    for name, played in runs.items():
        times = np.sort(np.array(ttft_ms(played) or [0.0]))
        shown = times[times <= np.percentile(times, 99)]
        share = np.arange(1, len(shown) + 1) / len(times) * 100
        x = [float(shown[0]), *shown.tolist()]
        series.append(Series(name, [0.0, *share.tolist()], x))
    chart = Chart("Time to first token", _about(next(iter(runs.values()))), "ms", "% of requests")
    return lines_svg(chart, series, 100.0)


def _about(played: Played) -> str:
    return (
        f"{played.trace.name}, {len(played.records):,} requests in {played.ended_at:,.1f} s of virtual time"
    )

"""Results of a benchmark: sheets of figures, printed as tables and written as JSON and charts."""

import json
import platform
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.table import Table

from transom import __version__
from transom.bench.charts.bars import Group, bars_svg
from transom.bench.charts.page import Chart
from transom.bench.files import screen, write_files, writing
from transom.config import cores_available

Figure = float | None
"""None if the column does not apply to the row."""


@dataclass(frozen=True, slots=True)
class ResultFiles:
    """Files that the user wants in addition to the table: figures as JSON, and a folder of charts."""

    json: Path | None = None
    svg: Path | None = None

    def claim(self) -> None:
        """Raises ConfigError if a file cannot be written, so that this shows before minutes of measuring."""
        if self.json is not None:
            with writing(self.json), self.json.open("a", encoding="utf-8"):
                pass
        if self.svg is not None:
            write_files(self.svg, {})


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a sheet, with a figure for each of its columns."""

    name: str
    figures: tuple[Figure, ...]


@dataclass(frozen=True, slots=True)
class Sheet:
    """Rows of figures. `drawn` are the columns, of one `unit`, that the chart shows as bars."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    drawn: tuple[str, ...]
    unit: str

    def as_json(self) -> dict[str, object]:
        rows = [{"name": r.name, **dict(zip(self.columns, r.figures, strict=True))} for r in self.rows]
        return {"title": self.title, "rows": rows}

    def picture(self) -> str:
        chosen = [self.columns.index(column) for column in self.drawn]
        groups = [Group(row.name, [row.figures[at] for at in chosen]) for row in self.rows]
        return bars_svg(Chart(self.title, machine_line(), self.unit, ""), self.drawn, groups)


def publish(bench: str, sheets: Iterable[Sheet], files: ResultFiles) -> None:
    """Prints each sheet when it is ready, then writes the files. Raises ConfigError."""
    files.claim()
    console = screen()
    figures: dict[str, object] = {}
    pictures: dict[str, str] = {}
    for sheet in sheets:
        console.print(_table(sheet))
        figures[sheet.name] = sheet.as_json()
        pictures[f"{bench}-{sheet.name}.svg"] = sheet.picture()
    if files.json is not None:
        write_json(files.json, bench, figures)
    if files.svg is not None:
        for path in write_files(files.svg, pictures):
            console.print(f"wrote {path}")


def write_json(path: Path, bench: str, figures: Mapping[str, object]) -> None:
    """Writes the figures and a description of the machine. Raises ConfigError."""
    whole = {"bench": bench, "transom": __version__, "machine": machine(), **figures}
    with writing(path):
        path.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")


def _table(sheet: Sheet) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(sheet.title, no_wrap=True)
    for column in sheet.columns:
        table.add_column(column, justify="right", no_wrap=True)
    for row in sheet.rows:
        table.add_row(row.name, *["" if f is None else f"{f:,.1f}" for f in row.figures])
    return table


# ---------------------------------------------------------------- the machine


def machine() -> dict[str, object]:
    """Processor, cores that this process may use, system, and version of Python."""
    return {
        "processor": _processor(),
        "cores": cores_available(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": ".".join(map(str, sys.version_info[:3])),
    }


def machine_line() -> str:
    facts = machine()
    return f"{facts['processor']}, {facts['cores']} cores, transom {__version__}"


def _processor() -> str:
    """The name that the kernel gives, if it gives one."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()

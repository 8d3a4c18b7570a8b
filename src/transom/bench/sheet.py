"""What a benchmark found: a sheet of figures, as a table, as JSON and as a picture."""

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
"""None stands for what does not apply."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a user wants beside a table."""

    json: Path | None = None
    svg: Path | None = None

    def claim(self) -> None:
        """ConfigError now, if a file cannot be written: not after minutes of measuring."""
        if self.json is not None:
            with writing(self.json), self.json.open("a", encoding="utf-8"):
                pass
        if self.svg is not None:
            write_files(self.svg, {})


@dataclass(frozen=True, slots=True)
class Row:
    """A figure for each column of its sheet."""

    name: str
    figures: tuple[Figure, ...]


@dataclass(frozen=True, slots=True)
class Sheet:
    """Rows of figures. `drawn` are the columns, of one `unit`, that the picture has bars for."""

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


def publish(bench: str, sheets: Iterable[Sheet], wanted: Wanted) -> None:
    """Print each as it comes, and write what is wanted. ConfigError for a file that cannot be written."""
    wanted.claim()
    console = screen()
    figures: dict[str, object] = {}
    pictures: dict[str, str] = {}
    for sheet in sheets:
        console.print(_table(sheet))
        figures[sheet.name] = sheet.as_json()
        pictures[f"{bench}-{sheet.name}.svg"] = sheet.picture()
    if wanted.json is not None:
        write_json(wanted.json, bench, figures)
    if wanted.svg is not None:
        for path in write_files(wanted.svg, pictures):
            console.print(f"wrote {path}")


def write_json(path: Path, bench: str, figures: Mapping[str, object]) -> None:
    """The figures, and where they were measured. ConfigError."""
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


# ---------------------------------------------------------------- where it was measured


def machine() -> dict[str, object]:
    """Processor, cores this process may use, system and Python."""
    return {
        "processor": _processor(),
        "cores": cores_available(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": ".".join(map(str, sys.version_info[:3])),
    }


def machine_line() -> str:
    found = machine()
    return f"{found['processor']}, {found['cores']} cores, transom {__version__}"


def _processor() -> str:
    """As the kernel names it, where it does."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()

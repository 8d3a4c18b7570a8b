"""Writes docs/limits.md from the table in `transom/limits.py`: `make limits`. A test compares the two."""

from itertools import groupby
from pathlib import Path

from transom.limits import KIB, LIMITS, MIB, RULES

PAGE = Path(__file__).resolve().parents[1] / "docs" / "limits.md"
OPENING = """\
# Limits

Each thing that a client can multiply, keep open or leave unread has a limit that is decided at start.
`make limits` writes this page from the table in `src/transom/limits.py`. Limits without a flag are fixed.
"""


def page() -> str:
    sections = groupby(RULES, key=lambda name: RULES[name].section)
    return "\n".join([OPENING, *(_section(title, list(names)) for title, names in sections)])


def _section(title: str, names: list[str]) -> str:
    rows = [
        f"| {RULES[name].bounds} | {_shown(name)} | {_flag(name)} | {RULES[name].answer} |" for name in names
    ]
    return "\n".join(
        [f"## {title}", "", "| limit | default | flag | beyond it |", "|---|---|---|---|", *rows, ""]
    )


def _flag(name: str) -> str:
    flag = RULES[name].flag
    return f"`{flag}`" if flag else ""


def _shown(name: str) -> str:
    value = getattr(LIMITS, name)
    if RULES[name].is_size:
        unit, size = ("MiB", MIB) if value >= MIB else ("KiB", KIB)
        return f"{value / size:g} {unit}"
    return f"{value:,}" if isinstance(value, int) else f"{value:,g}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

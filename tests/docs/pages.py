"""Parses the Markdown pages of the repository for tests: sections, tables, code blocks, links."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = tuple(
    path for folder in (ROOT, DOCS, ROOT / "examples", ROOT / "lab") for path in sorted(folder.glob("*.md"))
)
"""Every Markdown page that is written for readers."""

CODE = re.compile(r"`([^`]+)`")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced code block. `line` is the number of its first line in the page, counted from 1."""

    language: str
    text: str
    line: int


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def blocks(page: Path) -> list[Block]:
    text = text_of(page)
    return [
        Block(match[1], match[2], text.count("\n", 0, match.start()) + 2) for match in FENCE.finditer(text)
    ]


def prose(page: Path) -> str:
    """The text without code blocks. Their lines stay, empty, so that line numbers still hold."""
    return FENCE.sub(lambda match: "\n" * match[0].count("\n"), text_of(page))


def links(page: Path) -> list[str]:
    """Targets of all links, in order. Text that looks like a link inside code does not count."""
    return LINK.findall(CODE.sub("``", re.sub(r"\[`[^`]*`\]", "[]", prose(page))))


def anchors(page: Path) -> list[str]:
    """Anchors of all headings, as GitHub and Python-Markdown form them."""
    return [anchor(title) for title in re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)]


def anchor(title: str) -> str:
    return re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", title.strip().lower()))


def sections(page: Path) -> dict[str, str]:
    """The text below each heading, up to the next heading of any level, by title."""
    parts = re.split(r"^#+ (.+)$", prose(page), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def rows(section: str) -> list[list[str]]:
    """Cells of all table rows with code in the first cell. Header rows and rules are left out."""
    found = []
    for line in re.findall(r"^\|.*\|$", section, re.MULTILINE):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if CODE.search(cells[0]):
            found.append(cells)
    return found

"""The pages of docs/, as tests read them: sections, tables, blocks of code, links."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = tuple(
    path for folder in (ROOT, DOCS, ROOT / "examples", ROOT / "lab") for path in sorted(folder.glob("*.md"))
)
"""Everything that people read as Markdown."""

CODE = re.compile(r"`([^`]+)`")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block of code; `line` is where its first one stands in the page, from 1."""

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
    """Without blocks of code; their lines stay, empty."""
    return FENCE.sub(lambda match: "\n" * match[0].count("\n"), text_of(page))


def links(page: Path) -> list[str]:
    """Targets, in order; what stands in code is none."""
    return LINK.findall(CODE.sub("``", re.sub(r"\[`[^`]*`\]", "[]", prose(page))))


def anchors(page: Path) -> list[str]:
    """Of all headings, as forges and Python-Markdown make them."""
    return [anchor(title) for title in re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)]


def anchor(title: str) -> str:
    return re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", title.strip().lower()))


def sections(page: Path) -> dict[str, str]:
    """What stands under each heading, up to the next of whatever level, by the heading's words."""
    parts = re.split(r"^#+ (.+)$", prose(page), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def rows(section: str) -> list[list[str]]:
    """The cells of all tables, but for headings and rules."""
    found = []
    for line in re.findall(r"^\|.*\|$", section, re.MULTILINE):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if CODE.search(cells[0]):
            found.append(cells)
    return found

"""Builds the site of docs/: hooks for ProperDocs, registered in `properdocs.yml`.

Pages are written for readers of the repository, and also link to files outside docs/. On the site a Markdown
file from outside docs/ becomes a page, and a source file becomes a plain listing, so that every link works.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from properdocs.config.defaults import ProperDocsConfig
from properdocs.structure.files import File, Files
from properdocs.structure.pages import Page
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_for_filename

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
TARGET = re.compile(r"(?<=\]\()(?!https?:)([^)\s#]+)")
"""The path of a relative link, up to the #."""
FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
STYLES = (("light", "default"), ("dark", "github-dark"))


def on_files(files: Files, config: ProperDocsConfig) -> Files:
    """Adds the style sheet for code, and all files outside docs/ that pages reach by links."""
    files.append(File.generated(config, "code.css", content=colours()))
    left = [path_of(uri) for uri in menu_pages(config.nav)]
    seen: set[Path] = set()
    while left:
        page = left.pop()
        if page in seen or not page.is_file():
            continue
        seen.add(page)
        if not page.is_relative_to(DOCS):
            files.append(generated(page, config))
        if page.suffix == ".md":
            left += targets(page)
    return files


def on_page_markdown(markdown: str, page: Page, config: ProperDocsConfig, files: Files) -> str:
    """The text with its links rewritten for the site. Links inside code blocks stay."""
    here = path_of(page.file.src_uri)

    def relinked(match: re.Match[str]) -> str:
        target = uri_of((here.parent / match[1]).resolve())
        return os.path.relpath(target, os.path.dirname(page.file.src_uri) or ".")

    parts = FENCED.split(markdown)
    return "".join(part if part.startswith("```") else TARGET.sub(relinked, part) for part in parts)


def menu_pages(nav: object) -> Iterator[str]:
    """Paths of all pages in the menu, at any depth."""
    if isinstance(nav, str):
        yield nav
    elif isinstance(nav, dict):
        yield from menu_pages(list(nav.values()))
    elif isinstance(nav, list):
        for entry in nav:
            yield from menu_pages(entry)


def generated(path: Path, config: ProperDocsConfig) -> File:
    """The site's file for a file outside docs/: a page for Markdown, a listing for other text."""
    if path.suffix == ".md":
        return File.generated(config, uri_of(path), abs_src_path=str(path))
    return File.generated(config, uri_of(path), content=listing(path))


def targets(page: Path) -> Iterator[Path]:
    """Files of the repository that a page links to."""
    for link in TARGET.findall(FENCED.sub("", page.read_text(encoding="utf-8"))):
        target = (page.parent / link).resolve()
        if target.is_file():
            yield target


def uri_of(path: Path) -> str:
    """The path of a repository file on the site, as a source file of ProperDocs."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    inside = path.relative_to(ROOT).as_posix()
    return inside if path.suffix == ".md" else f"source/{inside}.html"


def path_of(uri: str) -> Path:
    """The repository file of a page on the site: the inverse of `uri_of`."""
    return DOCS / uri if (DOCS / uri).is_file() else ROOT / uri


def listing(path: Path) -> str:
    formatter = HtmlFormatter(full=True, linenos="inline", title=path.relative_to(ROOT).as_posix())
    return str(highlight(path.read_text(encoding="utf-8"), get_lexer_for_filename(path.name), formatter))


def colours() -> str:
    """Style sheet for highlighted code, in the light and the dark mode of the theme."""
    return "\n".join(
        HtmlFormatter(style=style).get_style_defs(f"[data-bs-theme={mode}] .codehilite")
        for mode, style in STYLES
    )

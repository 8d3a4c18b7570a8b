"""What makes a site of docs/: a hook of ProperDocs, which `properdocs.yml` names.

Pages are written for people who read the repository, and link to files outside docs/ too. On the site,
Markdown of these becomes a page of its own, and source text a plain listing, so that nothing is missing.
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
"""The path of a link, without what follows a #."""
FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
STYLES = (("light", "default"), ("dark", "github-dark"))


def on_files(files: Files, config: ProperDocsConfig) -> Files:
    """Adds what pages lead to outside docs/, and the colours of code."""
    files.append(File.generated(config, "code.css", content=colours()))
    left = [path_of(uri) for uri in named(config.nav)]
    known: set[Path] = set()
    while left:
        page = left.pop()
        if page in known or not page.is_file():
            continue
        known.add(page)
        if not page.is_relative_to(DOCS):
            files.append(brought(page, config))
        if page.suffix == ".md":
            left += targets(page)
    return files


def on_page_markdown(markdown: str, page: Page, config: ProperDocsConfig, files: Files) -> str:
    """The same with links that hold on the site."""
    here = path_of(page.file.src_uri)

    def relinked(match: re.Match[str]) -> str:
        target = uri_of((here.parent / match[1]).resolve())
        return os.path.relpath(target, os.path.dirname(page.file.src_uri) or ".")

    parts = FENCED.split(markdown)
    return "".join(part if part.startswith("```") else TARGET.sub(relinked, part) for part in parts)


def named(nav: object) -> Iterator[str]:
    """Pages of the menu, whatever they stand under."""
    if isinstance(nav, str):
        yield nav
    elif isinstance(nav, dict):
        yield from named(list(nav.values()))
    elif isinstance(nav, list):
        for entry in nav:
            yield from named(entry)


def brought(path: Path, config: ProperDocsConfig) -> File:
    """A file from outside docs/."""
    if path.suffix == ".md":
        return File.generated(config, uri_of(path), abs_src_path=str(path))
    return File.generated(config, uri_of(path), content=listing(path))


def targets(page: Path) -> Iterator[Path]:
    """Files of the repository that a page leads to."""
    for link in TARGET.findall(FENCED.sub("", page.read_text(encoding="utf-8"))):
        target = (page.parent / link).resolve()
        if target.is_file():
            yield target


def uri_of(path: Path) -> str:
    """Where a file of the repository is on the site, as a source."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    inside = path.relative_to(ROOT).as_posix()
    return inside if path.suffix == ".md" else f"source/{inside}.html"


def path_of(uri: str) -> Path:
    """The other way, for a page."""
    return DOCS / uri if (DOCS / uri).is_file() else ROOT / uri


def listing(path: Path) -> str:
    formatter = HtmlFormatter(full=True, linenos="inline", title=path.relative_to(ROOT).as_posix())
    return str(highlight(path.read_text(encoding="utf-8"), get_lexer_for_filename(path.name), formatter))


def colours() -> str:
    return "\n".join(
        HtmlFormatter(style=style).get_style_defs(f"[data-bs-theme={mode}] .codehilite")
        for mode, style in STYLES
    )

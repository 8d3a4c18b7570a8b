"""`make docs` builds a complete site that loads nothing from other hosts."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs.pages import DOCS, ROOT


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. The build is strict: a broken link or a page missing from the menu fails it."""
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "properdocs", "build", "-q", "-d", str(folder)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_is_on_the_site(site: Path) -> None:
    assert {path.stem for path in DOCS.glob("*.md")} <= {path.stem for path in site.glob("*.html")}
    assert (site / "ARCHITECTURE.html").exists()


def test_files_outside_docs_that_pages_link_to_are_on_the_site(site: Path) -> None:
    listed = (site / "source/examples/rollouts.py.html").read_text()
    assert "SAMPLES" in listed
    assert 'href="source/examples/rollouts.py.html"' in (site / "python.html").read_text()


def test_the_site_loads_nothing_from_other_hosts(site: Path) -> None:
    for page in site.rglob("*.html"):
        loaded = re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="(https?:[^"]*)"', page.read_text())
        assert not [url for url in loaded if "canonical" not in url], page.name

"""Links within the repository lead to a file and a heading that exist, on GitHub and on the site."""

from pathlib import Path

import pytest
from tests.docs.pages import PAGES, ROOT, anchors, links


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    for link in links(page):
        if link.startswith(("http://", "https://")):
            continue
        path, _, heading = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{link}: no such file"
        assert target.is_relative_to(ROOT), f"{link}: outside the repository"
        if heading:
            assert heading in anchors(target), f"{link}: no such heading"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_headings_of_a_page_have_different_anchors(page: Path) -> None:
    found = anchors(page)
    assert len(set(found)) == len(found)
